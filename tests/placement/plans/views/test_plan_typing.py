"""The planning page while the user types: the closed form, objectives, comparison,
remedies.
"""

import re
import time
from datetime import timedelta

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone

from placement.jobs import job_broadcast
from placement.models import Refinement
from placement.planner.symbolic.case import Adapter
from placement.planner.values.errors import BadInput
from placement.planner.values.workload import Workload
from placement.plans import refinement
from placement.plans.consumers import adapter_of
from placement.plans.views import plan_page
from reservations.rules.lifecycle import State
from tests.factories import make_reservation
from tests.placement.plans.views.test_plan_page import FRAGMENT, error_of, typed

pytestmark = pytest.mark.django_db


@pytest.mark.once
def test_what_is_typed_is_answered_without_a_search(student, monkeypatch):
    def search(**_asked: object) -> None:
        raise AssertionError("the closed form alone")

    monkeypatch.setattr(plan_page, "make_plans", search)
    answer = student.post("/plan/now/", typed(batch="9"), headers=FRAGMENT)
    html = answer.content.decode()
    assert 'id="now-likely"' in html
    assert "NVIDIA GeForce RTX 3090" in html
    assert '"known": "gpt2"' in html
    html = student.post(
        "/plan/now/", typed(batch="x"), headers=FRAGMENT
    ).content.decode()
    assert "whole number" in error_of(html, "batch")
    assert "now-likely" not in html
    html = student.post("/plan/now/", typed(source="file")).content.decode()
    assert "now-likely" not in html and "Choose a file" in html
    data = typed(source="file", uploading="1")
    assert "Working" in student.post("/plan/now/", data).content.decode()


@pytest.mark.once
def test_the_top_card_is_about_the_model_that_was_uploaded(student):
    config = b'{"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4}'
    data = typed(source="file", upload=SimpleUploadedFile("config.json", config))
    page = student.post("/plan/", data, headers=FRAGMENT)
    html = page.content.decode()
    top = html[html.index('id="plan-now"') :]
    assert f"{page.context['spec'].parameter_count:,} parameters" in top
    assert "124,439,808" not in html
    assert f'"model": {page.context["model_id"]}' in top, (
        "the exact check is of it, too"
    )
    wrong = typed(source="file", upload=SimpleUploadedFile("config.json", b"{"))
    html = student.post("/plan/", wrong, headers=FRAGMENT).content.decode()
    top = html[html.index('id="plan-now"') :]
    assert "No estimate" in top and "now-likely" not in top


@pytest.mark.once
def test_the_live_answer_takes_few_queries_and_little_time(
    student, django_assert_max_num_queries
):
    student.post("/plan/now/", typed())
    took = []
    for batch in range(10, 17):
        with django_assert_max_num_queries(8):
            began = time.process_time()
            student.post("/plan/now/", typed(batch=str(batch), known="llama-3-8b"))
            took.append(time.process_time() - began)
    # CPU of the whole request, client and middleware included.
    assert sorted(took)[len(took) // 2] < 0.05


@pytest.mark.once
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lora_rank": "8", "known": "llama-3.2-1b"}, "trained"),
        ({"lora_rank": "8"}, "trained"),
        ({"weights": "nf4", "task": "infer"}, "There is no exact check for quantized"),
        ({"precision": "megatron_bf16"}, "megatron_bf16"),
        ({"offload": "cpu", "offload_parameters": "on"}, '"offload": "cpu"'),
        ({"offload": "nvme", "task": "infer"}, '"offload_parameters": true'),
    ],
)
def test_every_field_of_the_workload_reaches_the_estimate(student, change, words):
    plain = student.post("/plan/now/", typed()).content.decode()
    html = student.post("/plan/now/", typed(**change)).content.decode()
    assert words in html
    assert (
        re.search(r'data-bytes="(\d+)"', html)[1]
        != (re.search(r'data-bytes="(\d+)"', plain)[1])
    )


@pytest.mark.once
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"lora_rank": "8", "lora_targets": "nosuch"}, "lora_targets"),
        ({"precision": "megatron_bf16", "optimizer": "adafactor"}, "optimizer"),
        ({"weights": "nf4", "known": "no"}, "known"),
        ({"accumulation": "99"}, "accumulation"),
        ({"offload": "moon"}, "offload"),
        ({"wish": "cheaper"}, "wish"),
        ({"lora_rank": "-1"}, "lora_rank"),
    ],
)
def test_a_contradiction_is_named_at_its_field(student, change, field):
    html = student.post("/plan/now/", typed(**change)).content.decode()
    assert error_of(html, field)


@pytest.mark.once
def test_a_wish_changes_what_comes_first(student):
    def first(wish: str) -> str:
        html = student.post("/plan/", typed(wish=wish, batch="64"), headers=FRAGMENT)
        return re.findall(
            r'plan-card[^"]*" aria-label="([^"]+)"', html.content.decode()
        )[0]

    assert first("fewest") == "One GPU"
    assert first("fastest") != "One GPU"


@pytest.mark.once
def test_two_marked_plans_stand_side_by_side_on_the_page(student):
    asked = {"wish": "fewest", "batch": "64"}
    page = student.post("/plan/", typed(**asked), headers=FRAGMENT)
    one, other = [card.plan.strategy for card in page.context["cards"]][:2]
    data = typed(compare=[one, other], **asked)
    html = student.post("/plan/", data, headers=FRAGMENT).content.decode()
    assert 'id="compare"' in html and "times as fast" in html
    address = f"/plan/?wish=fewest&batch=64&compare={one}&compare={other}"
    assert 'id="compare"' in student.get(address).content.decode()
    assert (
        'id="compare"' not in student.get("/plan/?compare=x&compare=y").content.decode()
    )


