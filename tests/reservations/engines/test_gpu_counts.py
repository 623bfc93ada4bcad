"""Bookings of some GPUs of a node, on a Slurm that reserves them by their number."""

from datetime import timedelta

import pytest

from reservations.booking.booking_change import change
from reservations.booking.partial_release import give_back_part
from reservations.booking.release import release
from reservations.engines import service as engines
from reservations.engines.bound_cards import bind_cards
from reservations.engines.engine_refusals import EngineRefused, SameNumberNeeded
from reservations.models import AuditEntry, EngineHold, Reservation
from reservations.presence.engine_reconciliation import reconcile
from reservations.rules.lifecycle import State
from reservations.series.service import rehearse
from reservations.store.calendar_queries import Reader, calendar_page
from telemetry.models import Gpu, SlurmGpu
from telemetry.rules.slurm_use import SlurmUse
from telemetry.slurm.cluster_view import SlurmGpuView, SlurmNodeView
from telemetry.slurm.service import record_view
from tests.reservations.conftest import NOW, at
from tests.reservations.engines.conftest import daily, show_cards
from tests.reservations.engines.replayed_slurm import BUSY

LATER = NOW + timedelta(seconds=15)
pytestmark = pytest.mark.django_db


@pytest.fixture
def cards(counted) -> list[Gpu]:
    """Return the four GPUs of node gp1."""
    return list(Gpu.objects.filter(node__name="gp1").order_by("index"))


def held(row: Reservation) -> list[int]:
    """Return the numbers of its GPUs in the calendar."""
    rows = row.allocations.filter(live=True).order_by("gpu__index")
    return list(rows.values_list("gpu__index", flat=True))


def test_two_bookings_of_one_node(lab, counted, cards, alice, bob) -> None:
    first = lab.book(alice, cards[2:], at(12), 3)
    second = lab.book(bob, cards[:1], at(12), 3)
    assert counted.holds[f"gp_lab1_{first.pk}"] == {
        "StartTime": "2026-03-02T12:00:00",
        "EndTime": "2026-03-02T15:00:00",
        "Users": "alice",
        "Nodes": "gp1",
        "Flags": "MAGNETIC",
        "TRESPerNode": "cpu=4,gres/gpu:a100=2",
    }
    one = counted.holds[f"gp_lab1_{second.pk}"]
    assert one["TRESPerNode"] == "cpu=2,gres/gpu:a100=1"
    assert reconcile(LATER) == {}
    # A whole node names the number, too: Slurm would not see the others otherwise.
    whole = lab.book(bob, cards, at(16), 1)
    told = counted.holds[f"gp_lab1_{whole.pk}"]
    assert told["TRESPerNode"] == "cpu=8,gres/gpu:a100=4"
    assert told["Flags"] == "MAGNETIC,PURGE_COMP=00:15:00"


def test_a_refusal_says_the_numbers(lab, counted, cards, alice) -> None:
    counted.holds["theirs"] = {
        "StartTime": "2026-03-02T12:00:00",
        "EndTime": "2026-03-02T15:00:00",
        "Users": "carol",
        "Nodes": "gp1",
        "Flags": "",
        "TRESPerNode": "cpu=6,gres/gpu:a100=3",
    }
    with pytest.raises(EngineRefused) as no:
        lab.book(alice, cards[:2], at(12), 1)
    assert no.value.text() == (
        "Not enough GPUs of gp1 are free in Slurm in this time. Wanted: 2 of 4. Held "
        "by other reservations: 3. Jobs may have more."
    )
    counted.holds.clear()
    counted.refuse["create"] = BUSY
    with pytest.raises(EngineRefused, match=r"Wanted: 2 of 4\. Jobs or other"):
        lab.book(alice, cards[:2], at(12), 1)
    # The second request had fewer processors.
    assert counted.commands[-2:] == [counted.commands[-1]] * 2
    assert not Reservation.objects.exists()


def test_other_numbers_on_another_node_are_refused(lab, counted, cards, alice) -> None:
    gpus = tuple(SlurmGpuView(n, "a100", SlurmUse.FREE) for n in range(4))
    nodes = [SlurmNodeView(name, gpus, cpus=2) for name in ("gp1", "gp2")]
    record_view("lab", nodes, version="26.05.5", now=NOW)
    more = list(Gpu.objects.filter(node__name="gp2"))
    with pytest.raises(SameNumberNeeded, match="You chose gp1: 2, gp2: 1"):
        lab.book(alice, [*cards[:2], more[0]], at(12), 1)
    made = lab.book(alice, [cards[0], more[0]], at(12), 1)
    assert counted.holds[f"gp_lab1_{made.pk}"]["Nodes"] == "gp1,gp2"


