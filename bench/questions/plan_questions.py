"""The planner's first plans for questions that an expert had answered before.

python -m bench.questions.plan_questions [PART...]

The questions are in ``bench/questions/*.json``. Each has a model (a known name or a
config.json), the options of ``python -m placement.planner plan``, the GPUs and the
answer that was written down first. A PART is in the names of the files or of the models
that are asked. Prints rows in Markdown.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.expert_plans import answer, memory_gb
from placement.planner.cli.plan_command import (
    PLAN,
    plans_for_file,
    question_of,
    with_host,
)
from placement.planner.cli.workload_options import options_for_cards
from placement.planner.search.card_support import cards_of
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.gpu_list import offers_from_list
from placement.planner.values.plan import Plan
from telemetry.protocol.coded_error import CodedError, one_line

FOLDER = Path(__file__).parent


def questions(parts: list[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the questions of the files and models whose names have one of the parts."""
    for path in sorted(FOLDER.glob("*.json")):
        for one in json.loads(path.read_text(encoding="utf-8")):
            names = (path.stem, one["model"])
            if not parts or any(part in name for part in parts for name in names):
                yield one


def offers(asked: Mapping[str, Any]) -> list[GpuOffer]:
    """Return the GPUs of a question: rows of a count, a card, the free GB, and the
    percent in use, if any.
    """
    each, nvlink = asked.get("each", 8), asked.get("nvlink", False)
    cards = [
        (name, giga, *use)
        for count, name, giga, *use in asked["gpus"]
        for _ in range(count)
    ]
    rows = []
    for number, (name, giga, *use) in enumerate(cards):
        row = {
            "name": name,
            "free_bytes": int(giga * 10**9),
            "node": f"n{number // each:03}",
            "network_bytes_per_second": asked.get("network", 200e9 if nvlink else 12e9),
        }
        if nvlink:
            row["link_group"] = f"nv{number // each}"
        if use:
            row |= {"util_pct": use[0], "compute_processes": 1}
        rows.append(row)
    return offers_from_list(rows)


def settings(best: Plan) -> str:
    """Return what the first plan changes to fit, in a few words."""
    workload = best.workload
    words = {
        workload.optimizer: workload.optimizer == "adam8bit",
        "recomputation": workload.checkpointing == "full",
        f"{workload.accumulation} pieces": workload.accumulation > 1,
        "chunks": bool(workload.prefill_tokens),
        best.launch.get("weights", "full"): best.launch.get("weights") != "full",
        "on a drive": workload.offload == "nvme",
    }
    return "".join(f", {word}" for word, holds in words.items() if holds)


def row(asked: Mapping[str, Any]) -> str:
    """Return one row: question, expert, first plan, its seconds and GB, CPU seconds."""
    parser = argparse.ArgumentParser()
    PLAN.add_arguments(parser)
    began = time.process_time()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        source = asked["model"]
        if "config" in asked:
            json.dump(asked["config"], file)
            file.flush()
            source = file.name
        words = [source, "--gpus", "-", *asked["options"].split()]
        if "host" in asked:
            words += ["--host-memory", str(asked["host"])]
        options = vars(parser.parse_args(words))
        gpus = with_host(offers(asked), options)
        try:
            question = question_of(options_for_cards(options, cards_of(gpus)))
            found = plans_for_file(question, gpus)
        except CodedError as error:
            said, figures, size = one_line(str(error)), "| ", ""
        else:
            best = found.best
            said = answer(found)
            if best is not None:
                said += settings(best)
            figures = (
                f"{best.step_seconds:.3g} | {memory_gb(best):.0f}" if best else "| "
            )
            size = f"{question.spec.parameter_count / 1e6:,.1f} M"
    cards = " + ".join(
        f"{count} x {name} {giga} GB" for count, name, giga, *_ in asked["gpus"]
    )
    spent = time.process_time() - began
    return (
        f"| {asked['model']} ({size}), {asked['options']}, {cards} | "
        f"{asked['expert']} | {said} | {figures} | {spent:.1f} |"
    )


def main() -> None:
    """Print the rows of the chosen questions."""
    print("| question | expert | first plan | s | GB | search s |")
    print("| --- | --- | --- | ---: | ---: | ---: |")
    for asked in questions(sys.argv[1:]):
        print(row(asked), flush=True)


if __name__ == "__main__":
    main()
