"""Whether a step is worth waiting for.

See docs/design/placement.md#sensible-steps. A Plan may fit and still be useless: its
step takes so long, or leaves its Gpus idle for so much of it, that no expert would
start it. Such a Plan has a note and ranks below every other.
"""

from placement.planner.search.decode_time import DecodeTime
from placement.planner.search.step_time import StepTime
from placement.planner.values.humanize import duration
from placement.planner.values.workload import Workload
from telemetry.protocol.sentences import sentence

SHORT_TRAINING_STEPS = 1_000
"""Optimizer steps of a short fine-tuning. LIMA (arXiv:2305.11206) took about 500 and
Stanford Alpaca about 1,200."""
LONGEST_TRAINING_SECONDS = 7 * 86_400.0
"""A short fine-tuning that takes longer than a week is not sensible."""
LEAST_COMPUTE_RATIO = 0.03
"""A Gpu that computes for less than this part of a step is not used sensibly. It is a
twentieth of a rate of 0.40 of the peak, or 0.05 x 0.40 / PEAK_RATIO."""
NOTICED_SECONDS = 1.0
"""A step or a call shorter than this is sensible, even if much of it is waiting."""

LEAST_TOKENS_PER_SECOND = 1.0
"""A model that generates less, all sequences together, is not used sensibly. People
read 3 to 5 words a second (Brysbaert, Journal of Memory and Language 109, 2019).
"""


def why_absurd(
    workload: Workload, time: StepTime, decode: DecodeTime | None = None
) -> str:
    """Return why such a step is not worth waiting for, or "" if it is sensible.

    Args:
        workload: the workload; only training has many steps.
        time: seconds of one step or one call.
        decode: the time of one more token; None: the model generates none.
    """
    total = time.total_seconds
    training_seconds = SHORT_TRAINING_STEPS * total
    if workload.trains and training_seconds > LONGEST_TRAINING_SECONDS:
        return sentence(
            "A step takes {step}, so that {steps} steps take {training}.",
            step=duration(total),
            steps=f"{SHORT_TRAINING_STEPS:,}",
            training=duration(training_seconds),
        )
    if decode and decode.tokens_per_second < LEAST_TOKENS_PER_SECOND:
        return sentence(
            "One more token of every sequence takes {token}.",
            token=duration(decode.seconds),
        )
    if total > NOTICED_SECONDS and time.compute_seconds < LEAST_COMPUTE_RATIO * total:
        return sentence(
            "The GPUs compute for {share} % of the time and wait for data in the rest.",
            share=f"{100 * time.compute_seconds / total:.1f}",
        )
    return ""
