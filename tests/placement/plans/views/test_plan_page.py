"""The planning page: sources, workload, times, pictures, and the way to a booking."""

import json
import re
from datetime import timedelta
from functools import partial
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.template.loader import render_to_string
from django.utils import timezone, translation

from placement.jobs.forms import PlanForm
from placement.models import Refinement, RegisteredModel, StoredPlan
from placement.planner.model.files.tensor_inventory import (
    TensorInfo,
    spec_from_inventory,
)
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.symbolic.followed_model import adapted_and_followed
from placement.planner.values.workload import Workload
from placement.plans import planned_model
from placement.plans.views import plan_page, plan_request
from reservations.booking.service import book
from reservations.rules.lifecycle import State
from telemetry.models import Gpu
from tests.factories import make_reservation
from tests.placement.lab import (
    onnx_bytes,
    safetensors_bytes,
    send_frame,
    signed_in,
)

pytestmark = pytest.mark.django_db
WORKLOAD = {
    "batch": 8,
    "sequence_length": 512,
    "precision": "autocast_bf16",
    "attention": "flash",
}
FRAGMENT = {"X-Fragment": "plan-result"}
GPT2_CONFIG = json.dumps({"model_type": "gpt2"}).encode()


def typed(**changes: object) -> dict[str, object]:
    """Return what a browser sends of the untouched form, with changes."""
    known: dict[str, object] = {
        "source": "known",
        "known": "gpt2",
        "task": "train",
        "optimizer": "adamw",
        "precision": "autocast_bf16",
        "batch": "8",
        "sequence_length": "512",
        "checkpointing": "none",
        "accumulation": "1",
        "attention": "flash",
        "hours": "4",
        "at": "",
        "max_gpus": "",
        "model": "",
        "reservation": "",
    }
    return known | changes


def file_of(name: str, content: bytes) -> dict[str, object]:
    return typed(source="file", upload=SimpleUploadedFile(name, content))


def error_of(html: str, field: str) -> str:
    found = re.search(rf'<p class="error" id="e-{field}"[^>]*>([^<]*)</p>', html)
    return found[1] if found else ""


def page_of(client, query: str = "") -> str:
    """Return the planning page for a query."""
    return client.get(f"/plan/?{query}").content.decode()


def choice_of(html: str, number: int = 0) -> str:
    return re.findall(r'name="choose" value="([^"]+)"', html)[number]


def test_the_names_of_objectives_are_translated():
    choice = {"field": PlanForm()["wish"], "label": ""}
    with translation.override("de"):
        html = render_to_string("placement/plans/_plan_select.html", choice)
    shown = re.findall(r"<option[^>]*>([^<]*)</option>", html)
    assert {"empfohlen", "am schnellsten", "frühester Start"} <= set(shown)


@pytest.mark.once
def test_the_page_opens_with_plans_for_the_gpus_as_they_are(student):
    answer = student.get("/plan/")
    html = answer.content.decode()
    assert answer.status_code == 200
    assert "Fits on one NVIDIA" in html
    assert "Book this GPU" in html
    assert "Layers in stages (pipeline, 1F1B)" in html
    assert "mem-parameters" in html and "mem-used" in html
    assert student.head("/plan/").status_code == 200


@pytest.mark.once
def test_a_site_of_old_cards_starts_with_what_they_can_run(student):
    now = student.post("/plan/now/", typed(precision="", attention="")).content.decode()
    assert "Precision: bf16 autocast. Attention: flash." in now
    infer = student.post("/plan/now/", typed(precision="", task="infer"))
    assert "Precision: pure bf16." in infer.content.decode()
    Gpu.objects.update(name="NVIDIA GeForce RTX 2080 Ti")
    html = page_of(student)
    assert "Precision: fp16 autocast. Attention: efficient." in html
    assert 'name="choose"' in html and "Left out" not in html
    asked = page_of(student, "precision=fp32")
    assert 'value="fp32" selected' in asked and "Precision: fp32." in asked


