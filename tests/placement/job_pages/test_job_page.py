"""The pages of Jobs: who sees them, what they say, what they refuse."""

import csv
import hashlib
import io
from datetime import timedelta
from functools import partial

import pytest
from django.test import Client
from django.utils import timezone
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from placement.job_pages.job_page import failure_of
from placement.jobs.nodes import log_store, result_files, run_curves
from placement.models import Job, JobEvent, PlanOutcome, ResultFile
from placement.plans import plan_outcome
from placement.protocol.job_lifecycle import KEPT_DAYS, JobState
from placement.rules.event_file import ReadBudget
from reservations.models import Membership, SitePolicy
from reservations.rules.lifecycle import State
from tests.factories import (
    make_gpu,
    make_gpus,
    make_membership,
    make_node,
    make_reservation,
    make_user,
)
from tests.placement.lab import make_lab, plan_on, send_frame, signed_in

pytestmark = pytest.mark.django_db
PAGES = ("", "state", "log", "numbers", "gpus", "log.txt")


@pytest.fixture
def reservation(alice):
    return make_reservation(
        alice, make_gpus(2, make_node("node-a")), state=State.ACTIVE
    )


@pytest.fixture
def job(reservation):
    return make_job(reservation)


@pytest.fixture
def student(alice) -> Client:
    return signed_in(alice)


def make_job(reservation, **fields: object) -> Job:
    """Write a running Job of a Reservation, with its events."""
    now = timezone.now()
    known: dict[str, object] = {
        "owner": reservation.user,
        "name": "first run",
        "kind": Job.Kind.RECIPE,
        "recipe": "burn-in",
        "state": JobState.RUNNING,
        "attempt": 1,
        "node": reservation.allocations.first().gpu.node,
        "started_at": now,
        "seen_at": now,
    }
    made = Job.objects.create(reservation=reservation, **known | fields)
    for old, new in (("", "queued"), ("queued", "starting"), ("starting", "running")):
        JobEvent.objects.create(job=made, old=old, new=new, actor="node-a")
    return made


def failed(reservation, **fields: object) -> Job:
    now = timezone.now()
    return make_job(reservation, state=JobState.FAILED, ended_at=now, **fields)


