"""Who holds the GPUs that Slurm gives out, as each viewer reads it."""

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from gpuportal.board.board_snapshot import (
    audience_key,
    holders_for,
    holders_message,
    load_board,
    viewer_of,
)
from reservations.rules.lifecycle import State
from reservations.store.gpu_rows import gpus_seen_by
from telemetry.models import Gpu, SlurmCluster
from telemetry.rules.slurm_use import SlurmUse
from telemetry.slurm.cluster_view import SlurmGpuView, SlurmNodeView
from telemetry.slurm.service import record_view
from tests.factories import make_gpu, make_reservation


def record(**fields):
    now = timezone.now().replace(microsecond=0)
    until = int(now.timestamp()) + 600
    values = {"unix_user": "ada", "account": "vision", "job_id": 7, "until": until}
    gpu = SlurmGpuView(0, "a100", **({"use": SlurmUse.BUSY} | values | fields))
    free = SlurmGpuView(1, "a100", SlurmUse.FREE)
    nodes = [SlurmNodeView("gp1", (gpu, free))]
    record_view("lab", nodes, version="22.05.8", now=now)
    return now + timedelta(seconds=600)


def holder(user, *, names_visible: bool = True) -> dict:
    viewer = viewer_of(user, names_visible=names_visible)
    told = holders_for(load_board(timezone.now()), viewer)
    return told[str(Gpu.objects.get(uuid="slurm-lab-gp1-0").pk)]


def test_a_unix_user_of_nobody_is_shown_by_its_name(alice):
    end = record()
    told = holder(alice)
    assert (told["user"], told["account"], told["mine"]) == ("ada", "vision", False)
    assert told["until"] == end.isoformat().replace("+00:00", "Z")
    assert told["slurm"] == {
        "held": True,
        "job": 7,
        "portal_job": None,
        "reservation": None,
        "reason": None,
    }
    assert told["reservation"] is None


def test_a_unix_user_of_one_person_is_that_person(alice, bob):
    type(alice).objects.filter(pk=alice.pk).update(unix_user="ada")
    alice.refresh_from_db()
    record()
    assert (holder(bob)["user"], holder(bob)["mine"]) == ("Alice", False)
    assert holder(alice)["mine"] is True


def test_a_unix_user_of_two_people_is_neither(alice, bob):
    type(alice).objects.filter(pk__in=(alice.pk, bob.pk)).update(unix_user="ada")
    record()
    assert (holder(alice)["user"], holder(alice)["mine"]) == ("ada", False)


def test_names_are_hidden_where_the_site_hides_them(alice, bob, omar):
    type(alice).objects.filter(pk=alice.pk).update(unix_user="ada")
    alice.refresh_from_db()
    record()
    assert holder(bob, names_visible=False)["user"] is None
    assert holder(alice, names_visible=False)["user"] == "Alice"
    assert holder(omar, names_visible=False)["user"] == "Alice"
    board = load_board(timezone.now())
    keys = {
        audience_key(board, viewer_of(user, names_visible=False))
        for user in (alice, bob)
    }
    assert len(keys) == 2


def test_a_job_without_a_limit_and_a_hidden_job_are_held(alice):
    record(until=None)
    assert (holder(alice)["until"], holder(alice)["slurm"]["held"]) == (None, True)
    record(unix_user="", account="", job_id=None, until=None)
    assert (holder(alice)["user"], holder(alice)["slurm"]["held"]) == (None, True)


def test_a_job_of_the_portal_has_its_number(alice, settings):
    settings.SLURM_SITE = "lab1"
    record(reservation="gp_lab1_17", job_name="gp-119-1-0")
    assert holder(alice)["slurm"]["portal_job"] == 119
    record(reservation="gp_f00d_17", job_name="gp-119-1-0")
    assert holder(alice)["slurm"]["portal_job"] is None


def test_a_silent_cluster_is_told_and_its_holders_stay(alice, settings):
    settings.SLURM_CLUSTER = "lab"
    record()
    since = timezone.now().replace(microsecond=0)
    SlurmCluster.objects.update(failing_since=since)
    viewer = viewer_of(alice, names_visible=True)
    told = json.loads(holders_message(load_board(timezone.now()), viewer))
    stamp = since.isoformat().replace("+00:00", "Z")
    assert told["silent"] == [{"cluster": "lab", "since": stamp}]
    assert holder(alice)["user"] == "ada"


def test_the_calendar_has_no_gpu_of_slurm(alice):
    own = make_gpu()
    record()
    known, _foreign = gpus_seen_by(alice.pk)
    assert [gpu.pk for gpu in known] == [own.pk]


@pytest.mark.django_db
def test_no_query_more_for_more_gpus(django_assert_num_queries):
    record()
    # The bookings, the clusters, their GPUs and the people.
    with django_assert_num_queries(4):
        assert len(load_board(timezone.now()).slurm.holdings) == 2


def test_a_booking_of_a_gpu_of_slurm_and_who_has_it(alice, bob, settings):
    """A card without `slurm` stopped the whole board."""
    settings.SLURM_SITE = "lab1"
    record()
    now = timezone.now().replace(microsecond=0)
    gpu = Gpu.objects.get(uuid="slurm-lab-gp1-0")
    hours = {"start": now - timedelta(hours=1), "end": now + timedelta(hours=2)}
    booked = make_reservation(alice, [gpu], state=State.ACTIVE, **hours)
    # A job outside the booking has it.
    told = holder(alice)
    assert (told["user"], told["mine"], told["reservation"]) == ("ada", False, None)
    record(reservation=f"gp_lab1_{booked.pk}")
    told = holder(bob)
    assert (told["user"], told["reservation"]) == ("Alice", booked.pk)
    assert told["slurm"]["job"] == 7
    assert holder(alice)["mine"] is True
    # Nobody has it yet.
    record(use=SlurmUse.FREE, job_id=None)
    assert holder(bob)["user"] == "Alice"
    # Only a later booking.
    record()
    hours = {"start": now + timedelta(hours=3), "end": now + timedelta(hours=4)}
    type(booked).objects.filter(pk=booked.pk).update(**hours)
    booked.allocations.update(**hours)
    told = holder(bob)
    assert (told["user"], told["next"]["user"]) == ("ada", "Alice")