@pytest.mark.once
def test_only_the_cards_of_the_chosen_reservation_decide(student, alice, gpus):
    old = gpus[0]
    Gpu.objects.filter(pk=old.pk).update(name="Tesla T4")
    now = timezone.now()
    held = make_reservation(alice, [old], now, now + timedelta(hours=2))
    html = page_of(student, f"reservation={held.pk}")
    assert "Precision: fp16 autocast. Attention: efficient." in html
    for place, word in ((str(held.pk), "fp16"), ("", "bf16")):
        answer = student.post("/plan/now/", typed(precision="", reservation=place))
        assert f"Precision: {word} autocast." in answer.content.decode()


@pytest.mark.once
def test_the_address_fills_the_form_and_nonsense_in_it_is_named(student):
    html = student.get("/plan/?known=llama-3-8b&batch=3").content.decode()
    assert 'value="llama-3-8b" selected' in html
    assert 'id="id_batch"' in html and 'value="3"' in html
    for query in (
        "batch=-1&known=x&at=yesterday&hours=nan&source=file&task=%00&model=zz",
        "reservation=99999999999999999999999&max_gpus=9" + "9" * 400,
        "at=9999-12-31T23:59&hours=1e9",
        "at=0001-01-01T00:00",
        "%ff=%ff&precision[]=1",
    ):
        assert student.get(f"/plan/?{query}").status_code in (200, 422), query


def test_a_script_gets_the_result_alone_and_the_fields_errors(student):
    answer = student.post("/plan/", typed(batch="many"), headers=FRAGMENT)
    html = answer.content.decode()
    assert answer.status_code == 200
    assert "<html" not in html
    assert "whole number" in error_of(html, "batch")
    assert 'id="e-hours"></p>' in html
    assert "No plan yet" in html


@pytest.mark.once
def test_what_was_typed_stays_when_the_form_is_wrong(student):
    answer = student.post("/plan/", typed(batch="many", hours="7"))
    html = answer.content.decode()
    assert answer.status_code == 422
    assert 'value="many"' in html and 'value="7"' in html
    assert 'aria-invalid="true"' in html


@pytest.mark.once
def test_a_larger_batch_changes_the_result(student):
    def likely(batch: str) -> str:
        html = student.post(
            "/plan/", typed(batch=batch), headers=FRAGMENT
        ).content.decode()
        found = re.search(r"<strong>([0-9.]+ [GM]iB) likely", html)
        assert found
        return found[1]

    assert likely("8") != likely("64")


@pytest.mark.once
def test_a_batch_that_does_not_divide_offers_the_nearest_ones(student):
    """The batch of 7 is kept until the student chooses another one."""
    page = student.post("/plan/", typed(batch="7", max_gpus="4")).content.decode()
    assert "A batch of 7 does not divide among all of these GPUs. It is kept." in page
    links = re.findall(r'href="/plan/\?([^"]*)">batch of (\d+)</a>', page)
    assert [number for _, number in links] == ["4", "8"]
    chosen = student.get("/plan/?" + links[1][0].replace("&amp;", "&"))
    assert chosen.status_code == 200
    assert chosen.context["form"].data["batch"] == "8"
    assert chosen.context["batches"] == []


@pytest.mark.once
def test_inference_counts_the_cache_of_keys_and_values(student):
    html = student.post(
        "/plan/",
        typed(task="infer", known="llama-3.2-1b", sequence_length="4096"),
        headers=FRAGMENT,
    ).content.decode()
    assert "mem-kv_cache" in html
    assert "KV cache" in html
    assert "Optimizer states" not in html


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", GPT2_CONFIG, "124,439,808 parameters"),
        ("tiny.safetensors", safetensors_bytes(whole=True), "2,112 parameters"),
        ("header.safetensors", safetensors_bytes(whole=False), "2,112 parameters"),
        ("m.onnx", onnx_bytes(), "16 parameters"),
    ],
    ids=["config", "safetensors", "header", "onnx"],
)
def test_a_file_of_ones_own_is_read(student, alice, name, content, words):
    html = student.post(
        "/plan/", file_of(name, content), headers=FRAGMENT
    ).content.decode()
    assert words in html, error_of(html, "upload")
    row = RegisteredModel.objects.get(owner=alice)
    assert f'<option value="{row.pk}" selected>{name}</option>' in html
    again = student.post(
        "/plan/", typed(source="file", model=str(row.pk)), headers=FRAGMENT
    )
    assert words in again.content.decode()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", b"{]", "Expecting"),
        ("config.json", b'{"model_type": "llama", "hidden_size": -4}', "hidden_size"),
        ("config.json", b'{"model_type": "nosuch"}', "not a known family"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "b"}}', "no shapes"),
        ("m.safetensors", b"\xff" * 64, "says"),
        ("m.onnx", b"hello", "ONNX"),
        ("weights.bin", b"x", "the name must end in"),
        ("empty.json", b"", "empty"),
    ],
)
def test_a_bad_file_is_named_at_its_field(student, name, content, words):
    html = student.post(
        "/plan/", file_of(name, content), headers=FRAGMENT
    ).content.decode()
    assert words in error_of(html, "upload").replace("&#x27;", "'")
    assert not RegisteredModel.objects.exists()


