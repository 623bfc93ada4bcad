"""The options that describe a Workload, shared by ``estimate`` and ``plan``."""

import argparse
from collections.abc import Mapping
from typing import Any

from placement.planner.values.workload import CHOICES, Workload

DEFAULT = Workload()
WORDS = (
    *("precision", "optimizer", "checkpointing", "attention"),
    *("accelerator", "task"),
)


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
            default=default,
            help=f"default: {default}",
        )
    parser.add_argument(
        "--loop",
        choices=CHOICES["optimizer_loop"],
        help="implementation of the optimizer step",
    )


def workload_of(options: Mapping[str, Any]) -> Workload:
    """Return the Workload that the options describe. Raises WorkloadInvalid."""
    on_cpu = options["accelerator"] == "cpu"
    return Workload(
        task=options["task"],
        batch=options["batch"],
        sequence_length=options["sequence"],
        target_length=options["target"],
        precision=options["precision"],
        optimizer=options["optimizer"],
        checkpointing=options["checkpointing"],
        accumulation=options["accumulation"],
        attention=options["attention"],
        accelerator=options["accelerator"],
        optimizer_loop=options["loop"] or ("forloop" if on_cpu else "foreach"),
    )