def text_of(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200, (address, answer.status_code)
    return answer.content.decode()


# --- who sees what ----------------------------------------------------------------


@pytest.mark.once
def test_a_job_is_its_owners_its_heads_and_the_operators(job, alice, bob, carol, omar):
    head = make_user("heidi")
    make_membership(head, "vision", is_head=True)
    for user, status in (
        (alice, 200),
        (bob, 404),
        (carol, 404),
        (head, 200),
        (omar, 200),
    ):
        client = signed_in(user)
        for page in PAGES:
            answer = client.get(f"/jobs/{job.pk}/{page}")
            assert answer.status_code == status, (user, page)
        assert ("first run" in text_of(client, "/jobs/")) == (status == 200), user


def test_a_former_head_sees_no_more_than_others(job):
    head = make_user("heidi")
    make_membership(head, "vision", is_head=True)
    Membership.objects.filter(user=head).update(active=False)
    assert signed_in(head).get(f"/jobs/{job.pk}/").status_code == 404


def test_strangers_are_sent_to_the_login_page(job):
    for page in PAGES:
        answer = Client().get(f"/jobs/{job.pk}/{page}")
        assert answer.status_code == 302
        assert answer["Location"].startswith("/login/")


@pytest.mark.once
def test_only_owner_and_operator_are_offered_to_stop(job, alice, omar):
    head = make_user("heidi")
    make_membership(head, "vision", is_head=True)
    assert 'id="job-stop"' in text_of(signed_in(alice), f"/jobs/{job.pk}/")
    assert 'id="job-stop"' in text_of(signed_in(omar), f"/jobs/{job.pk}/")
    assert 'id="job-stop"' not in text_of(signed_in(head), f"/jobs/{job.pk}/")


# --- one Job ------------------------------------------------------------------------


@pytest.mark.once
def test_pages_answer_head_and_nothing_but_reading(student, job):
    for address in ("/jobs/", "/jobs/new/", f"/jobs/{job.pk}/"):
        answer = student.head(address)
        assert (answer.status_code, answer.content) == (200, b"")
    for page in PAGES:
        assert student.post(f"/jobs/{job.pk}/{page}").status_code == 405


def test_a_running_job_shows_where_it_stands(student, job):
    html = text_of(student, f"/jobs/{job.pk}/")
    assert "first run" in html
    assert 'aria-current="step"' in html
    assert "node-a:0, node-a:1" in html
    assert "Nothing printed yet" in html
    state = student.get(f"/jobs/{job.pk}/state").json()
    assert [s["word"] for s in state["steps"] if s["current"]] == ["running"]
    assert [event["new"] for event in state["events"]][-1] == "running"
    assert state["failure"] is None


@pytest.mark.once
def test_a_failed_job_says_exit_code_and_last_lines_first(student, reservation):
    job = failed(
        reservation, exit_code=3, reason="exit code 3", last_lines=["one", "boom"]
    )
    html = text_of(student, f"/jobs/{job.pk}/")
    assert html.index("Exit code 3") < html.index("boom") < html.index('id="log"')
    assert html.count("exit code 3") == 1, "only the event and the title say it"
    assert "The node has not uploaded the log yet." in html
    state = student.get(f"/jobs/{job.pk}/state").json()
    assert state["last_lines"] == ["one", "boom"]
    assert (state["log"]["bytes"], state["log"]["is_awaited"]) == (0, True)
    log_store.append(job, attempt=1, offset=0, data=b"whole\n")
    log = student.get(f"/jobs/{job.pk}/state?part=0").json()["log"]
    assert (log["bytes"], log["is_awaited"]) == (6, False)
    # A long log comes in several requests, and the end of the job told its size.
    job.log_bytes = 10
    job.save()
    state = student.get(f"/jobs/{job.pk}/state?part=0").json()
    assert (state["log"]["bytes"], state["log"]["is_awaited"]) == (6, True)
    assert state["last_lines"] == ["one", "boom"]
    log_store.append(job, attempt=1, offset=6, data=b"log\n")
    state = student.get(f"/jobs/{job.pk}/state?part=0").json()
    assert state["log"]["is_awaited"] is False
    assert state["last_lines"] == ["whole", "log"]
    log_store.path_of(job).unlink()
    job.ended_at -= timedelta(days=KEPT_DAYS)  # then the node removes it
    job.save()
    assert "The log was not stored." in text_of(student, f"/jobs/{job.pk}/")
    assert student.get(f"/jobs/{job.pk}/log.txt").content == b"one\nboom"


@pytest.mark.once
@pytest.mark.parametrize(
    ("fields", "title", "reason"),
    [
        ({"exit_code": 1, "reason": "exit code 1"}, "Exit code 1", ""),
        ({"exit_code": 1, "reason": "exited with code 1"}, "Exit code 1", ""),
        (
            {"exit_code": 1, "reason": "exit code 1: KeyError"},
            "Exit code 1",
            "KeyError",
        ),
        ({"exit_code": 1, "reason": "disk full"}, "Exit code 1", "disk full"),
        ({"exit_signal": 9, "reason": "ended by SIGKILL"}, "Ended by SIGKILL", ""),
        ({"exit_signal": 99, "reason": ""}, "Ended by signal 99", ""),
        ({"reason": "no such recipe"}, "The job did not run", "no such recipe"),
    ],
)
def test_a_failure_says_nothing_twice(reservation, fields, title, reason):
    job = failed(reservation, **fields)
    assert failure_of(job) == {"title": title, "reason": reason}


def test_a_job_that_was_lost_is_called_so(reservation):
    job = failed(reservation, reason="the node went away")
    job.state = JobState.LOST
    assert failure_of(job) == {"title": "Lost", "reason": "the node went away"}


@pytest.mark.once
def test_a_log_is_read_by_ranges_and_downloaded_whole(student, job):
    log_store.append(
        job, attempt=1, offset=0, data=b"\x1b[31mred\x1b[0m\nstep=1 loss=2.5\n"
    )
    log = student.get(f"/jobs/{job.pk}/log?offset=13&length=100").json()
    assert (log["offset"], log["data"]) == (13, "step=1 loss=2.5\n")
    whole = student.get(f"/jobs/{job.pk}/log.txt")
    # It still prints while its log is sent: the answer keeps the announced length.
    log_store.append(job, attempt=1, offset=29, data=b"step=2/9 loss=.5\n")
    sent = b"".join(whole.streaming_content)
    assert sent.endswith(b"loss=2.5\n") and whole["Content-Length"] == str(len(sent))
    assert "attachment" in whole["Content-Disposition"]
    rows = student.get(f"/jobs/{job.pk}/numbers").json()["rows"]
    assert rows == [{"step": 1.0, "loss": 2.5}, {"step": 2.0, "loss": 0.5}]


@pytest.mark.once
@pytest.mark.parametrize(
    "query",
    ["offset=a", "offset=1e3", "length=", "offset=" + "9" * 40, "offset=%00", "%ff=1"],
)
def test_a_nonsense_range_is_an_answer_and_no_crash(student, job, query):
    assert student.get(f"/jobs/{job.pk}/log?{query}").status_code in (200, 422)


def test_negative_and_far_ranges_are_empty(student, job):
    log_store.append(job, attempt=1, offset=0, data=b"abc")
    assert student.get(f"/jobs/{job.pk}/log?offset=-5").json()["data"] == "abc"
    far = student.get(f"/jobs/{job.pk}/log?offset={10**17}").json()
    assert (far["bytes"], far["size"]) == (0, 3)


@pytest.mark.once
def test_a_job_of_no_such_number_is_not_found(student):
    for number in (1, 10**18, 10**30):
        assert student.get(f"/jobs/{number}/").status_code == 404


def test_the_utilization_of_a_jobs_own_time_is_told(student, job):
    body = student.get(f"/jobs/{job.pk}/gpus").json()
    assert [gpu["label"] for gpu in body["gpus"]] == ["node-a:0", "node-a:1"]
    assert set(body["gpus"][0]["series"]) >= {"at", "util_avg_pct", "memory_max_bytes"}


@pytest.mark.once
def test_what_runs_can_be_read(student, reservation):
    script = make_job(
        reservation,
        kind="script",
        recipe="",
        script="echo <b>hello</b>",
        arguments=["--name", "my run"],
    )
    html = text_of(student, f"/jobs/{script.pk}/")
    assert "echo &lt;b&gt;hello&lt;/b&gt;" in html
    assert "<code>my run</code>" in html
    recipe = make_job(reservation, recipe_settings={"seconds": 12.5})
    assert "12.5" in text_of(student, f"/jobs/{recipe.pk}/")


@pytest.mark.once
def test_a_jobs_plan_is_a_picture_and_a_table(student, alice, redis_client):
    gpus = make_lab()
    send_frame(redis_client)
    stored = plan_on(alice, "pipeline")
    booked = make_reservation(alice, gpus[:2], state=State.ACTIVE)
    html = text_of(student, f"/jobs/{make_job(booked, plan=stored).pk}/")
    assert 'id="panel-plan"' in html
    assert "mem-activations" in html
    assert "Layers in stages (pipeline, 1F1B): gpt2" in html
    assert "cell-b" in html
    stored.plan = {"version": 0}
    stored.save()
    html = text_of(student, f"/jobs/{Job.objects.get().pk}/")
    assert "can no longer be read" in html


# --- the list -----------------------------------------------------------------------


def test_an_empty_list_teaches(student):
    assert "A job runs in a reservation" in text_of(student, "/jobs/")


def test_the_list_is_filtered_and_sorted_by_the_address(student, reservation):
    make_job(reservation, name="alpha")
    failed(reservation, name="beta", exit_code=1)
    assert "beta" not in text_of(student, "/jobs/?state=running")
    assert "alpha" not in text_of(student, "/jobs/?q=BET")
    html = text_of(student, "/jobs/?sort=name")
    assert html.index("alpha") < html.index("beta")
    html = text_of(student, "/jobs/?sort=-name")
    assert html.index("beta") < html.index("alpha")
    assert "No job matches" in text_of(student, "/jobs/?q=gamma")
    assert "alpha" in text_of(student, f"/jobs/?reservation={reservation.pk}")
    html = text_of(student, f"/jobs/?reservation={reservation.pk + 1}")
    assert "alpha" not in html and "No job matches" in html


def test_mine_leaves_others_out(omar, reservation):
    make_job(reservation)
    operator = signed_in(omar)
    assert "first run" in text_of(operator, "/jobs/")
    assert "first run" not in text_of(operator, "/jobs/?whose=mine")


@pytest.mark.parametrize(
    "query",
    [
        "sort=nonsense",
        "sort=--made",
        "page=0",
        "page=x",
        "page=99999999999999999999",
        "state=%00",
        "whose=yours",
        "q=%00",
        "q=" + "x" * 5000,
        "%ff=%ff",
        "sort=-ran&state=done&format=csv",
        "format=pdf",
    ],
)
def test_a_nonsense_address_is_a_page_and_no_crash(student, job, query):
    assert student.get(f"/jobs/?{query}").status_code == 200


def test_long_lists_have_pages(student, reservation):
    Job.objects.bulk_create(
        Job(
            reservation=reservation,
            owner=reservation.user,
            name=f"run {number:02d}",
            kind="recipe",
            node=reservation.allocations.first().gpu.node,
        )
        for number in range(53)
    )
    assert "Page 1 of 2, 53 jobs" in text_of(student, "/jobs/?sort=name")
    last = text_of(student, "/jobs/?sort=name&page=2")
    assert "run 52" in last and "run 01" not in last


def test_csv_has_a_row_a_job_and_runs_no_formula(student, reservation):
    make_job(reservation, name="=HYPERLINK(1)")
    answer = student.get("/jobs/?format=csv")
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert rows[0]["name"] == "'=HYPERLINK(1)"
    assert rows[0]["state"] == "running"


@pytest.mark.once
def test_list_and_page_ask_no_more_for_more_rows(
    student, reservation, django_assert_max_num_queries, time_machine
):
    # A job that has run for a second has figures of its use, which two queries read.
    time_machine.move_to(timezone.now(), tick=False)
    for number in range(12):
        job = make_job(reservation, name=f"run {number}")
    with django_assert_max_num_queries(12):
        student.get("/jobs/")
    for _ in range(20):
        make_gpu(reservation.allocations.first().gpu.node)
    with django_assert_max_num_queries(18):
        student.get(f"/jobs/{job.pk}/")


@pytest.mark.once
def test_the_figures_of_a_running_job_cost_two_queries(
    student, reservation, django_assert_max_num_queries, time_machine
):
    time_machine.move_to(timezone.now(), tick=False)
    job = make_job(reservation, started_at=timezone.now() - timedelta(minutes=30))
    with django_assert_max_num_queries(20):
        student.get(f"/jobs/{job.pk}/")


def test_others_jobs_are_told_as_far_as_the_site_lets(reservation, bob, carol):
    job = make_job(reservation, name="secret study")
    SitePolicy.objects.update_or_create(pk=1, defaults={"names_visible": True})
    html = text_of(signed_in(carol), "/jobs/?whose=others")
    assert "secret study" not in html and f"/jobs/{job.pk}/" not in html
    assert "Alice" in html and "node-a" in html
    SitePolicy.objects.update(names_visible=False)
    html = text_of(signed_in(carol), "/jobs/?whose=others")
    assert "Alice" not in html
    assert str(reservation.membership.account) in html


@pytest.mark.once
def test_the_list_and_the_page_tell_how_far_a_job_is(student, job):
    now = timezone.now()
    Job.objects.update(
        progress_done=30,
        progress_total=120,
        progress_at=now,
        progress_from=0,
        progress_from_at=now - timedelta(seconds=30),
    )
    html = text_of(student, "/jobs/")
    assert 'data-done="30.0" data-total="120.0"' in html and 'value="30.0"' in html
    told = student.get(f"/jobs/{job.pk}/state").json()["progress"]
    assert (told["done"], told["total"]) == (30, 120)
    assert told["left_seconds"] == pytest.approx(90)


def test_tensorboard_files_are_listed_and_drawn_beside_the_log(
    student, job, settings, tmp_path, monkeypatch
):
    settings.MEDIA_ROOT = str(tmp_path / "media")
    log_store.append(job, attempt=1, offset=0, data=b"step=0 loss=2.5\n")
    for run, losses in (("train", (2.5, 2.0)), ("eval", (3.0,))):
        folder = tmp_path / run
        writer = EventFileWriter(str(folder))
        for step, loss in enumerate(losses):
            value = Summary.Value(tag="error", simple_value=loss)
            made = Summary(value=[value])
            writer.add_event(Event(wall_time=1.0, step=step, summary=made))
        writer.close()
        (path,) = folder.iterdir()
        row = ResultFile.objects.create(
            job=job,
            attempt=1,
            path=f"logs/{run}/{path.name}",
            size_bytes=path.stat().st_size,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        sent = {"offset": 0, "data": path.read_bytes(), "now": timezone.now()}
        result_files.append(file=row, **sent)
    now = timezone.now()
    stored = result_files.path_of(row)
    stored.rename(tmp_path / "away")
    assert run_curves.read_due(now) == 0
    assert student.get(f"/jobs/{job.pk}/numbers").json()["rows"][1:] == []
    (tmp_path / "away").rename(stored)
    assert run_curves.read_due(now) == 0, "it is read again later"
    now += run_curves.RETRY
    assert run_curves.read_due(now) == 1 and run_curves.read_due(now) == 0
    told = student.get(f"/jobs/{job.pk}/numbers").json()["rows"]
    assert told == [
        {"step": 0, "loss": 2.5},
        {"step": 0, "eval/error": 3.0, "train/error": 2.5},
        {"step": 1, "train/error": 2.0},
    ]
    html = text_of(student, f"/jobs/{job.pk}/files")
    assert "<code>tensorboard --logdir logs</code>" in html
    assert "also under Charts" in html and "Only the first part" not in html
    (runs,) = student.get(f"/api/v1/jobs/{job.pk}/files").json()["runs"]
    assert (runs["tool"], runs["folder"], runs["runs"]) == ("TensorBoard", "logs", 2)
    compared = text_of(student, f"/jobs/compare/?job={job.pk}")
    assert "train/error" in compared
    result_files.drop([row], now=timezone.now())
    told = student.get(f"/jobs/{job.pk}/numbers").json()["rows"]
    assert told == [{"step": 0, "loss": 2.5}], "nothing of a deleted file is shown"
    assert run_curves.read_due(timezone.now()) == 1
    told = student.get(f"/jobs/{job.pk}/numbers").json()["rows"]
    assert [set(one) for one in told[1:]] == [{"step", "error"}] * 2
    monkeypatch.setattr(run_curves, "ReadBudget", partial(ReadBudget, fields=12))
    (result_files.curves_due_folder() / f"{job.pk}-1").touch()
    assert run_curves.read_due(timezone.now()) == 1
    html = text_of(student, f"/jobs/{job.pk}/files")
    assert "Only the first part of them is drawn" in html


def test_files_are_listed_and_what_came_of_a_plan_stands_beside_it(
    student, job, omar, bob, redis_client
):
    for name, refused in (("<b>loss</b>.svg", ""), ("out", "is a link")):
        ResultFile.objects.create(
            job=job,
            attempt=1,
            path=name,
            size_bytes=9,
            refused=refused,
            complete_at=timezone.now(),
        )
    html = text_of(student, f"/jobs/{job.pk}/files")
    assert "&lt;b&gt;loss&lt;/b&gt;.svg" in html and "left out: is a link" in html
    assert f"/jobs/{job.pk}/files/" in html
    for_omar = text_of(signed_in(omar), f"/jobs/{job.pk}/files")
    assert "Only Alice" in for_omar and "download>" not in for_omar
    assert signed_in(bob).get(f"/jobs/{job.pk}/files").status_code == 404
    assert student.get(f"/jobs/{job.pk}/measured").status_code == 404  # no plan

    plan_it(job, redis_client)
    shard = job.plan.plan["shards"][0]
    outcome = plan_outcome.begin(job, now=timezone.now())
    plan_outcome.record_use(
        outcome, {shard["gpu_uuid"]: shard["high_bytes"] * 2}, None, timezone.now()
    )
    html = text_of(student, f"/jobs/{job.pk}/")
    assert "Predicted and actual" in html and "above the maximum" in html
    assert "so far" in text_of(student, f"/jobs/{job.pk}/measured")
    row = PlanOutcome.objects.get()
    row.settled_at, row.step_ratio, row.memory_ratio = timezone.now(), 1.2, 0.9
    row.save()
    operator = signed_in(omar)
    html = text_of(operator, "/jobs/measured/?gpus=simulated")
    assert "+20 %" in html and "−10 %" in html and "do not correct predictions" in html
    assert f'href="/jobs/{job.pk}/#plan"' in html
    sheet = operator.get("/jobs/measured/?gpus=simulated&format=csv").content.decode()
    assert sheet.splitlines()[1].startswith(f"{job.pk},single,")
    assert "No job has run" in text_of(operator, "/jobs/measured/")
    assert student.get("/jobs/measured/").status_code == 403
    assert "1 run on" in text_of(student, f"/jobs/{job.pk}/")


def plan_it(job, redis_client) -> None:
    """Give a Job a Plan for a Gpu that nobody has booked."""
    make_gpus(1, make_node("node-c"))
    send_frame(redis_client)
    job.plan = plan_on(job.owner, "single")
    job.save()
