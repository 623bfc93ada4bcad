"""Cards that lack what a workload needs, and unknown cards."""

from dataclasses import replace

import pytest

from placement.planner.search.card_support import (
    cards_of,
    completed_workload,
    missing_support,
    workload_defaults,
)
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan
from placement.planner.search.step_time import flops_per_second
from placement.planner.values.calibration import OutcomeInfo, corrections_of
from placement.planner.values.errors import WorkloadInvalid
from placement.planner.values.workload import Workload
from telemetry.protocol.gpu_cards import card_of
from tests.placement.planner.made import make_offer, tiny

pytestmark = pytest.mark.pure


def card(index, name, **changes):
    return make_offer(index, name=name, gpu_class=name, **changes)


def test_bf16_and_flash_attention_are_refused_on_a_card_without_them():
    found = plan(tiny(), Workload(), [card(0, "Tesla T4"), card(1, "Tesla T4")])

    assert not found.plans
    assert [left.code for left in found.left_out] == ["unsupported"] * 2
    reason = found.left_out[0].reason
    assert "compute capability 7.5" in reason
    assert "no bf16 arithmetic" in reason
    assert "flash attention does not run on it" in reason
    assert found.notes == (f"Left out: {reason}",)


def test_fp16_with_efficient_attention_runs_on_it():
    workload = Workload(precision="autocast_fp16", attention="efficient")
    assert plan(tiny(), workload, [card(0, "Tesla T4")]).plans
    flash = plan(tiny(), workload.replace(attention="flash"), [card(0, "Tesla T4")])
    assert "bf16" not in flash.left_out[0].reason


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["Tesla T4"], {"precision": "autocast_fp16", "attention": "efficient"}),
        (["Tesla T4", "Tesla V100-SXM2-32GB"], {"precision", "attention"}),
        (["Tesla T4", "NVIDIA A30"], {}),
        (["Tesla T4", "Matrox G200"], {}),
        ([], {}),
    ],
)
def test_the_defaults_run_on_the_cards_that_there_are(names, expected):
    cards = [card_of(name) for name in names]
    found = workload_defaults(cards)
    assert (found if isinstance(expected, dict) else set(found)) == expected
    usual = Workload(**found)
    assert not cards or not all(missing_support(one, usual) for one in cards)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["NVIDIA A30"], {"precision": "bf16"}),
        ([], {"precision": "bf16"}),
        (["Tesla T4", "NVIDIA A30"], {"precision": "bf16"}),
        (["Tesla T4"], {"precision": "fp16", "attention": "efficient"}),
    ],
)
def test_inference_loads_its_weights_in_16_bits(names, expected):
    cards = [card_of(name) for name in names]
    assert workload_defaults(cards, Workload(task="infer")) == expected


def test_a_chosen_value_is_never_replaced():
    cards = [card_of("Tesla T4")]
    chosen = {"task": "infer", "precision": "autocast_bf16", "attention": "flash"}
    assert completed_workload(chosen, cards) == Workload(**chosen)
    lacking = completed_workload({"precision": "fp32"}, cards)
    assert (lacking.precision, lacking.attention) == ("fp32", "efficient")
    with pytest.raises(WorkloadInvalid):
        completed_workload({"precision": "fp64"}, cards)


def test_only_usable_cards_decide_the_defaults():
    old = card(0, "Tesla V100-SXM2-32GB")
    new = card(1, "NVIDIA A30", bookable=False, reason="booked")
    assert cards_of([old, new]) == [old.card]
    assert cards_of([new]) == [new.card], "with none usable all of them count"


def test_other_cards_are_used_instead():
    offers = [card(0, "Tesla V100-SXM2-32GB"), card(1, "NVIDIA A30")]
    found = plan(tiny(), Workload(), offers)
    assert {plan.gpu_uuids for plan in found.plans} == {(offers[1].uuid,)}


@pytest.mark.parametrize("name", ["Matrox G200", "NVIDIA A100 80GB"])
def test_a_card_that_nobody_knows_is_not_refused_and_says_so(name):
    found = plan(tiny(), Workload(), [card(0, name, peak_flops=60e12)])
    assert found.plans
    unknown = [note for note in found.notes if "is not in the table of cards" in note]
    assert bool(unknown) == (name == "Matrox G200")


def test_an_unknown_card_follows_what_was_measured_here():
    name = "Matrox G200"
    outcomes = [
        OutcomeInfo(
            strategy="single",
            gpu_class=name,
            prior_step_seconds=1.0,
            step_ratio=20.0,
            memory_ratio=None,
        )
    ] * 8
    learned = corrections_of(outcomes)
    offer = card(0, name, peak_flops=60e12)
    made, plain = plan(tiny(), Workload(), [offer], learned=learned), None
    plain = plan(tiny(), Workload(), [offer])

    assert made.plans[0].step_seconds == pytest.approx(20 * plain.plans[0].step_seconds)
    assert "follow the 8 runs measured here" in made.notes[0]
    # A known card cannot differ so much from its data sheet.
    known = corrections_of([replace(one, gpu_class="A100") for one in outcomes])
    assert known.by_class["A100"].ratio == 4.0


def test_fp32_runs_at_the_rate_of_the_cards_own_cores():
    ratios = []
    for name in ("NVIDIA GeForce RTX 3090", "NVIDIA A100-SXM4-80GB", "Matrox G200"):
        half, full = (
            flops_per_second(card(0, name), Workload(precision=precision))
            for precision in ("bf16", "fp32")
        )
        ratios.append(half / full)
    assert ratios == pytest.approx([71 / 35.6, 312 / 19.5, 8.0])


def test_accumulation_is_said_to_change_batch_norm():
    spec = replace(tiny(), batch_norms=3)
    workload = Workload(batch=8, accumulation=4)
    only_one = PlanLimits(max_gpus=1)
    found = plan(spec, workload, [make_offer()], limits=only_one)
    assert any(
        "each microbatch of 2 is normed" in note for note in found.plans[0].notes
    )
    whole = plan(
        spec, workload.replace(accumulation=1), [make_offer()], limits=only_one
    )
    assert not any("BatchNorm" in note for note in whole.plans[0].notes)