@pytest.mark.once
def test_no_file_chosen_is_said_at_the_field(student):
    html = student.post(
        "/plan/", typed(source="file"), headers=FRAGMENT
    ).content.decode()
    assert "Choose a config.json" in error_of(html, "upload")


@pytest.mark.once
def test_somebody_elses_file_cannot_be_chosen(student, carol):
    row = RegisteredModel.objects.create(
        owner=carol, name="hers", source="config", sha256="0", spec={}
    )
    data = typed(source="file", model=str(row.pk))
    html = student.post("/plan/", data, headers=FRAGMENT).content.decode()
    assert "Choose one of the values in the list" in error_of(html, "model")


@pytest.mark.once
def test_uploads_are_counted_for_all_processes_together(
    student, monkeypatch, time_machine
):
    # Both uploads are in one minute of the clock.
    time_machine.move_to(timezone.now(), tick=False)
    monkeypatch.setattr(plan_request, "UPLOADS_PER_MINUTE", 1)
    data = {"headers": FRAGMENT}
    student.post("/plan/", file_of("config.json", GPT2_CONFIG), **data)
    html = student.post("/plan/", file_of("config.json", GPT2_CONFIG), **data)
    assert "the limit is 1 per minute" in error_of(html.content.decode(), "upload")


@pytest.mark.once
def test_booked_gpus_are_hatched_with_who_and_until_when(student, bob, gpus):
    now = timezone.now()
    make_reservation(bob, gpus[:1], now, now + timedelta(hours=9), state=State.ACTIVE)
    html = student.get("/plan/").content.decode()
    assert "booked by Bob until" in html
    assert "bar-booked" in html


@pytest.mark.once
def test_a_model_too_large_names_gpu_bytes_and_the_cheapest_change(
    alice, redis_client, gpus
):
    for gpu in gpus[:4]:
        gpu.maintenance = True
        gpu.save()
    send_frame(redis_client)
    html = (
        signed_in(alice)
        .post("/plan/", typed(known="llama-3-70b", max_gpus="1"), headers=FRAGMENT)
        .content.decode()
    )
    assert re.search(r"It does not fit. Nearest: One GPU, where node-b:\d lacks", html)
    assert re.search(r"[0-9.]+ GiB missing", html)
    assert "under maintenance" in html


@pytest.mark.once
def test_without_fresh_readings_nothing_is_offered_as_it_is_now(student, redis_client):
    redis_client.flushdb()
    html = student.get("/plan/").content.decode()
    assert "no fresh reading" in html
    assert "No GPU is free then" in html


def test_cards_without_bf16_are_left_out_with_the_reason(student, gpus):
    Gpu.objects.update(name="Tesla T4")
    html = student.post("/plan/", typed(), headers=FRAGMENT).content.decode()
    assert "No GPU that is free can run it as asked for." in html
    assert "Left out: Tesla T4, compute capability 7.5: it has no bf16" in html
    data = typed(precision="autocast_fp16", attention="efficient", max_gpus="1")
    html = student.post("/plan/", data, headers=FRAGMENT).content.decode()
    assert "Fits on one Tesla T4" in html


