"""``cards``: the table of cards, or the row of one name."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from placement.planner.cli.cli_command import CliCommand
from placement.planner.values.errors import BadInput
from telemetry.protocol.gpu_cards import CARDS, GIGA, TERA, GpuCard, card_of


def add_cards_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "name", nargs="?", help="as the driver reports it; without one: all cards"
    )
    parser.add_argument("--json", action="store_true", help="answer in JSON")


def cards_answer(options: Mapping[str, Any]) -> str:
    """Return the rows as a table or JSON.

    Raises:
        BadInput: the table does not have the card.
    """
    name = options["name"]
    found = CARDS
    if name is not None:
        card = card_of(name)
        if card is None:
            raise BadInput(
                {"name": f"{name[:80]!r} is not in the table: its speed is unknown"}
            )
        found = (card,)
    if options["json"]:
        return json.dumps([asdict(card) for card in found])
    head = (
        f"{'card':<52}{'cap.':>7}{'GB':>6}{'GB/s':>6}{'fp32':>7}{'fp16':>7}"
        f"{'bf16':>7}{'fp8':>7}{'context':>9}  NVLink         source"
    )
    return "\n".join([head, *map(_line, found)])


def _line(card: GpuCard) -> str:
    """Return one row: dense teraoperations a second, - if the card has none."""
    rates = (card.fp32_flops, card.fp16_flops, card.bf16_flops, card.fp8_flops)
    told = "".join(f"{rate / TERA:>7.5g}" if rate else f"{'-':>7}" for rate in rates)
    outside = card.context_bytes
    told += f"{f'{outside / GIGA:.2f} GB' if outside else 'unknown':>9}"
    link = "-"
    if card.nvlink_generation:
        speed = card.nvlink_bytes_per_second / GIGA
        link = f"{card.nvlink_generation}, {speed:g} GB/s"
    return (
        f"{card.name:<52}{card.compute_capability:>7}{card.memory_gb:>6g}"
        f"{card.memory_bytes_per_second / GIGA:>6.0f}{told}  {link:<15}{card.source}"
    )


CARDS_COMMAND = CliCommand(
    "cards",
    "Show the table of cards: dense peaks, memory, NVLink and the source of each.",
    add_cards_options,
    cards_answer,
)
