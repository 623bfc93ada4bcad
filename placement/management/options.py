"""Options that say what to run with a model, shared by the commands."""

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
    parser.add_argument("--batch", type=int, default=DEFAULT.batch)
    parser.add_argument(
        "--sequence", type=int, default=DEFAULT.sequence_length, metavar="TOKENS"
    )
    parser.add_argument("--target", type=int, default=0, metavar="TOKENS")
    parser.add_argument("--accumulation", type=int, default=1, metavar="N")
    for name in WORDS:
        parser.add_argument(
            f"--{name}", choices=CHOICES[name], default=getattr(DEFAULT, name)
        )
    parser.add_argument(
        "--loop", choices=CHOICES["optimizer_loop"], help="how the optimizer steps"
    )


def workload_of(options: Mapping[str, Any]) -> Workload:
    """The Workload that the options say. Raises WorkloadInvalid."""
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


def one_line(text: str) -> str:
    """An error as one line that a terminal may be shown: it may quote a file.

    >>> one_line("split: \\x1b[2J\\n is no kind")
    'split: ?[2J is no kind'
    """
    plain = (c if c.isprintable() else "?" for c in " ".join(text.split()))
    return "".join(plain)[:1000]
