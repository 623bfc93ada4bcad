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
"""Options whose usual values some cards cannot run. They are None if not given."""


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
            help=f"default: {default}",
        )
    parser.add_argument(
        "--loop",
        choices=CHOICES["optimizer_loop"],
        help="implementation of the optimizer step",
    )


def workload_of(options: Mapping[str, Any]) -> Workload:
    """Return the Workload that the options describe. Raises WorkloadInvalid.

    A precision or an attention that is not given is the usual one.
    """
    on_cpu = options["accelerator"] == "cpu"
    chosen = {name: options[name] or getattr(DEFAULT, name) for name in BY_CARD}
    return Workload(
        task=options["task"],
        batch=options["batch"],
        sequence_length=options["sequence"],
        target_length=options["target"],
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
    usual = workload_defaults(cards, workload_of(options))
    changes = {name: usual[name] for name in BY_CARD if name in usual}
    return {**options, **{k: v for k, v in changes.items() if options[k] is None}}
