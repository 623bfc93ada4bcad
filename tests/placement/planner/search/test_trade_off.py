"""The first Plan is the knee of time and cost, and no shown Plan beats another."""

import re
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan
from placement.planner.search.sensible_step import LEAST_COMPUTE_RATIO, why_absurd
from placement.planner.search.step_time import StepTime
from placement.planner.search.trade_off import trade_told
from placement.planner.values.gpu_list import offers_from_list
from placement.planner.values.objective import concession
from placement.planner.values.workload import Workload

pytestmark = pytest.mark.pure


def cards(count, name="NVIDIA A100 80GB", giga=80, *, per_node=8, nvlink=False):
    return offers_from_list(
        [
            {
                "name": name,
                "free_bytes": giga * 10**9,
                "node": f"n{number // per_node}",
                "link_group": f"nv{number // per_node}" if nvlink else "",
                "network_bytes_per_second": 25e9,
            }
            for number in range(count)
        ]
    )


def beaten(found):
    """Pairs of shown Plans of which the second beats the first in time and cost."""
    return [
        (one.title, other.title)
        for one, other in permutations(found.plans, 2)
        if (other.step_seconds, other.gpu_seconds)
        != (one.step_seconds, one.gpu_seconds)
        and other.step_seconds <= one.step_seconds
        and other.gpu_seconds <= one.gpu_seconds
        and (other.fit == "tight") <= (one.fit == "tight")
        and (other.workload.optimizer == one.workload.optimizer)
    ]


def test_a_large_model_is_shared_out_before_it_waits_in_the_hosts_memory():
    asked = Workload(batch=16, sequence_length=2048, precision="bf16")
    found = plan(well_known_spec("llama-3-70b"), asked, cards(4))

    assert (found.best.strategy, len(found.best.shards)) == ("fsdp", 4)
    alone = next(one for one in found.refusals if one.strategy == "single")
    assert alone.code == "not-better"
    assert "2 GPUs" in alone.reason
    assert not beaten(found)


def test_more_gpus_are_taken_while_they_pay():
    asked = Workload(batch=64, sequence_length=2048)
    found = plan(well_known_spec("llama-3-8b"), asked, cards(8))

    assert len(found.best.shards) == 8
    assert not beaten(found)
    fewer = next(one for one in found.plans if len(one.shards) < 8)
    assert f"{len(fewer.shards)} GPUs: " in fewer.trade
    assert "times slower than 8 GPUs" in fewer.trade
    assert fewer.trade in found.table()


def test_a_step_of_milliseconds_is_no_reason_to_take_more_gpus():
    found = plan(well_known_spec("tiny-gpt"), Workload(), cards(4, nvlink=True))

    assert len(found.best.shards) == 1
    quick = plan(
        well_known_spec("tiny-gpt"),
        Workload(),
        cards(4, nvlink=True),
        objective="fastest",
    )
    assert len(quick.best.shards) > 1


@pytest.mark.parametrize(
    ("batch", "sequence", "giga", "pieces", "checkpointing"),
    [(64, 512, 14, 1, "full"), (32, 1024, 16, 8, "none")],
)
def test_shards_recompute_where_many_pieces_would_send_most_of_the_time(
    batch, sequence, giga, pieces, checkpointing
):
    """Without recomputation the first batch needs eight pieces and 1.27 times as long.

    The second one needs eight pieces too, and recomputation is hardly faster.
    """
    found = plan(
        well_known_spec("gpt2-xl"),
        Workload(batch=batch, sequence_length=sequence),
        cards(4, giga=giga, name="NVIDIA GeForce RTX 3090"),
        limits=PlanLimits(strategies=("fsdp",)),
    )

    workload = found.best.workload
    assert (workload.accumulation, workload.checkpointing) == (pieces, checkpointing)


def test_more_gpus_are_advised_where_one_block_is_too_large_for_a_gpu():
    """The 256 experts of a block take 23 GB in 16 bits, and FSDP gathers them."""
    asked = Workload(batch=512, sequence_length=4096, precision="megatron_bf16")
    found = plan(well_known_spec("deepseek-v3"), asked, cards(8, nvlink=True, giga=80))

    assert found.best.absurd
    assert "take 256 GPUs like NVIDIA A100 80GB" in found.advice


def test_an_absurd_plan_says_so_and_comes_after_the_advice():
    asked = Workload(batch=64, sequence_length=4096, precision="mixed_fp16")
    found = plan(well_known_spec("llama-3.1-405b"), asked, cards(2, giga=80))

    assert found.best.absurd
    assert "does not fit sensibly" in found.advice
    assert " GPUs like NVIDIA A100 80GB" in found.advice
    table = found.table()
    assert table.index(found.advice) < table.index(found.best.title)
    assert "not sensible" in table
    sensible = plan(well_known_spec("gpt2"), Workload(), cards(1))
    assert not sensible.advice
    assert not sensible.best.absurd


def test_the_advice_names_lora_where_it_fits():
    asked = Workload(batch=8, sequence_length=512)
    found = plan(well_known_spec("llama-3-8b"), asked, cards(1, "NVIDIA H100", 24))

    assert found.best is None or found.best.absurd
    assert "LoRA" in found.advice