def test_the_number_changes_by_a_new_reservation(lab, counted, cards, alice) -> None:
    made = lab.book(alice, cards[:1], at(12), 3)
    name = f"gp_lab1_{made.pk}"
    counted.commands.clear()
    pks = [gpu.pk for gpu in cards[:3]]
    words = {"reservation_id": made.pk, "user": alice, "now": LATER}
    made = change(gpu_ids=pks, version=made.version, **words)
    assert counted.commands == [f"delete {name}", f"create {name}"]
    assert counted.holds[name]["TRESPerNode"] == "cpu=6,gres/gpu:a100=3"
    # Slurm refuses the new number: it is made as it was.
    counted.holds["theirs"] = {**counted.holds[name], "Users": "carol"}
    counted.holds["theirs"]["TRESPerNode"] = "cpu=2,gres/gpu:a100=1"
    with pytest.raises(EngineRefused, match="Held by other reservations: 1"):
        pks = [gpu.pk for gpu in cards]
        change(gpu_ids=pks, version=made.version, **words)
    assert counted.holds[name]["TRESPerNode"] == "cpu=6,gres/gpu:a100=3"
    # Times are changed in place.
    counted.commands.clear()
    change(end=at(16), version=made.version, **words)
    assert counted.commands == [f"update {name}"]


def test_gpus_that_are_given_back_while_a_job_runs(lab, counted, cards, alice) -> None:
    made = lab.book(alice, cards[:2], NOW, 3)
    name = f"gp_lab1_{made.pk}"
    counted.jobs[name] = 1
    assert reconcile(LATER) == {"checked_in": 1}
    made.refresh_from_db()
    give_back_part(
        reservation_id=made.pk,
        user=alice,
        gpu_ids=[cards[0].pk],
        version=made.version,
        now=LATER,
    )
    assert reconcile(at(10)) == {"waits": 1}
    assert counted.holds[name]["TRESPerNode"] == "cpu=4,gres/gpu:a100=2"
    counted.jobs.clear()
    assert reconcile(at(10, 1)) == {"change": 1}
    assert counted.holds[name]["TRESPerNode"] == "cpu=2,gres/gpu:a100=1"


def test_a_refused_change_of_users_refunds_nobody(lab, counted, cards, alice) -> None:
    """26.05 refuses each change while jobs of others run on the node."""
    made = lab.book(alice, cards[:2], NOW, 3)
    alice.unix_user = "alice2"
    alice.save()
    counted.refuse["update"] = BUSY
    for minute in range(3):
        assert reconcile(at(9, 1 + minute)) == {"declined": 1}
    made.refresh_from_db()
    assert made.state == State.ACTIVE
    assert "busy" in EngineHold.objects.get().failure


def test_a_booking_without_a_job_is_released_without_a_strike(
    lab, counted, cards, alice
) -> None:
    made = lab.book(alice, cards[:2], NOW, 3)
    assert reconcile(at(9, 14), watched_since=NOW) == {}
    assert reconcile(at(9, 16), watched_since=NOW) == {"unused": 1}
    made.refresh_from_db()
    assert (made.state, made.no_show, made.end) == (State.RELEASED, False, at(9, 15))
    assert reconcile(at(9, 17)) == {"release": 1}
    assert counted.holds == {}


def test_jobs_of_another_booking_do_not_block_the_node(
    lab, counted, cards, alice, bob
) -> None:
    first = lab.book(alice, cards[:2], NOW, 3)
    counted.jobs[f"gp_lab1_{first.pk}"] = 1
    release(reservation_id=first.pk, user=alice, now=LATER)
    assert lab.book(bob, cards[2:], at(11), 1, now=LATER)


def test_a_booking_that_slurm_lost_is_made_again_beside_jobs(
    lab, counted, cards, alice
) -> None:
    """Jobs of others have other GPUs of the node, so nobody is refunded."""
    made = lab.book(alice, cards[:2], NOW, 3)
    name = f"gp_lab1_{made.pk}"
    counted.holds.clear()
    counted.queue = ["3|RUNNING|alice|(null)|gp1", "4|RUNNING|bob|(null)|gp1"]
    counted.gpus = {3: 2, 4: 1}
    assert reconcile(LATER) == {"reserve": 1}
    assert counted.holds[name]["Flags"] == "MAGNETIC,IGNORE_JOBS"
    own, theirs = counted.queue
    assert (own, theirs[-12:]) == (f"3|RUNNING|alice|{name}|gp1", "b|(null)|gp1")
    # A newer Slurm may leave the job beside the reservation.
    counted.queue[0] = own.replace(name, "(null)")
    view = engines.engine_of("slurm").observe(now=at(9, 1))
    assert (view.running, view.used) == ({name: 1}, {name})
    # A job with more GPUs than the booking is not a job of it.
    counted.gpus[3] = 3
    assert engines.engine_of("slurm").observe(now=at(9, 1)).used == frozenset()


