"""The form that launches a Job: errors by field, in words, and nothing typed is
lost.
"""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from placement.jobs import service as jobs
from placement.models import Job
from placement.planner.model.adaptation import target_names, with_lora
from placement.planner.model.spec import ModelSpec
from placement.planner.values.strategies import STRATEGIES, TITLES
from reservations.rules.lifecycle import State
from telemetry.models import Node
from tests.factories import make_gpu, make_gpus, make_node, make_reservation
from tests.placement.lab import make_lab, plan_on, send_frame, signed_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def reservation(alice):
    return make_reservation(
        alice, make_gpus(2, make_node("node-a")), state=State.ACTIVE
    )


@pytest.fixture
def student(alice) -> Client:
    return signed_in(alice)


def text_of(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200, (address, answer.status_code)
    return answer.content.decode()


def launching(booked, /, **changes: object) -> dict[str, object]:
    known: dict[str, object] = {
        "reservation": booked.pk,
        "name": "try it",
        "what": "burn-in",
        "burn-in.seconds": "30",
    }
    return known | changes


def test_without_a_reservation_the_form_says_where_to_get_one(student):
    assert "Find a slot" in text_of(student, "/jobs/new/")


@pytest.mark.once
def test_a_recipe_is_launched_with_its_settings(student, reservation):
    answer = student.post("/jobs/new/", launching(reservation))
    job = Job.objects.get()
    assert answer["Location"] == f"/jobs/{job.pk}/"
    assert (job.name, job.recipe, job.recipe_settings["seconds"]) == (
        "try it",
        "burn-in",
        30.0,
    )


def test_a_sweep_is_one_row_that_opens_and_can_be_stopped(student, bob, reservation):
    given = launching(reservation, sweep="seconds = 5, 10\nexit_code = 0, 1")
    answer = student.post("/jobs/new/", given)
    first, *_, last = Job.objects.order_by("array_index")
    assert answer["Location"] == f"/jobs/?array={first.array_id}"
    assert last.parameters == {"seconds": 10, "exit_code": 1}
    rows = text_of(student, "/jobs/")
    assert "4 jobs" in rows and f'href="/jobs/{last.pk}/"' in rows
    assert rows.count("<tr>") == 2, "the head, and one row for the array"
    assert "seconds=10 exit_code=1" in text_of(student, answer["Location"])
    assert signed_in(bob).post(f"/jobs/arrays/{first.array_id}/stop").status_code == 404
    student.post(f"/jobs/arrays/{first.array_id}/stop")
    assert set(Job.objects.values_list("state", flat=True)) == {"stopped"}


@pytest.mark.once
def test_a_job_is_run_again_with_what_it_was_and_goes_on_from_it(student, reservation):
    chosen = {"gpu_count": "1", "retries": "2", "retry_failed": "on"}
    student.post("/jobs/new/", launching(reservation, **chosen))
    first = Job.objects.get()
    assert (first.retries, first.retry_failed) == (2, True)
    Job.objects.update(state="done", ended_at=timezone.now())
    assert f"/jobs/new/?again={first.pk}" in text_of(student, f"/jobs/{first.pk}/")
    page = text_of(student, f"/jobs/new/?again={first.pk}")
    assert 'name="retry_failed" checked' in page
    assert 'name="burn-in.seconds" id="id_burn-in.seconds"' in page
    assert 'value="30.0"' in page and "Continue from the checkpoint of job" in page
    ticked = 'name="resume_from" value="{}" checked'
    assert ticked.format(first.pk) not in page, "what is done has nothing left to do"
    again = launching(reservation, resume_from=first.pk)
    student.post("/jobs/new/", again)
    second = Job.objects.get(resume_from=first)
    assert second.retries == 0
    answer = student.post("/jobs/new/", again)
    assert answer.status_code == 422 and b"resumed from it already" in answer.content
    jobs.stop(job_id=second.pk, user=second.owner, now=timezone.now())
    page = text_of(student, f"/jobs/new/?again={second.pk}")
    assert ticked.format(second.pk) in page
    assert student.get("/jobs/new/?again=999999").status_code == 200


@pytest.mark.once
def test_a_job_waits_for_another_one_by_its_number(student, alice, reservation):
    student.post("/jobs/new/", launching(reservation))
    first = Job.objects.get()
    answer = student.post("/jobs/new/", launching(reservation, after=first.pk))
    page = text_of(student, answer["Location"])
    assert f'begins after <a href="/jobs/{first.pk}/">job {first.pk}</a>' in page
    assert f"Waits until job {first.pk} is done." in page
    assert f"waits until job {first.pk} is done" in text_of(student, "/jobs/")
    for wrong, words in ((999_999, "there is no job #999999"), ("x", "whole number")):
        answer = student.post("/jobs/new/", launching(reservation, after=wrong))
        assert answer.status_code == 422 and words in answer.content.decode()
    assert Job.objects.count() == 2


@pytest.mark.once
def test_a_wrong_sweep_is_said_at_its_field_and_launches_nothing(student, reservation):
    answer = student.post("/jobs/new/", launching(reservation, sweep="seconds 5"))
    page = answer.content.decode()
    assert answer.status_code == 422 and "line 1 has no &#x27;=&#x27;" in page
    assert "seconds 5</textarea>" in page and not Job.objects.exists()
    answer = student.post("/jobs/new/", launching(reservation, sweep="seconds = 5, x"))
    assert answer.context["form"].errors == {"sweep": ["seconds = x: must be a number"]}
    assert not Job.objects.exists()


@pytest.mark.once
def test_a_bad_setting_is_named_at_its_field_and_stays_typed(student, reservation):
    answer = student.post(
        "/jobs/new/",
        launching(reservation, **{"burn-in.seconds": "many", "name": "kept"}),
    )
    html = answer.content.decode()
    assert answer.status_code == 422
    assert 'id="e-burn-in.seconds">must be a number' in html
    assert 'value="many"' in html and 'value="kept"' in html
    assert not Job.objects.exists()


@pytest.mark.once
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": " "}, "Give the job a name"),
        ({"what": "nosuch"}, "Choose one of the values"),
        ({"reservation": "999999"}, "Choose one of the values"),
        ({"what": "script", "script": "  "}, "Paste the script"),
        ({"what": "script", "script": "ls", "arguments": "'"}, "cannot be split"),
        ({"plan": "424242"}, "This plan does not exist"),
        ({"plan": "x"}, "whole number"),
        ({"retry_failed": "on"}, "needs at least one restart"),
        ({"retries": "6"}, "must be a whole number from 0 to 5"),
        ({"name": "a\x07b"}, "printable"),
    ],
)
def test_what_is_wrong_is_said_by_field(student, reservation, changes, words):
    answer = student.post("/jobs/new/", launching(reservation, **changes))
    assert answer.status_code == 422
    assert words in answer.content.decode()
    assert not Job.objects.exists()