def test_inference_that_streams_its_weights_is_absurd_and_the_advice_works():
    asked = Workload(task="infer", batch=1, sequence_length=4096, precision="bf16")
    spec = well_known_spec("gpt-oss-20b")
    found = plan(spec, asked, cards(1, "NVIDIA GeForce RTX 3090", 24))

    assert found.best.absurd.startswith("One more token of every sequence takes ")
    assert found.best.decode_tokens_per_second < 1
    advised = int(re.search(r"take (\d+) GPUs", found.advice)[1])
    enough = plan(spec, asked, cards(advised, "NVIDIA GeForce RTX 3090", 24))
    assert not enough.best.absurd and not enough.advice
    # Many sequences together make it worth while.
    many = plan(
        spec,
        asked.replace(batch=8, sequence_length=512),
        cards(1, "NVIDIA GeForce RTX 3090", 24),
    )
    assert many.best.decode_tokens_per_second > 1 and not many.best.absurd


def test_inference_takes_the_fewest_of_many_nodes():
    asked = Workload(task="infer", batch=8, sequence_length=4096, precision="bf16")
    nodes = cards(40, "NVIDIA H100 80GB HBM3", nvlink=True)
    found = plan(well_known_spec("deepseek-v3"), asked, nodes)

    assert not found.best.absurd and concession(found.best) == 0
    assert len(found.best.nodes) == 3
    assert found.best.launch["tensor_degree"] == 8


@pytest.mark.parametrize(
    ("task", "compute", "total", "absurd"),
    [
        ("train", 100.0, 604.0, False),
        ("train", 600.0, 606.0, True),
        ("train", 10 * LEAST_COMPUTE_RATIO * 0.9, 10.0, True),
        ("infer", 10 * LEAST_COMPUTE_RATIO * 0.9, 10.0, True),
        ("infer", 700.0, 700.0, False),
        ("infer", 0.001, 0.5, False),
    ],
)
def test_a_step_is_absurd_by_its_length_or_its_waiting(task, compute, total, absurd):
    time = StepTime(compute, total - compute)

    assert bool(why_absurd(Workload(task=task), time)) is absurd


def test_the_trade_is_in_credits_where_gpus_weigh_differently():
    spec, asked = well_known_spec("gpt2-xl"), Workload(batch=16)
    found = plan(spec, asked, cards(1), objective="fewest")
    one = found.best
    double = plan(
        spec,
        asked,
        offers_from_list(
            [{"name": one.shards[0].gpu_name, "free_bytes": 80 * 10**9, "weight": 10}]
        ),
    ).best

    assert trade_told(one, one) == (
        "n0:0: 1 times faster than n0:0, 1.00 times the GPU-hours."
    )
    other = replace(one, title="Another way", step_seconds=2 * one.step_seconds)
    assert trade_told(one, other).startswith("One GPU: 2 times faster than Another way")
    assert "10.00 times the credits" in trade_told(double, one)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["gpt2", "llama-3.2-1b", "llama-3-8b", "mixtral-8x7b"]),
    st.sampled_from(["train", "infer"]),
    st.integers(1, 4),
    st.lists(
        st.sampled_from(
            [("NVIDIA A10", 24), ("NVIDIA GeForce RTX 3090", 24), ("NVIDIA H100", 80)]
        ),
        min_size=1,
        max_size=2,
    ),
    st.booleans(),
    st.sampled_from([1, 7, 16]),
)
@example("llama-3-8b", "infer", 3, [("NVIDIA H100", 80)] * 2, False, 7)
def test_a_first_plan_is_never_absurd_and_no_shown_plan_beats_another(
    name, task, count, kinds, nvlink, batch
):
    rows = [
        {
            "name": card,
            "free_bytes": giga * 10**9,
            "node": f"n{place}",
            "link_group": f"nv{place}" if nvlink else "",
            "network_bytes_per_second": 10e9,
        }
        for place, (card, giga) in enumerate(kinds)
        for _ in range(count)
    ]
    asked = Workload(task=task, batch=batch, sequence_length=512, precision="bf16")
    limits = PlanLimits(small_optimizer=False, quantization=False)
    found = plan(well_known_spec(name), asked, offers_from_list(rows), limits=limits)

    if found.best is None or found.best.absurd:
        assert found.advice
    else:
        assert not found.advice
        assert 1_000 * found.best.step_seconds < 7 * 86_400 or task == "infer"
    assert not beaten(found)
    assert [bool(one.absurd) for one in found.plans] == sorted(
        bool(one.absurd) for one in found.plans
    )


def test_a_short_step_that_is_faster_and_cheaper_comes_first():
    """The faster card's step counts as 0.05 s, and so as dearer than it is."""
    asked = Workload(sequence_length=384)
    rows = [
        {"name": "NVIDIA A100 80GB PCIe", "free_bytes": 80 * 10**9, "weight": 10},
        *[{"name": "NVIDIA GeForce RTX 3090", "free_bytes": 24 * 10**9, "weight": 4}]
        * 2,
    ]
    for number, row in enumerate(rows):
        rows[number] = {**row, "node": "a" if row["weight"] == 10 else "b"}
    found = plan(well_known_spec("gpt2"), asked, offers_from_list(rows))

    assert found.best.strategy == "single"
    assert found.best.step_seconds < 0.05
    assert not beaten(found)
    assert any("takes" in one.reason for one in found.refusals)