def test_a_booking_that_slurm_lost_is_refunded_if_others_have_its_gpus(
    lab, counted, cards, alice
) -> None:
    made = lab.book(alice, cards[:2], NOW, 3)
    counted.holds.clear()
    counted.queue = ["3|RUNNING|alice|(null)|gp1", "4|RUNNING|bob|(null)|gp1"]
    counted.gpus = {3: 1, 4: 3}
    assert reconcile(LATER) == {"declined": 1}
    assert reconcile(at(9, 1)) == {"refunded": 1}
    made.refresh_from_db()
    assert made.state == State.REFUNDED


def test_a_series_is_rehearsed_beside_other_reservations(
    lab, counted, cards, alice
) -> None:
    counted.holds["theirs"] = {
        "StartTime": "2026-03-03T00:00:00",
        "EndTime": "2026-03-04T00:00:00",
        "Users": "carol",
        "Nodes": "gp1",
        "Flags": "",
        "TRESPerNode": "cpu=4,gres/gpu:a100=2",
    }

    def states(gpus: list[Gpu]) -> list[str]:
        return [day.state for day in rehearse(daily(alice, gpus), now=NOW)]

    assert len(set(states(cards[:2]))) == 1
    assert len(set(states(cards[:3]))) == 2
    assert list(counted.holds) == ["theirs"]


def test_a_node_that_slurm_has_not_heard_of_since_its_restart(
    lab, counted, cards, alice
) -> None:
    SlurmGpu.objects.update(use=SlurmUse.AWAY)
    with pytest.raises(EngineRefused, match="gp1 has not reported to Slurm since"):
        lab.book(alice, cards[:1], NOW, 1)
    SlurmGpu.objects.update(reason="new fans")
    with pytest.raises(EngineRefused, match=r"closed in Slurm\. Reason: new fans"):
        lab.book(alice, cards[:1], NOW, 1)


def test_rows_get_the_gpus_that_slurm_chose(lab, counted, cards, alice, bob) -> None:
    first = lab.book(alice, cards[2:], NOW, 3)
    second = lab.book(bob, cards[:1], NOW, 3)
    coming = lab.book(bob, cards[1:3], at(14), 1)
    mine, other = (f"gp_lab1_{row.pk}" for row in (first, second))
    # A reservation that holds no GPU yet, one of an older booking, and a stranger.
    assert bind_cards(LATER, lab.policy) == 0
    show_cards(
        ("busy", mine, 7), ("busy", mine, 7), ("reserved", other, None), ("busy", "", 9)
    )
    assert bind_cards(LATER, lab.policy) == 3
    assert (held(first), held(second)) == ([0, 1], [2])
    assert len(held(coming)) == 2
    entry = AuditEntry.objects.get(
        verb="reservation.moved", subject=f"reservation:{second.pk}"
    )
    assert entry.detail == {"gpus": {"gp1:0": "gp1:2"}}
    cost = first.cost_gpu_seconds
    first.refresh_from_db()
    assert (first.version, first.cost_gpu_seconds) == (2, cost)
    assert bind_cards(LATER, lab.policy) == 0
    # Whoever uses more than was booked gets no more.
    show_cards(*[("busy", other, 8)] * 4)
    assert bind_cards(LATER, lab.policy) in (0, 2, 3)
    assert (len(held(first)), len(held(second))) == (2, 1)


def test_the_calendar_says_how_slurm_gives_out_a_node(lab, counted, cards, alice):
    reader = Reader(alice.pk, False, frozenset(), True)

    def shown() -> dict:
        page = calendar_page(
            at(9), at(18), reader=reader, policy=lab.policy, now=NOW
        ).to_json()
        return next(gpu for gpu in page["gpus"] if gpu["node"] == "gp1")

    assert shown()["whole_node"] is False
    assert "Slurm chooses the GPUs of gp1" in shown()["engine_note"]
    SlurmGpu.objects.update(cpus=None, whole_because="old")
    assert shown()["whole_node"] is True
    assert shown()["engine_note"] == (
        "Slurm gives out gp1 as a whole. This version of Slurm reserves whole nodes. "
        "Single GPUs need 25.05.3."
    )