@pytest.mark.once
def test_a_script_is_refused_in_words_where_jobs_are_not_isolated(
    student, reservation, settings
):
    settings.ALLOW_UNISOLATED_SCRIPTS = False
    data = launching(reservation, what="script", script="echo hi", arguments="a 'b c'")
    answer = student.post("/jobs/new/", data)
    html = answer.content.decode()
    assert answer.status_code == 422
    assert "not isolated" in html and "echo hi" in html and "a &#x27;b c&#x27;" in html
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    assert student.post("/jobs/new/", data).status_code == 302
    assert Job.objects.get().arguments == ["a", "b c"]


@pytest.mark.once
def test_a_model_of_ones_own_is_refused_in_words_where_scripts_are(
    student, reservation, settings
):
    settings.ALLOW_UNISOLATED_SCRIPTS = False
    html = text_of(student, "/jobs/new/")
    assert "on one or more GPUs. Switched off on all nodes" in html
    data = launching(reservation, what="own-model", **{"own-model.folder": "/srv/me"})
    refused = student.post("/jobs/new/", data)
    assert refused.status_code == 422
    assert "not isolated" in refused.content.decode()
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    assert student.post("/jobs/new/", data).status_code == 302
    assert Job.objects.get().recipe_settings["folder"] == "/srv/me"


@pytest.mark.once
def test_a_fine_tune_is_launched_and_its_fields_are_marked(
    student, alice, reservation, settings
):
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    data = launching(reservation, what="fine-tune", **{"fine-tune.data": "rows.txt"})
    page = student.post("/jobs/new/", data)
    html = page.content.decode()
    assert page.status_code == 422
    assert "absolute path of the model&#x27;s folder" in html
    assert "file on the node that ends with .txt, .jsonl, .parquet" in html
    data |= {"fine-tune.data": "/srv/rows.txt", "fine-tune.model": "org/tiny"}
    assert student.post("/jobs/new/", data).status_code == 302
    job = Job.objects.get()
    assert job.recipe_settings["model"] == "org/tiny"
    # Another recipe's model has nothing to do with it.
    html = text_of(student, f"/jobs/new/?again={job.pk}")
    assert 'name="fine-tune.model"' in html and 'value="org/tiny"' in html
    assert 'value="train:model"' in html


