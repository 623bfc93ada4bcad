"""The options that describe a Workload, shared by ``estimate`` and ``plan``."""

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from placement.planner.search.card_support import workload_defaults
from placement.planner.values.workload import CHOICES, Workload
from telemetry.protocol.gpu_cards import GpuCard

DEFAULT = Workload()
WORDS = (
    *("precision", "optimizer", "checkpointing", "attention"),
    *("accelerator", "task"),
)


BY_CARD = ("precision", "attention")
"""Options whose usual values depend on the task and the cards. They are None if not
given.
"""
HELP = {
    "precision": f"default: {DEFAULT.precision}, bf16 to infer; fp16 instead if no GPU "
    "has bf16",
    "attention": f"default: {DEFAULT.attention}, or efficient if no GPU runs it",
}


def add_workload_options(parser: argparse.ArgumentParser) -> None:
    """Declare batch, sequence, precision and so on."""
    parser.add_argument(
        "--batch",
        type=int,
        default=DEFAULT.batch,
        help="sequences or images in a step (default: %(default)s)",
    )
    parser.add_argument(
        "--sequence",
        type=int,
        default=DEFAULT.sequence_length,
        metavar="TOKENS",
        help="tokens of a sequence (default: %(default)s)",
    )
    parser.add_argument(
        "--target",
        type=int,
        default=0,
        metavar="TOKENS",
        help="tokens of the decoder's side (encoder-decoder models)",
    )
    parser.add_argument(
        "--prefill",
        type=int,
        default=0,
        metavar="TOKENS",
        help="prompt tokens that are read together to infer (default: all)",
    )
    parser.add_argument(
        "--accumulation",
        type=int,
        default=1,
        metavar="N",
        help="microbatches that a step is divided into",
    )
    for name in WORDS:
        default = getattr(DEFAULT, name)
        parser.add_argument(
            f"--{name}",
            choices=CHOICES[name],
            default=None if name in BY_CARD else default,
            help=HELP.get(name, f"default: {default}"),
        )
    parser.add_argument(
        "--loop",
        choices=CHOICES["optimizer_loop"],
        help="implementation of the optimizer step",
    )


def workload_of(options: Mapping[str, Any]) -> Workload:
    """Return the Workload that the options describe. Raises WorkloadInvalid.

    A precision or an attention that is not given is the usual one of the task.
    """
    asked = _as_given(options)
    return asked.replace(**workload_defaults((), asked, given=_given(options)))


def _given(options: Mapping[str, Any]) -> list[str]:
    return [name for name in BY_CARD if options[name] is not None]


def _as_given(options: Mapping[str, Any]) -> Workload:
    on_cpu = options["accelerator"] == "cpu"
    chosen = {name: options[name] for name in _given(options)}
    return Workload(
        task=options["task"],
        batch=options["batch"],
        sequence_length=options["sequence"],
        target_length=options["target"],
        prefill_tokens=options["prefill"],
        optimizer=options["optimizer"],
        checkpointing=options["checkpointing"],
        accumulation=options["accumulation"],
        accelerator=options["accelerator"],
        optimizer_loop=options["loop"] or ("forloop" if on_cpu else "foreach"),
        **chosen,
    )


def options_for_cards(
    options: Mapping[str, Any], cards: Iterable[GpuCard | None]
) -> dict[str, Any]:
    """Return the options with a precision and an attention that some of the cards run.

    Options that are given stay.

    Raises:
        WorkloadInvalid: by field.
    """
    given = _given(options)
    return {**options, **workload_defaults(cards, _as_given(options), given=given)}
