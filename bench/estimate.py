"""Estimated against measured memory: the error tables of docs/accuracy.md.

    python -m bench.estimate [--data DIR] [--closed] [--section NAME]

Rows: measured_cpu.json, simulated_large.json and distributed_cpu.json (copies are in
tests/data/memory), own_cases.json and own_ranks.json (measured here, by measure_case.py
and measure_ranks.py), and, if DIR has them, megatron_gpu.json, mpt_fits.json and
published.json. Nothing is fitted to any of them. Beside the closed form: the symbolic
step (placement.planner.symbolic), accelerate's and DeepSpeed's own estimators, and
Megatron's formulas, on the same rows. `--closed` leaves out the parts that need torch.
"""

import argparse
import json
import platform
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.megatron import Args, read_run, theirs_activations, theirs_states
from bench.published import (
    Row,
    bert_large_rows,
    litgpt_rows,
    mpt_verdict,
    reserved_rows,
    torchtune_rows,
)
from bench.rig.cpu_time import milliseconds
from placement.planner.memory.estimate import WORKSPACE_BYTES, estimate
from placement.planner.reference.memory_cases import closed_case
from telemetry.protocol.coded_error import CodedError

TESTS = Path(__file__).resolve().parent.parent / "tests" / "data" / "memory"
SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "memory"
CPU_FILES = ("measured_cpu.json", "simulated_large.json", "own_cases.json")
UNDER = -0.05


def find(name: str, folder: Path) -> Path | None:
    """Return a data file in `folder`, or the copy of the tests."""
    for place in (folder / name, TESTS / name):
        if place.exists():
            return place
    return None


def load(name: str, folder: Path = SHARED) -> list[dict[str, Any]]:
    """Return the cases of one file; none, with a message, if it is missing."""
    path = find(name, folder)
    if path is None:
        print(f"({name} is not in {folder.name}: its rows are left out)")
        return []
    data = json.loads(path.read_text())
    cases: list[dict[str, Any]] = data["cases"] if isinstance(data, dict) else data
    return cases


def summary(errors: Sequence[float]) -> str:
    """Return median, p90 and worst of sizes, and the share too low by more than 5 %."""
    if not errors:
        return "no rows"
    sizes = sorted(abs(error) for error in errors)
    under = sum(error < UNDER for error in errors) / len(errors)
    return (
        f"{len(sizes):>3} rows  median {statistics.median(sizes):>7.2%}  "
        f"p90 {sizes[int(0.9 * (len(sizes) - 1))]:>7.2%}  worst {sizes[-1]:>8.2%}  "
        f"too low by > 5 %: {under:.0%}"
    )