@pytest.mark.once
def test_a_plan_with_adapters_fills_in_their_rank_and_layers(
    student, alice, redis_client, settings
):
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    make_lab()
    send_frame(redis_client)
    stored = plan_on(alice, "single")
    whole = ModelSpec.from_json(stored.spec)
    name = target_names(whole)[0]
    stored.spec = with_lora(whole, rank=24, targets=[name]).to_json()
    stored.save()
    html = text_of(student, f"/jobs/new/?plan={stored.pk}")
    assert 'value="fine-tune" checked' in html
    for setting, value in (("lora_rank", 24), ("lora_targets", name)):
        field = html.partition(f'name="fine-tune.{setting}"')[2].partition(">")[0]
        assert f'value="{value}"' in field
    assert "pre-train.lora_rank" not in html and "pre-train.seq" in html


@pytest.mark.once
def test_where_gpus_are_on_several_nodes_one_is_chosen(student, alice):
    gpus = [make_gpu(make_node("red")), make_gpu(make_node("blue"))]
    both = make_reservation(alice, gpus, state=State.ACTIVE)
    html = text_of(student, "/jobs/new/")
    assert 'value="red"' in html and 'value="blue"' in html
    refused = student.post("/jobs/new/", launching(both))
    assert "Choose the node" in refused.content.decode()
    student.post("/jobs/new/", launching(both, node="blue"))
    assert Job.objects.get().node == Node.objects.get(name="blue")


@pytest.mark.once
def test_a_plan_fills_the_form_and_must_fit_the_reservation(
    student, alice, redis_client
):
    gpus = make_lab()
    send_frame(redis_client)
    stored = plan_on(alice, "single")
    label = stored.plan["shards"][0]["gpu_label"]
    held = [gpu for gpu in gpus if str(gpu) == label]
    others = [gpu for gpu in gpus if str(gpu) != label][:1]
    right = make_reservation(alice, held, state=State.ACTIVE)
    wrong = make_reservation(alice, others, state=State.ACTIVE)
    html = text_of(student, f"/jobs/new/?reservation={right.pk}&plan={stored.pk}")
    assert "gpt2: One GPU" in html
    planned = stored.plan["shards"][0]["likely_bytes"] / 2**30
    assert f'value="{round(planned, 2)}"' in html
    data = launching(wrong, what="tiny-transformer", plan=str(stored.pk))
    refused = student.post("/jobs/new/", data)
    assert f"The plan is for {label}" in refused.content.decode()
    student.post("/jobs/new/", data | {"reservation": right.pk})
    job = Job.objects.get()
    assert (job.plan, job.recipe_settings["strategy"]) == (stored, "single")


@pytest.mark.once
def test_a_plan_that_no_recipe_runs_is_refused_in_words(student, alice, redis_client):
    gpus = make_lab()
    send_frame(redis_client)
    stored = plan_on(alice, "fsdp")
    stored.plan["launch"]["precision"] = "mixed_fp16"
    stored.save()
    booked = make_reservation(alice, gpus, state=State.ACTIVE)
    html = text_of(student, f"/jobs/new/?reservation={booked.pk}&plan={stored.pk}")
    assert "No ready-made recipe runs this plan: the recipe runs precision" in html
    data = launching(
        booked, what="tiny-transformer", plan=str(stored.pk), node=stored.plan["node"]
    )
    answer = student.post("/jobs/new/", data)
    assert "not mixed_fp16" in answer.content.decode()
    assert "The next best plan that it can run is: " in answer.content.decode()
    assert not Job.objects.exists()


