"""Runs compared: curves in one chart, a table with parameters, final and best."""

import json
import re
from datetime import timedelta

import pytest
from django.utils import timezone

from placement.jobs.nodes import log_store
from placement.models import Job
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation
from tests.placement.lab import signed_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def sweep(alice, settings, tmp_path):
    """Three Jobs of one sweep over the learning rate, each with losses in its log."""
    settings.MEDIA_ROOT = tmp_path
    held = make_reservation(
        alice,
        make_gpus(1, make_node("node-a")),
        state=State.ACTIVE,
        end=timezone.now() + timedelta(hours=3),
    )
    student = signed_in(alice)
    answer = student.post(
        "/jobs/new/",
        {
            "reservation": held.pk,
            "name": "lr",
            "what": "burn-in",
            "sweep": "seconds = 1, 2, 10",
        },
    )
    assert answer.status_code == 302, answer.context["form"].errors
    found = list(Job.objects.order_by("array_index"))
    for job, losses in zip(found, ([3, 2, 2.5], [3, 1.5, 4], []), strict=True):
        lines = [
            json.dumps({"step": step, "loss": loss, "accuracy": step / 10})
            for step, loss in enumerate(losses)
        ]
        log_store.append(
            job, attempt=0, offset=0, data="".join(f"{x}\n" for x in lines).encode()
        )
    return student, found


def rows_of(page):
    table = page.content.decode().split('id="runs"')[1]
    return [
        [
            re.sub(r"<[^>]+>|\s+", " ", cell).strip()
            for cell in re.findall(r"(?s)<td.*?</td>", row)
        ]
        for row in re.findall(r"(?s)<tr.*?</tr>", table)[1:]
    ]


def test_a_sweep_is_a_table_with_parameters_final_and_best(sweep):
    student, found = sweep
    array = found[0].array_id
    page = student.get(f"/jobs/compare/?array={array}")
    rows = rows_of(page)
    assert [row[2] for row in rows] == ["1", "2", "10"], "as numbers, not as text"
    assert [row[3:6] for row in rows] == [
        ["2.5", "2", "1"],
        ["4", "1.5", "1"],
        ["–", "–", "–"],
    ]
    assert [" best" in row[0] for row in rows] == [False, True, False]
    page = student.get(f"/jobs/compare/?array={array}&sort=best")
    assert [row[4] for row in rows_of(page)] == ["1.5", "2", "–"]
    page = student.get(f"/jobs/compare/?array={array}&sort=-p0")
    assert [row[2] for row in rows_of(page)] == ["10", "2", "1"]
    page = student.get(f"/jobs/compare/?array={array}&metric=accuracy")
    assert rows_of(page)[0][3:6] == ["0.2", "0.2", "2"], (
        "of accuracy the highest is best"
    )
    page = student.get(f"/jobs/compare/?array={array}&best=high")
    assert [" best" in row[0] for row in rows_of(page)] == [False, True, False]
    listed = student.get("/jobs/").content.decode()
    assert f"/jobs/compare/?array={array}" in listed


def test_chosen_jobs_are_compared_and_others_jobs_are_not_shown(sweep, bob):
    student, found = sweep
    first, second, _ = found
    page = student.get(f"/jobs/compare/?job={first.pk}&job={second.pk}")
    assert len(rows_of(page)) == 2
    assert page.context["page"]["runs"][0]["numbers"] == f"/jobs/{first.pk}/numbers"
    listed = student.get(f"/jobs/?array={first.array_id}").content.decode()
    assert f'name="job" value="{second.pk}" form="compare"' in listed
    theirs = signed_in(bob).get(f"/jobs/compare/?job={first.pk}")
    assert "No runs chosen" in theirs.content.decode()
    for query in ("job=x&job=-1&job=" + "9" * 40, "array=x", "metric=%00&best=%00", ""):
        assert student.get(f"/jobs/compare/?{query}").status_code == 200, query


def test_a_finished_job_shows_the_gpus_that_it_used(sweep):
    student, found = sweep
    job = found[0]
    gpus = make_gpus(2, job.node)
    wide = make_reservation(job.owner, gpus, state=State.ACTIVE)
    Job.objects.filter(pk=job.pk).update(
        reservation=wide, gpu_ids=[gpus[1].pk], state="done"
    )
    page = student.get(f"/jobs/{job.pk}/")
    assert page.context["gpus"] == [str(gpus[1])]
