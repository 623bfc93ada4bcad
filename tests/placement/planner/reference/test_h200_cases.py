"""The closed form against what torch and NVML said on an NVIDIA H200.

The rows are those of bench/measure_gpu.py. docs/accuracy.md discusses them.
"""

import json
from pathlib import Path

import pytest

from placement.planner.memory.estimate import (
    CONTEXT_BYTES,
    WORKSPACE_BYTES,
    context_of,
    estimate,
)
from placement.planner.model.adaptation import with_lora, with_quantized
from placement.planner.model.families.config_json import parse_config
from placement.planner.model.sharding import Sharding
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan
from placement.planner.values.gpu_list import offers_from_list
from placement.planner.values.workload import Workload
from telemetry.protocol.gpu_cards import card_of

pytestmark = pytest.mark.pure

DATA = Path(__file__).parents[3] / "data" / "memory" / "measured_h200.json"
MEASURED = json.loads(DATA.read_text())
ROWS, JOBS = MEASURED["cases"], MEASURED["jobs"]
FURTHER_OFF = {"bert-large": 0.04, "vit-large": 0.01}
"""The symbolic form has the same errors, so the closed form loses nothing there."""


@pytest.mark.parametrize("row", ROWS, ids=[row["case"] for row in ROWS])
def test_tensors_and_the_driver_s_figure_are_met_on_a_real_card(row):
    workload = Workload.from_json(Workload().to_json() | row["workload"])
    context = context_of(card_of(MEASURED["card"]))
    made = estimate(
        well_known_spec(row["model"]), workload, Sharding(), context_bytes=context
    )
    # The measured loop called GPT-2 with its cache. Recipes do not.
    cache = row.get("cache_bytes", 0)
    off = (made.peak_bytes + WORKSPACE_BYTES) / (row["peak_bytes"] - cache) - 1
    assert abs(off) < FURTHER_OFF.get(row["model"], 0.005)
    assert made.low_bytes < row["shown_bytes"] - cache < made.high_bytes
    assert well_known_spec(row["model"]).parameter_count == row["parameters"]


def test_the_context_of_a_card_is_the_measured_one_or_unknown():
    outside = [row["shown_bytes"] - row["reserved_bytes"] for row in ROWS]
    known = context_of(card_of("NVIDIA H200"))
    assert known == pytest.approx(min(outside), rel=0.001)
    assert max(outside) < 1.1 * known
    assert context_of(card_of("NVIDIA RTX 6000 Ada Generation")) == 426 * 2**20
    # Before any kernel ran, a 3090 had less.
    for name in ("NVIDIA GeForce RTX 3090", "Tesla T4", "not in the table"):
        assert context_of(card_of(name)) == CONTEXT_BYTES
    assert card_of("Tesla T4").context_bytes is None


def test_plans_count_the_context_of_their_own_cards():
    rows = [
        {"name": name, "free_bytes": 20 * 10**9}
        for name in ("NVIDIA H200", "NVIDIA GeForce RTX 3090")
    ]
    found = plan(
        well_known_spec("gpt2"),
        Workload(),
        offers_from_list(rows),
        limits=PlanLimits(strategies=("ddp",)),
    )
    hopper, ampere = sorted(found.plans[0].shards, key=lambda one: -one.low_bytes)
    assert (hopper.gpu_name, ampere.gpu_name) == ("NVIDIA H200", rows[1]["name"])
    more = context_of(card_of("NVIDIA H200")) - CONTEXT_BYTES
    assert hopper.low_bytes - ampere.low_bytes == more
    assert hopper.components["context"] - ampere.components["context"] == more


@pytest.mark.parametrize("row", JOBS["rows"], ids=[r["job"] for r in JOBS["rows"]])
def test_the_peaks_that_jobs_printed_on_a_real_card_are_met(row):
    spec = parse_config(JOBS["config"], name="llama", source="job")
    if row["lora_rank"]:
        spec = with_lora(spec, rank=row["lora_rank"])
    if row["weights"] != "full":
        spec = with_quantized(spec, row["weights"])
    workload = Workload.from_json(Workload().to_json() | row["workload"])
    peak = estimate(spec, workload, Sharding()).peak_bytes + WORKSPACE_BYTES
    assert abs(peak / row["peak_bytes"] - 1) < 0.005