@pytest.mark.once
def test_where_a_model_cannot_be_cut_the_next_best_plan_is_one_press_away(
    student, alice, redis_client, settings
):
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    gpus = make_lab()
    send_frame(redis_client)
    stored = plan_on(alice, "pipeline", "bloom")
    booked = make_reservation(alice, gpus, state=State.ACTIVE)
    files = {"fine-tune.model": "org/tiny", "fine-tune.data": "/srv/rows.txt"}
    data = launching(booked, what="fine-tune", plan=str(stored.pk), **files)
    refused = student.post("/jobs/new/", data)
    html = refused.content.decode()
    assert refused.status_code == 422 and not Job.objects.exists()
    assert "cannot cut models of the family bloom into stages" in html
    button = html.partition('name="strategy" value="')[2]
    strategy, title = button.partition('"')[0], button.partition("Launch with this")[2]
    assert f"that it can run is: {TITLES[strategy]}" in html
    assert title.startswith(f" plan: {TITLES[strategy]}")
    assert STRATEGIES[strategy].keeps_model_whole
    # The press sends the form again with the name of the button.
    assert student.post("/jobs/new/", data | {"strategy": strategy}).status_code == 302
    job = Job.objects.get()
    assert job.recipe_settings["strategy"] == strategy
    assert job.plan.pk != stored.pk and job.plan.plan["strategy"] == strategy
    assert {one["gpu_uuid"] for one in job.plan.plan["shards"]} <= {
        gpu.uuid for gpu in gpus
    }
    gone = student.post("/jobs/new/", data | {"strategy": "hsdp"})
    assert gone.status_code == 422
    assert "no plan of strategy hsdp" in gone.content.decode()
    stored.delete()
    assert student.post("/jobs/new/", data | {"strategy": "fsdp"}).status_code == 422


@pytest.mark.once
def test_a_pipeline_plan_is_launched_with_a_model_that_can_be_cut(
    student, alice, redis_client
):
    gpus = make_lab()
    send_frame(redis_client)
    stored = plan_on(alice, "pipeline")
    booked = make_reservation(alice, gpus, state=State.ACTIVE)
    html = text_of(student, f"/jobs/new/?reservation={booked.pk}&plan={stored.pk}")
    assert "No ready recipe runs" not in html
    data = launching(booked, what="tiny-transformer", plan=str(stored.pk))
    other = "node-a" if stored.plan["node"] == "node-b" else "node-b"
    assert student.post("/jobs/new/", data | {"node": other}).status_code == 422
    assert student.post("/jobs/new/", data).status_code == 302
    job = Job.objects.get()
    assert job.recipe_settings["strategy"] == "pipeline"
    assert job.node.name == stored.plan["node"]


def test_deepspeed_is_chosen_where_it_is_installed_and_refused_at_its_field(
    student, alice, redis_client
):
    gpus = make_lab()
    send_frame(redis_client)
    stored = plan_on(alice, "fsdp")
    stored.plan["launch"]["precision"] = "fp32"
    stored.save()
    booked = make_reservation(alice, gpus, state=State.ACTIVE)
    data = launching(
        booked,
        what="tiny-transformer",
        node=stored.plan["node"],
        **{"tiny-transformer.backend": "deepspeed"},
    )
    html = student.post("/jobs/new/", data).content.decode()
    at_field = 'id="e-tiny-transformer.backend">'
    assert f"{at_field}deepspeed needs a plan" in html
    assert "A setting of the recipe has a wrong value" in html
    data |= {"plan": str(stored.pk)}
    html = student.post("/jobs/new/", data).content.decode()
    assert f"{at_field}deepspeed is not installed on {stored.plan['node']}" in html
    chosen = '<option value="deepspeed" selected>deepspeed'
    assert chosen in html and not Job.objects.exists()
    given = {
        "reservation": booked.pk,
        "name": "by the API",
        "kind": "recipe",
        "recipe": "tiny-transformer",
        "recipe_settings": {"backend": "deepspeed"},
        "plan": stored.pk,
    }
    refused = student.post("/api/v1/jobs", given, content_type="application/json")
    assert refused.status_code == 422
    assert "recipe_settings.backend" in refused.json()["fields"]
    Node.objects.update(extras=["deepspeed"])
    assert student.post("/jobs/new/", data).status_code == 302
    assert Job.objects.get().recipe_settings["backend"] == "deepspeed"


def test_a_reservation_that_is_over_cannot_be_launched_into(student, alice):
    over = make_reservation(
        alice, start=timezone.now() - timedelta(hours=2), state=State.ENDED
    )
    answer = student.post("/jobs/new/", launching(over))
    assert answer.status_code == 200 or answer.status_code == 422
    assert not Job.objects.exists()