@pytest.mark.once
def test_old_readings_are_not_taken_for_fresh(alice, gpus, redis_client):
    send_frame(redis_client, at=timezone.now().timestamp() - 120)
    html = signed_in(alice).get("/plan/").content.decode()
    assert "no fresh reading" in html


@pytest.mark.once
def test_at_a_chosen_time_what_runs_now_does_not_count(student, redis_client, gpus):
    send_frame(redis_client, {number: 23_000 for number in range(6)})
    later = timezone.localtime(timezone.now() + timedelta(days=2))
    data = typed(at=later.strftime("%Y-%m-%dT%H:%M"), max_gpus="1")
    html = student.post("/plan/", data, headers=FRAGMENT).content.decode()
    assert "with what runs on the GPUs now" not in html
    assert "24.0 GiB free of 24.0 GiB" in html


@pytest.mark.once
def test_without_torch_the_page_says_what_it_cannot_do(student, monkeypatch):
    assert "PyTorch is not installed" not in student.get("/plan/").content.decode()
    monkeypatch.setattr(plan_page, "torch_installed", lambda: False)
    html = student.get("/plan/").content.decode()
    assert "PyTorch is not installed on this host" in html
    assert "Fits on one" in html


@pytest.mark.once
def test_a_chosen_plan_leads_to_a_booking_that_the_calendar_accepts(
    student, alice, gpus
):
    html = student.get("/plan/").content.decode()
    answer = student.post("/plan/choose/", typed(choose=choice_of(html)))
    assert answer.status_code == 302
    address = urlsplit(answer["Location"])
    assert address.path == "/calendar/"
    asked = {name: values[0] for name, values in parse_qs(address.query).items()}
    stored = StoredPlan.objects.get(owner=alice)
    assert asked["plan"] == str(stored.pk)
    assert asked["purpose"].startswith("gpt2: One GPU")
    page = student.get(answer["Location"])
    draft = page.context["config"]["draft"]
    assert page.context["notices"] == []
    zone = timezone.get_current_timezone()
    start, end = (
        timezone.datetime.fromisoformat(draft[edge]).replace(tzinfo=zone)
        for edge in ("start", "end")
    )
    made = book(
        user=alice,
        membership=None,
        gpu_ids=draft["gpu_ids"],
        start=start,
        end=end,
        purpose=draft["purpose"],
        now=timezone.now(),
    )
    assert made.state == State.ACTIVE
    launch = student.get(f"/jobs/new/?reservation={made.pk}&plan={stored.pk}")
    assert "With the plan" in launch.content.decode()


@pytest.mark.once
def test_a_later_booking_lies_on_the_calendars_grid(student, alice):
    soon = timezone.localtime(timezone.now() + timedelta(hours=30)).replace(minute=7)
    data = typed(at=soon.strftime("%Y-%m-%dT%H:%M"), hours="2")
    html = student.post("/plan/", data, headers=FRAGMENT).content.decode()
    answer = student.post("/plan/choose/", data | {"choose": choice_of(html)})
    draft = student.get(answer["Location"]).context["config"]["draft"]
    zone = timezone.get_current_timezone()
    start, end = (
        timezone.datetime.fromisoformat(draft[edge]).replace(tzinfo=zone)
        for edge in ("start", "end")
    )
    made = book(
        user=alice,
        membership=None,
        gpu_ids=draft["gpu_ids"],
        start=start,
        end=end,
        now=timezone.now(),
    )
    assert made.state == State.CONFIRMED


@pytest.mark.once
def test_a_plan_in_ones_own_running_reservation_leads_to_the_job(student, alice, gpus):
    now = timezone.now()
    mine = make_reservation(
        alice, gpus[4:], now, now + timedelta(hours=3), state=State.ACTIVE
    )
    data = typed(reservation=str(mine.pk))
    html = student.post("/plan/", data, headers=FRAGMENT).content.decode()
    assert f"Run in reservation {mine.pk}" in html
    assert "node-a:0" not in html
    answer = student.post("/plan/choose/", data | {"choose": choice_of(html)})
    plan = StoredPlan.objects.get()
    assert answer["Location"] == f"/jobs/new/?reservation={mine.pk}&plan={plan.pk}"