def symbolic_answers(specs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return symbolic answers by case id, and errors unchanged. Empty without the
    package.
    """
    try:
        from placement.planner.symbolic.case import read_case
        from placement.planner.symbolic.child_process import run
    except ImportError as error:
        print(f"(no symbolic column: {error})")
        return {}
    readable, answers = [], {}
    for spec in specs:
        try:
            readable.append((spec["id"], read_case(spec)))
        except CodedError as error:
            answers[spec["id"]] = error
    made = run([case for _, case in readable]).answers
    answers |= {name: one for (name, _), one in zip(readable, made, strict=True)}
    return answers


def peer_bytes(spec: dict[str, Any], folder: Path) -> dict[str, int]:
    """Return accelerate's and DeepSpeed's (one Gpu) bytes for a case."""
    from bench.peers import accelerate_bytes, build_on_meta, deepspeed_bytes

    models = find("refmodels.py", folder)
    if models is None:
        return {}
    module = build_on_meta(spec, models)
    sizes = [one.numel() for one in module.parameters()]
    return {
        "accelerate": accelerate_bytes(module, spec["precision"]),
        "DeepSpeed": deepspeed_bytes(sum(sizes), max(sizes), stage=2, ranks=1),
    }


def cpu_section(folder: Path, *, peers: bool) -> None:
    """One process, CPU allocator or fake tensors."""
    cases = [case for name in CPU_FILES for case in load(name, folder)]
    symbolic = symbolic_answers([case["spec"] for case in cases]) if peers else {}
    names = ("closed", "symbolic", "accelerate", "DeepSpeed")
    errors: dict[str, list[float]] = {name: [] for name in names}
    seconds: dict[str, list[float]] = {"closed": [], "symbolic": []}
    unsupported: Counter[str] = Counter()
    states = 0
    print(f"{'case':<42}{'meas. GB':>9}" + "".join(f"{n:>12}" for n in names) + "  ms")
    for case in cases:
        spec, truth = case["spec"], case["truth"]
        said: dict[str, float] = {}
        taken = 0.0
        try:
            answer = closed_case(spec)
            said["closed"] = answer["peak_bytes"]
            taken = milliseconds(lambda spec=spec: closed_case(spec))
            seconds["closed"].append(taken / 1000)
            states += _states_exact(answer, truth)
        except CodedError:
            unsupported["closed"] += 1
        other = symbolic.get(spec["id"])
        if isinstance(other, dict):
            said["symbolic"] = other["peak_bytes"]
            seconds["symbolic"].append(other["seconds"])
        elif other is not None:
            unsupported["symbolic"] += 1
        if peers:
            said |= peer_bytes(spec, folder)
        line = ""
        for name in names:
            if name in said:
                error = said[name] / truth["peak_bytes"] - 1
                errors[name].append(error)
                line += f"{error:>+12.2%}"
            else:
                line += f"{'-':>12}"
        print(f"{spec['id']:<42}{truth['peak_bytes'] / 1e9:>9.3f}{line}{taken:>6.2f}")
    print()
    for name in names:
        if errors[name]:
            print(f"{name:<11}{summary(errors[name])}  unsupported {unsupported[name]}")
    print(f"states exact to the byte: {states} of {len(seconds['closed'])}")
    for name, taken_all in seconds.items():
        if taken_all:
            print(
                f"{name} seconds: median {statistics.median(taken_all):.4f}, "
                f"worst {max(taken_all):.4f}"
            )


def _states_exact(answer: Mapping[str, Any], truth: Mapping[str, Any]) -> bool:
    return bool(
        answer["param_bytes"] == truth["param_bytes"]
        and answer["opt_state_bytes"] == truth["opt_state_bytes"]
    )


def rank_cases(folder: Path) -> list[tuple[dict[str, Any], list[int], list[int]]]:
    """Return (case, peaks by rank, bytes that are in the stream but free, by rank)."""
    rows = []
    for case in load("distributed_cpu.json", folder):
        peaks = case["peak_bytes_per_rank"]
        # Bytes between steps beyond the states: DDP's buckets are alive, the rest is
        # free.
        made = closed_case(case)
        kept = made["param_bytes"] + made["opt_state_bytes"]
        steady = case["steady_bytes_per_rank"]
        ghost = [0 if case["kind"] == "ddp" else max(0, s - kept) for s in steady]
        rows.append((case, peaks, ghost))
    for case in load("own_ranks.json", folder):
        ranks = case["ranks"]
        ddp = case["given"]["kind"] == "ddp"
        ghost = [0 if ddp else max(0, r["steady"] - r["reachable"]) for r in ranks]
        rows.append((case["given"], [rank["peak"] for rank in ranks], ghost))
    return rows


def ranks_section(folder: Path, *, peers: bool) -> None:
    """DDP, FSDP2 and DeepSpeed, per gloo rank."""
    raw, clean, theirs = [], [], []
    print(f"{'case':<46}{'est. MB':>9}  measured, and without what is free already")
    for case, peaks, ghost in rank_cases(folder):
        peak = closed_case(case)["peak_bytes"]
        as_seen = [peak / one - 1 for one in peaks]
        corrected = [
            peak / (one - free) - 1 for one, free in zip(peaks, ghost, strict=True)
        ]
        raw += as_seen
        clean += corrected
        if peers and case["kind"].startswith("ds"):
            theirs += _deepspeed_errors(case, peaks, ghost)
        seen = " ".join(f"{error:+6.1%}" for error in as_seen)
        kept = " ".join(f"{error:+6.1%}" for error in corrected)
        print(f"{case['id']:<46}{peak / 1e6:>9.1f}  {seen}  |  {kept}")
    print(f"\nas the stream has it     {summary(raw)}")
    print(f"without what is free     {summary(clean)}")
    print(f"as the kernel has it     {summary(resident_errors(folder))}")
    if theirs:
        print(f"DeepSpeed's estimators   {summary(theirs)}")


def resident_errors(folder: Path) -> list[float]:
    """Return the errors of the same ranks as measured by the kernel, which sees a free
    of any thread.
    """
    found = []
    for case in load("own_ranks.json", folder):
        peak = closed_case(case["given"])["peak_bytes"]
        found += [peak / one - 1 for one in case.get("resident_peaks", [])]
    return found


def _deepspeed_errors(
    case: Mapping[str, Any], peaks: Sequence[int], ghost: Sequence[int]
) -> list[float]:
    from bench.peers import deepspeed_bytes

    stage = int(case["kind"][2:])
    count = case.get("n_params", 20_901_888)
    made = deepspeed_bytes(count, 2_048_000, stage=stage, ranks=case["world"])
    return [made / (p - free) - 1 for p, free in zip(peaks, ghost, strict=True)]


def megatron_section(folder: Path) -> None:
    """Megatron-LM's golden values: allocator bytes of the last rank on real GPUs."""
    states, peaks, whole, theirs, theirs_peak = [], [], [], [], []
    for row in load("megatron_gpu.json", folder):
        run = read_run(row)
        made = estimate(run.spec, run.workload, run.sharding)
        steady, peak = row["steady_allocated_bytes"], row["peak_allocated_bytes"]
        states.append((made.state_bytes + WORKSPACE_BYTES) / steady - 1)
        peaks.append((made.peak_bytes + WORKSPACE_BYTES) / peak - 1)
        if not run.left_out:
            whole.append(peaks[-1])
        args = Args(row)
        theirs.append(theirs_states(args) / steady - 1)
        theirs_peak.append((theirs_states(args) + theirs_activations(args)) / peak - 1)
    print(f"closed form, states + workspaces      {summary(states)}")
    print(f"closed form, peak                     {summary(peaks)}")
    print(f"  of them nothing left out            {summary(whole)}")
    print(f"Megatron's formula, states            {summary(theirs)}")
    print(f"Megatron's formulas, peak             {summary(theirs_peak)}")


def published_section(folder: Path) -> None:
    """Published GPU runs, the interval, and runs that are known to have fitted."""
    given = load("published.json", folder)
    measured = load("measured_cpu.json", folder)
    peaks = {}
    for case in measured:
        peaks[case["spec"]["id"]] = closed_case(case["spec"])["peak_bytes"]
    rows = bert_large_rows([r for r in given if r["id"].startswith("hf-bert-large")])
    rows += reserved_rows(measured, peaks)
    print(f"{'what the card shows':<62}{'meas.':>7}{'low':>7}{'likely':>7}{'high':>7}")
    for row in rows:
        print(_interval_line(row))
    if rows:
        inside = sum(row.inside for row in rows)
        widest = max(row.width_ratio for row in rows)
        print(f"inside: {inside} of {len(rows)}; widest interval {widest:.0%}\n")
    tensors = torchtune_rows([r for r in given if "technique" in r["config"]])
    tensors += litgpt_rows([r for r in given if r["id"].startswith("litgpt")])
    for row in tensors:
        error = row.low_bytes / row.measured_bytes - 1
        print(
            f"{row.name:<62}{row.measured_bytes / 1e9:>7.2f}{row.low_bytes / 1e9:>7.2f}"
            f"{error:>+9.1%}  {row.remark}"
        )
    print(summary([row.low_bytes / row.measured_bytes - 1 for row in tensors]))
    verdicts = Counter(mpt_verdict(row) for row in load("mpt_fits.json", folder))
    print(f"\nMPT runs that fitted: {dict(verdicts)}")


def _interval_line(row: Row) -> str:
    numbers = (row.measured_bytes, row.low_bytes, row.likely_bytes, row.high_bytes)
    shown = "".join(f"{number / 1e9:>7.2f}" for number in numbers)
    return f"{row.name:<62}{shown}  {'inside' if row.inside else 'OUTSIDE'}"


def main() -> None:
    """Print the requested tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--closed", action="store_true")
    sections = ("cpu", "ranks", "megatron", "published")
    parser.add_argument("--section", choices=sections)
    options = parser.parse_args()
    peers = not options.closed
    work: dict[str, Callable[[], None]] = {
        "cpu": lambda: cpu_section(options.data, peers=peers),
        "ranks": lambda: ranks_section(options.data, peers=peers),
        "megatron": lambda: megatron_section(options.data),
        "published": lambda: published_section(options.data),
    }
    print(f"{platform.machine()}, Python {platform.python_version()}")
    for name, section in work.items():
        if options.section in (None, name):
            print(f"\n== {name}\n")
            section()
            sys.stdout.flush()


if __name__ == "__main__":
    main()