@pytest.mark.once
def test_where_nothing_is_free_the_earliest_start_is_named(student, bob, gpus):
    now = timezone.now()
    end = now + timedelta(hours=6)
    make_reservation(bob, gpus, now, end, state=State.ACTIVE)
    page = student.post("/plan/", typed(), headers=FRAGMENT)
    start = page.context["window"].start
    assert start >= end and page.context["cards"]
    said = page.context["verdict"]
    assert said.startswith("No GPU is free now. Fits on one NVIDIA"), said
    assert f"{timezone.localtime(start):%H:%M}, about" in said
    soonest = student.post("/plan/", typed(wish="soonest"), headers=FRAGMENT)
    assert soonest.context["window"].start == start
    assert soonest.context["cards"]
    at = timezone.localtime(now + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M")
    asked = student.post("/plan/", typed(at=at), headers=FRAGMENT)
    assert not asked.context["cards"], "somebody who names a time gets that time"
    assert "Earliest start" in asked.content.decode()


@pytest.fixture
def crowded(gpus, bob):
    """The four large Gpus are booked for six hours; two small ones are free."""
    now = timezone.now()
    large = [gpu for gpu in gpus if gpu.node.name == "node-a"]
    return make_reservation(
        bob, large, now, now + timedelta(hours=6), state=State.ACTIVE
    )


LARGE = {"known": "llama-3-8b", "batch": "1"}


@pytest.mark.once
def test_the_headline_is_the_soonest_place_where_it_really_fits(student, crowded):
    page = student.post("/plan/", typed(**LARGE), headers=FRAGMENT)
    said, cards = page.context["verdict"], page.context["cards"]
    assert re.match(
        r"(Does not fit|No GPU is free).* now\. "
        r"Fits on .*A100.* from [^,]*\d\d:\d\d, about",
        said,
    ), said
    best = cards[0].plan
    assert min(shard.headroom_bytes for shard in best.shards) >= 0
    assert not best.launch["offload_optimizer"]
    assert page.context["window"].start >= crowded.end
    html = page.content.decode()
    assert "Why not now" in html and "booked by" in html
    answer = student.post("/plan/choose/", typed(choose=cards[0].key, **LARGE))
    start = timezone.localtime(page.context["window"].start)
    assert start.strftime("start=%Y-%m-%dT%H%%3A%M") in answer["Location"]


@pytest.mark.once
def test_nothing_that_lacks_room_is_said_to_fit(student, crowded):
    """A time typed by hand is kept, and the possible plans then are named correctly."""
    at = timezone.localtime(timezone.now() + timedelta(hours=1))
    data = typed(at=at.strftime("%Y-%m-%dT%H:%M"), **LARGE)
    page = student.post("/plan/", data, headers=FRAGMENT)
    for card in page.context["cards"]:
        room = min(shard.headroom_bytes for shard in card.plan.shards)
        assert ("too little" in card.headroom) == (room < 0)
    if page.context["cards"]:
        assert not page.context["verdict"].startswith("Fits"), page.context["verdict"]
    assert "\u22121" not in page.content.decode()


@pytest.mark.once
def test_an_offload_that_was_asked_for_is_an_answer(student, crowded):
    data = typed(offload="cpu", offload_parameters="on", **LARGE)
    page = student.post("/plan/", data, headers=FRAGMENT)
    assert page.context["cards"]
    assert page.context["verdict"].startswith("Fits on"), page.context["verdict"]


@pytest.mark.once
def test_what_would_make_it_fit_is_listed_with_the_bytes(student):
    data = typed(known="llama-3-8b", batch="64")
    html = student.post("/plan/", data, headers=FRAGMENT).content.decode()
    assert "How could it fit on one GPU?" in html
    assert re.search(r"saves [0-9.]+ GiB", html)
    html = student.post("/plan/", typed(), headers=FRAGMENT).content.decode()
    assert "It fits already" in html


@pytest.mark.once
def test_adapters_are_asked_for_and_refined_as_such(student, alice):
    data = typed(known="llama-3.2-1b", lora_rank="8")
    question = student.post("/plan/now/", data).context["question"]
    adapter = adapter_of(question)
    assert adapter == Adapter(rank=8, targets=("q_proj", "v_proj"))
    row, fresh = refinement.refine(
        user=alice,
        well_known=question["known"],
        model_id=None,
        workload=Workload.from_json(question["workload"]),
        adapter=adapter,
        now=timezone.now(),
    )
    assert fresh and row.case["adapter"]["rank"] == 8
    gpt2 = student.post("/plan/now/", typed(lora_rank="8")).context["question"]
    assert "c_attn" in gpt2["lora_targets"] and "lm_head" not in gpt2["lora_targets"]


@pytest.mark.parametrize(
    "asked",
    [
        {"lora_rank": -1},
        {"lora_rank": True},
        {"lora_rank": 2**40},
        {"lora_rank": 8},
        {"lora_rank": 8, "lora_targets": [1]},
        {"lora_rank": 8, "lora_targets": ["x"] * 999},
    ],
)
def test_nonsense_adapters_are_refused_by_field(asked):
    with pytest.raises(BadInput) as refused:
        adapter_of(asked)
    assert next(iter(refused.value.fields)).startswith("lora_")


def test_the_socket_tells_least_likely_and_most_of_a_refined_peak(alice):
    row = Refinement(key="k", state="done", answer={"peak_bytes": 10**9}, case={})
    told = job_broadcast.refinement_message(row)["refinement"]["interval"]
    assert told["low_bytes"] < told["likely_bytes"] < told["high_bytes"]
    assert (
        job_broadcast.refinement_message(Refinement(case={}))["refinement"]["interval"]
        is None
    )