@pytest.mark.once
def test_a_plan_whose_place_another_one_took_meanwhile_can_still_be_booked(
    student, alice, monkeypatch
):
    """Between two readings of the GPUs the better of two near equals may change."""
    wish = typed(wish="fastest")
    best = student.post("/plan/", wish, headers=FRAGMENT).content.decode()
    everything = partial(plan_page.make_plans, limits=PlanLimits(beaten_too=True))
    with monkeypatch.context() as patched:
        patched.setattr(plan_page, "make_plans", everything)
        page = student.post("/plan/", wish, headers=FRAGMENT).content.decode()
    earlier = re.search(r'name="choose" value="(ddp\|[^"]+)"', page)
    assert earlier is not None
    assert earlier[1] not in best, "the page shows a better plan in its place"
    answer = student.post("/plan/choose/", wish | {"choose": earlier[1]})
    assert answer.status_code == 302
    assert StoredPlan.objects.get(owner=alice).plan["strategy"] == "ddp"


@pytest.mark.once
@pytest.mark.parametrize("key", ["", "zero1", "zero1|none", "hoax|GPU-a", "|"])
def test_a_key_of_no_plan_is_refused(student, key):
    answer = student.post("/plan/choose/", typed(choose=key))
    assert answer.status_code == 409
    assert not StoredPlan.objects.exists()


def test_a_plan_that_no_longer_fits_is_not_kept(student, gpus, bob):
    html = student.get("/plan/").content.decode()
    chosen = choice_of(html)
    now = timezone.now()
    make_reservation(bob, gpus, now, now + timedelta(hours=9), state=State.ACTIVE)
    answer = student.post("/plan/choose/", typed(choose=chosen))
    assert answer.status_code == 409
    assert "no longer fits" in answer.content.decode()
    assert not StoredPlan.objects.exists()
    assert student.get("/plan/choose/").status_code == 405


@pytest.mark.once
def test_a_reservation_that_is_over_or_anothers_cannot_be_chosen(student, bob, gpus):
    now = timezone.now()
    his = make_reservation(bob, gpus[:1], now, now + timedelta(hours=1))
    html = student.post("/plan/", typed(reservation=str(his.pk)), headers=FRAGMENT)
    assert "Choose one of the values in the list" in error_of(
        html.content.decode(), "reservation"
    )


@pytest.mark.once
def test_the_page_asks_the_database_no_more_for_more_gpus(
    student, alice, gpus, redis_client, django_assert_max_num_queries
):
    with django_assert_max_num_queries(28):
        student.get("/plan/")


def test_an_unknown_family_is_planned_with_the_operations_of_its_code(
    student, alice, monkeypatch
):
    """As by the command. Until a worker has followed the code, the page says so."""
    sent = []
    monkeypatch.setattr(planned_model.refine, "delay", sent.append)
    shapes = [TensorInfo(f"layers.{n}.weight", (512, 512), "fp32") for n in range(4)]
    spec = spec_from_inventory(shapes, name="x", source="config.json")
    model = RegisteredModel.objects.create(
        owner=alice, name="x", spec=spec.to_json() | {"config": {"model_type": "xlnet"}}
    )
    asked = typed(source="file", model=str(model.pk))
    html = student.post("/plan/", asked, headers=FRAGMENT).content.decode()
    row = Refinement.objects.get()
    assert sent == [row.pk]
    assert "data-followed-now" in html and "code now; the next plan uses" in html
    answer = {"peak_bytes": 9 * 2**30, "forward_flops": 10**15}
    Refinement.objects.update(state="done", answer=answer)
    html = student.post("/plan/", asked, headers=FRAGMENT).content.decode()
    assert "data-followed-now" not in html and "own code needs 9.0 GiB" in html
    body = {"model_id": model.pk, "workload": WORKLOAD}
    answer = student.post("/api/v1/plans", body, content_type="application/json")
    expected = adapted_and_followed(
        spec,
        {"config": {}},
        Workload(**WORKLOAD),
        follow=lambda _: Refinement.objects.get().answer,
    )
    assert expected.flops_ratio > 100
    assert answer.json()["spec"]["notes"] == list(expected.notes)
    assert Refinement.objects.count() == 1 and sent == [row.pk]