@pytest.mark.once
@pytest.mark.parametrize(
    "query", ["plan=²", "plan=-1", "reservation=%00&plan=" + "9" * 30]
)
def test_a_nonsense_address_of_the_form_is_no_crash(student, reservation, query):
    assert student.get(f"/jobs/new/?{query}").status_code == 200


@pytest.mark.once
def test_a_job_is_run_again_in_its_reservation_or_where_it_begins_first(
    student, alice, reservation
):
    now = timezone.now()
    node = make_node("node-b")
    student.post("/jobs/new/", launching(reservation))
    first = Job.objects.get()
    early = make_reservation(
        alice,
        make_gpus(1, node),
        now - timedelta(hours=5),
        now + timedelta(hours=9),
        state=State.ACTIVE,
    )
    page = student.get(f"/jobs/new/?again={first.pk}")
    assert page.context["form"]["reservation"].value() == reservation.pk
    reservation.state = State.ENDED
    reservation.save()
    soon = make_reservation(
        alice, make_gpus(1, node), now + timedelta(hours=1), now + timedelta(hours=2)
    )
    page = student.get(f"/jobs/new/?again={first.pk}")
    assert page.context["form"]["reservation"].value() == early.pk
    student.post("/jobs/new/", launching(early))
    page = student.get(f"/jobs/new/?again={first.pk}")
    assert page.context["form"]["reservation"].value() == soon.pk, "the other is busy"


def test_another_recipe_does_not_go_on_from_the_job_before(student, reservation):
    student.post("/jobs/new/", launching(reservation))
    first = Job.objects.get()
    Job.objects.update(state="failed", ended_at=timezone.now())
    page = text_of(student, f"/jobs/new/?again={first.pk}")
    assert 'data-what="burn-in"' in page
    changed = launching(reservation, what="tiny-transformer", resume_from=first.pk)
    answer = student.post("/jobs/new/", changed)
    assert answer.status_code == 302, answer.context["form"].errors
    second = Job.objects.exclude(pk=first.pk).get()
    assert second.resume_from is None
    assert "It continues" not in text_of(student, f"/jobs/{second.pk}/")


@pytest.mark.once
def test_a_queued_job_says_what_it_waits_for_on_list_page_and_api(student, alice):
    now = timezone.now()
    gpus = make_gpus(1, make_node("node-b"))
    later = make_reservation(
        alice, gpus, now + timedelta(hours=30), now + timedelta(hours=31)
    )
    student.post("/jobs/new/", launching(later))
    job = Job.objects.get()
    said = f"waits for reservation {later.pk}, which begins "
    assert said in text_of(student, "/jobs/")
    assert said.capitalize() in text_of(student, f"/jobs/{job.pk}/")
    assert said in student.get(f"/api/v1/jobs/{job.pk}").json()["waits"]
    Job.objects.update(state="running")
    assert student.get(f"/api/v1/jobs/{job.pk}").json()["waits"] == ""


@pytest.mark.once
def test_own_code_that_no_node_runs_is_disabled_in_advance(
    student, alice, reservation, settings
):
    disabled = 'value="script" disabled'
    page = text_of(student, "/jobs/new/")
    assert disabled in page and 'value="own-model" disabled' in page
    assert "Ask the lab admin to switch on job isolation." in page
    Node.objects.update(isolation=Node.Isolation.WATCHED)
    page = text_of(student, "/jobs/new/")
    assert disabled in page and "Ask the lab admin to enter yours." in page
    alice.unix_user = "alice"
    alice.save()
    assert disabled not in text_of(student, "/jobs/new/")
    Node.objects.update(isolation=Node.Isolation.NONE)
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    assert disabled not in text_of(student, "/jobs/new/")


@pytest.mark.once
def test_heads_that_do_not_divide_the_width_are_refused_at_the_field(
    student, reservation
):
    given = {"tiny-transformer.heads": "7", "tiny-transformer.hidden": "64"}
    answer = student.post(
        "/jobs/new/", launching(reservation, what="tiny-transformer", **given)
    )
    assert 'id="e-tiny-transformer.heads">must divide' in answer.content.decode()
    many = {"tiny-transformer.steps": "100000000"}
    answer = student.post(
        "/jobs/new/", launching(reservation, what="tiny-transformer", **many)
    )
    assert "must be 1 to 10,000,000" in answer.content.decode()
