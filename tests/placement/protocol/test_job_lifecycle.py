"""A Job's states are a table of legal transitions, and nothing bypasses it."""

import re
from pathlib import Path

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from placement.jobs.job_transitions import move
from placement.models import Job
from placement.protocol.job_lifecycle import NEXT, JobState
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation

pytestmark = pytest.mark.django_db
WORDS = {
    "queued",
    "starting",
    "running",
    "moving",
    "stopping",
    "done",
    "failed",
    "stopped",
    "lost",
}
ROOT = Path(__file__).resolve().parents[3]


def test_every_move_of_a_job_is_of_the_table_with_reason_and_time(alice) -> None:
    assert {state.value for state in JobState} == WORDS and set(NEXT) == set(JobState)
    assert {state for state in JobState if not NEXT[state]} == (
        set(JobState) - JobState.live()
    ), "what has ended moves no more"
    held = make_reservation(alice, make_gpus(1, make_node("red")), state=State.ACTIVE)
    row = {
        "reservation": held,
        "owner": alice,
        "node": held.allocations.get().gpu.node,
        "kind": "recipe",
        "recipe": "burn-in",
    }
    now = timezone.now()
    for old in JobState:
        for new in set(JobState) - {old}:
            job = Job.objects.create(name=f"{old} to {new}", state=old, **row)
            moved = move(job, new, now=now, actor="portal", reason="because")
            assert moved is (new in NEXT[old]), job.name
            job.refresh_from_db()
            events = list(job.events.values_list("at", "old", "new", "reason"))
            if moved:
                assert (job.state, job.reason) == (new, "because")
                assert events == [(now, old, new, "because")]
                continue
            assert job.state == old and not events
            with pytest.raises(ValueError, match="cannot move"):
                Job.objects.move(job.pk, old=old, new=new)
            if not NEXT[old]:
                # Regardless of the writer, the database keeps the states of ended Jobs.
                with pytest.raises(IntegrityError), transaction.atomic():
                    Job.objects.filter(pk=job.pk).update(state=new)
    with pytest.raises(IntegrityError), transaction.atomic():
        Job.objects.create(name="odd", state="pausing", **row)
    # In the product one place writes a Job's state.
    writes = re.compile(
        r"\bjob\.state\s*=[^=]|Job\.objects[^\n]*\.update\([^)]*\bstate="
    )
    found = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "placement").rglob("*.py")
        if "migrations" not in path.parts and writes.search(path.read_text())
    ]
    assert not found, found
