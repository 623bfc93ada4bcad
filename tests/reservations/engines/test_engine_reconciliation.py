"""Bookings of nodes of Slurm, and every row of the table of its failures."""

from dataclasses import replace
from datetime import timedelta
from unittest import mock

import pytest

from reservations import tasks, tick
from reservations.booking.booking_change import change
from reservations.booking.partial_release import give_back_part
from reservations.booking.release import cancel, release, undo_cancel
from reservations.engines import service as engines
from reservations.engines.engine_port import EngineDeclined
from reservations.engines.engine_refusals import EngineRefused, WholeNodeNeeded
from reservations.models import EngineHold, LedgerEntry, Membership, Reservation
from reservations.presence.engine_reconciliation import reconcile
from reservations.rules.lifecycle import Kind, State
from reservations.series.service import AGAIN, create, extend, rehearse
from tests.reservations.conftest import NOW, at
from tests.reservations.engines.conftest import daily
from tests.reservations.engines.replayed_slurm import (
    BUSY,
    NO_RIGHT,
    OVERLAP,
    ReplayedSlurm,
)

LATER = NOW + timedelta(seconds=15)
pytestmark = pytest.mark.django_db


def test_a_booking_is_one_reservation_of_the_whole_node(
    lab, slurm, node_gpus, alice
) -> None:
    made = lab.book(alice, node_gpus, at(12), 3)
    name = f"gp_lab1_{made.pk}"
    assert slurm.holds[name] == {
        "StartTime": "2026-03-02T12:00:00",
        "EndTime": "2026-03-02T15:00:00",
        "Users": "alice",
        "Nodes": "gp1",
        "Flags": "MAGNETIC,PURGE_COMP=00:15:00",
    }
    assert EngineHold.objects.get().confirmed_at == NOW
    # A second look finds nothing to do.
    slurm.commands.clear()
    assert reconcile(LATER) == {}
    assert slurm.commands == []
    moved = change(
        reservation_id=made.pk,
        user=alice,
        start=at(13),
        end=at(17),
        version=made.version,
        now=LATER,
    )
    assert slurm.holds[name]["StartTime"] == "2026-03-02T13:00:00"
    assert slurm.holds[name]["EndTime"] == "2026-03-02T17:00:00"
    cancel(reservation_id=moved.pk, user=alice, now=LATER)
    # An answer from before the last request says nothing about it.
    assert reconcile(LATER) == {}
    assert reconcile(at(10)) == {"release": 1}
    assert slurm.holds == {}
    assert EngineHold.objects.get().gone_at == at(10)
    assert reconcile(at(11)) == {}


def test_a_part_of_a_node_is_refused(lab, slurm, node_gpus, alice) -> None:
    with pytest.raises(WholeNodeNeeded, match="Choose its other GPUs too: gp1:1") as no:
        lab.book(alice, node_gpus[:1], at(12), 3)
    assert no.value.gpu_ids == tuple(gpu.pk for gpu in node_gpus)
    made = lab.book(alice, node_gpus, NOW, 3)
    with pytest.raises(WholeNodeNeeded):
        give_back_part(
            reservation_id=made.pk,
            user=alice,
            gpu_ids=[node_gpus[0].pk],
            version=made.version,
            now=LATER,
        )


def test_a_person_without_a_unix_user_and_a_silent_cluster_are_refused(
    lab, slurm, node_gpus, alice, bob
) -> None:
    with pytest.raises(EngineRefused, match="you have no Unix user there"):
        lab.book(bob, node_gpus, at(12), 1)
    slurm.away = True
    with pytest.raises(EngineRefused, match="Slurm does not answer"):
        lab.book(alice, node_gpus, at(12), 1)
    assert not Reservation.objects.exists()
    # The lab's own nodes need no Slurm.
    assert lab.book(alice, lab.gpus[:1], at(12), 1)


@pytest.mark.parametrize(
    ("sentence", "told"),
    [
        (OVERLAP, "Slurm has reserved gp1 for another purpose in this time."),
        (BUSY, "A job of Slurm runs on gp1"),
        ("Access/permission denied", "Slurm does not let the portal reserve"),
        (NO_RIGHT, "Slurm does not know the Unix user"),
        ("Something new", "Slurm refuses it: .*Something new"),
    ],
)
def test_a_slot_that_is_taken_behind_our_back_is_refused_with_the_reason(
    lab, slurm, node_gpus, alice, sentence, told
) -> None:
    slurm.refuse["create"] = sentence
    with pytest.raises(EngineRefused, match=told):
        lab.book(alice, node_gpus, at(12), 1)
    assert not Reservation.objects.exists()
    assert not LedgerEntry.objects.exists()


def test_a_lost_answer_leaves_no_second_reservation(
    lab, slurm, node_gpus, alice
) -> None:
    slurm.lose_answer = True
    with pytest.raises(EngineRefused, match="does not answer"):
        lab.book(alice, node_gpus, at(12), 1)
    assert len(slurm.holds) == 1
    # It was created, and the name is the key: the next booking takes it over, or the
    # reconciliation deletes it.
    made = lab.book(alice, node_gpus, at(13), 1)
    assert reconcile(LATER) in ({}, {"strange": 1})
    assert list(slurm.holds) == [f"gp_lab1_{made.pk}"]
    assert slurm.holds[f"gp_lab1_{made.pk}"]["StartTime"] == "2026-03-02T13:00:00"


def test_what_another_portal_or_a_lost_row_holds_is_not_stopped(
    lab, slurm, node_gpus
) -> None:
    held = {
        "StartTime": "2026-03-02T12:00:00",
        "EndTime": "2026-03-02T15:00:00",
        "Users": "bob",
        "Nodes": "gp9",
        "Flags": "MAGNETIC",
    }
    # Of another portal, of the time before the backup, and rolled back.
    slurm.holds |= {f"gp_{name}": held for name in ("b0b0_1", "lab1_70", "lab1_71")}
    slurm.jobs["gp_lab1_70"] = 1
    assert reconcile(LATER) == {"strange": 1}
    assert list(slurm.holds) == ["gp_b0b0_1", "gp_lab1_70"]
    assert slurm.commands == ["delete gp_lab1_71"]


def test_a_reservation_with_other_peoples_jobs_is_not_taken_over(
    lab, slurm, node_gpus, alice
) -> None:
    made = lab.book(alice, node_gpus, at(12), 3)
    name = f"gp_lab1_{made.pk}"
    EngineHold.objects.all().delete()
    slurm.holds[name]["Users"] = "bob"
    slurm.jobs[name] = 1
    engine = engines.engine_of("slurm")
    wanted = replace(engine.observe(now=NOW).holds[name], users=("alice",))
    with pytest.raises(EngineDeclined, match="Duplicate"):
        engine.reserve(wanted, now=NOW)
    slurm.jobs.clear()
    engine.reserve(wanted, now=NOW)
    assert slurm.holds[name]["Users"] == "alice"


def test_a_release_while_a_job_runs(lab, slurm, node_gpus, alice) -> None:
    made = lab.book(alice, node_gpus, NOW, 3)
    name = f"gp_lab1_{made.pk}"
    slurm.jobs[name] = 1
    # The reservation of a holder who has come is not dropped when it is idle.
    assert reconcile(LATER) == {"checked_in": 1, "change": 1}
    made.refresh_from_db()
    assert made.checked_in_at == LATER
    assert slurm.holds[name]["Flags"] == "MAGNETIC"
    release(reservation_id=made.pk, user=alice, now=at(10))
    grace = lab.policy.stop_grace_seconds
    assert reconcile(at(10, 1)) == {"waits": 1}
    assert slurm.jobs[name] == 1
    with pytest.raises(EngineRefused, match="are ending on gp1"):
        lab.book(alice, node_gpus, at(11), 1, now=at(10, 1))
    # The jobs still have their grace, and another time is free.
    assert slurm.jobs[name] == 1
    assert lab.book(alice, node_gpus, at(15), 1, now=at(10, 1))
    assert slurm.jobs[name] == 1
    after = at(10, 1) + timedelta(seconds=grace)
    assert reconcile(after) == {"stop": 1}
    assert name not in slurm.holds


def test_jobs_that_do_not_end_shorten_the_reservation(
    lab, slurm, node_gpus, alice, monkeypatch
) -> None:
    made = lab.book(alice, node_gpus, NOW, 3)
    name = f"gp_lab1_{made.pk}"
    slurm.refuse["delete"] = "Requested reservation is in use"
    release(reservation_id=made.pk, user=alice, now=at(10))
    reconcile(at(10))
    minutes = 5
    assert reconcile(at(10, minutes)) == {"shorten": 1}
    assert slurm.holds[name]["EndTime"] == "2026-03-02T10:06:00"
    slurm.holds.clear()  # Slurm ends it
    assert reconcile(at(10, 7)) == {"forget": 1}


def test_a_controller_that_is_away_cancels_nothing(
    lab, slurm, node_gpus, alice
) -> None:
    made = lab.book(alice, node_gpus, at(12), 3)
    slurm.away = True
    assert reconcile(LATER) == {"engine_away": 1}
    # A cancel needs no answer. It is passed on later.
    cancel(reservation_id=made.pk, user=alice, now=LATER)
    assert reconcile(at(10)) == {"engine_away": 1}
    assert f"gp_lab1_{made.pk}" in slurm.holds
    slurm.away = False
    assert reconcile(at(11)) == {"release": 1}


def test_a_controller_that_hangs_is_asked_once(
    lab, slurm, node_gpus, alice, monkeypatch
) -> None:
    made = [lab.book(alice, node_gpus, at(hour), 1) for hour in (12, 14, 16)]
    slurm.holds.clear()
    slurm.hangs = True
    assert reconcile(LATER) == {"engine_away": 1}
    assert slurm.commands[3:] == [f"create gp_lab1_{made[0].pk}"]
    wish = daily(alice, node_gpus)
    slurm.commands.clear()
    _made, days = create(wish, now=LATER)
    assert [type(day.refusal) for day in days] == [EngineRefused] * 4
    assert [day.state for day in days] == ["later"] * 4
    assert len(slurm.commands) == 1


def test_the_preview_of_a_series_changes_nothing_in_slurm(
    lab, slurm, node_gpus, alice
) -> None:
    slurm.holds["theirs"] = {
        "StartTime": "2026-03-04T08:00:00",
        "EndTime": "2026-03-04T10:00:00",
        "Users": "root",
        "Nodes": "gp1",
        "Flags": "MAINT",
    }
    days = rehearse(daily(alice, node_gpus), now=NOW)
    assert [day.state for day in days] == ["booked", "refused", "booked", "booked"]
    assert isinstance(days[1].refusal, EngineRefused)
    assert days[1].refusal.cause == "taken"
    assert (slurm.commands, list(slurm.holds)) == ([], ["theirs"])
    slurm.away = True
    days = rehearse(daily(alice, node_gpus), now=NOW)
    assert [day.state for day in days] == ["later"] * 4


def test_all_days_of_a_series_have_one_time_for_slurm(
    lab, slurm, node_gpus, alice
) -> None:
    slurm.seconds = 4.5
    wish = daily(alice, node_gpus)
    made, days = create(wish, now=NOW)
    # The next command would end after 9 s of the 8 s.
    assert [day.state for day in days] == ["booked", "later", "later", "later"]
    assert len(slurm.commands) == 2
    slurm.seconds = slurm.spent_seconds = 0
    assert extend(NOW + AGAIN, lab.policy) == {
        "series_booked": 3,
        "series_conflicts": 0,
    }
    assert len(slurm.holds) == made.occurrences.filter(state="booked").count() == 4


def test_a_cluster_that_is_away_is_not_asked_under_locks(
    lab, slurm, node_gpus, alice, monkeypatch
) -> None:
    slurm.away = True
    asked = mock.Mock(side_effect=AssertionError)
    monkeypatch.setattr(ReplayedSlurm, "create_reservation", asked)
    _made, days = create(daily(alice, node_gpus), now=NOW)
    assert [day.state for day in days] == ["later"] * 4


def test_what_slurm_holds_is_looked_after_when_nothing_can_be_booked(
    lab, slurm, node_gpus, alice, settings, monkeypatch
) -> None:
    monkeypatch.setattr(tasks, "BROKER", mock.Mock(get=lambda key: None))
    done = mock.Mock(return_value={"x": 1})
    monkeypatch.setattr(tasks.engine_reconciliation, "reconcile", done)
    assert tasks.reconcile_engine() == {"x": 1}
    settings.SLURM_BOOK = False
    assert tasks.reconcile_engine() == {}
    settings.SLURM_BOOK = True
    made = lab.book(alice, node_gpus, at(12), 3)
    settings.SLURM_BOOK = False
    assert tasks.reconcile_engine() == {"x": 1}
    EngineHold.objects.filter(pk=made.pk).update(gone_at=NOW)
    assert tasks.reconcile_engine() == {}


def test_the_time_of_the_first_look_is_kept_while_slurm_answers(
    slurm, monkeypatch
) -> None:
    kept: dict[str, bytes] = {}

    def store(key, value, **_options) -> bool:
        kept[key] = str(value).encode()
        return True

    broker = mock.Mock(get=kept.get, set=store)
    monkeypatch.setattr(tasks, "BROKER", broker)
    slurm.away = True
    tasks.reconcile_engine()
    assert tasks.WATCHED not in kept
    slurm.away = False
    tasks.reconcile_engine()
    first = kept[tasks.WATCHED]
    tasks.reconcile_engine()
    assert kept[tasks.WATCHED] == first


OWN, OTHERS = "3|RUNNING|alice|(null)|gp1", "4|RUNNING|bob|(null)|gp1"


def test_a_hold_that_slurm_lost_is_made_again_beside_the_holders_job(
    lab, slurm, node_gpus, alice
) -> None:
    made = lab.book(alice, node_gpus, NOW, 3)
    name = f"gp_lab1_{made.pk}"
    slurm.holds.clear()
    slurm.queue = [OWN]
    assert reconcile(LATER) == {"reserve": 1}
    assert slurm.holds[name]["Flags"] == "MAGNETIC,PURGE_COMP=00:15:00,IGNORE_JOBS"
    assert slurm.queue == [f"3|RUNNING|alice|{name}|gp1"]
    assert reconcile(at(9, 1)) == {"checked_in": 1, "change": 1}
    # A newer Slurm may leave the job beside the reservation.
    slurm.queue = [OWN]
    assert engines.engine_of("slurm").observe(now=at(9, 2)).running == {name: 1}
    made.refresh_from_db()
    assert made.state == State.ACTIVE


def test_a_hold_that_slurm_lost_is_refunded_if_others_stay_on_the_node(
    lab, slurm, node_gpus, alice
) -> None:
    made = lab.book(alice, node_gpus, NOW, 3)
    slurm.holds.clear()
    slurm.queue = [OWN, OTHERS]
    assert reconcile(LATER) == {"declined": 1}
    assert reconcile(at(9, 1)) == {"refunded": 1}
    made.refresh_from_db()
    assert made.state == State.REFUNDED


def test_a_refusal_of_a_moment_refunds_nothing(lab, slurm, node_gpus, alice) -> None:
    made = lab.book(alice, node_gpus, NOW, 3)
    slurm.holds.clear()
    slurm.refuse["create"] = "Requested node configuration is not available"
    assert reconcile(LATER) == {"declined": 1}
    slurm.refuse.clear()
    assert reconcile(at(9, 1)) == {"reserve": 1}
    made.refresh_from_db()
    assert (made.state, len(slurm.holds)) == (State.ACTIVE, 1)


def test_a_new_booking_waits_for_the_jobs_of_its_own_user_too(
    lab, slurm, node_gpus, alice
) -> None:
    slurm.queue = [OWN]
    with pytest.raises(EngineRefused, match="A job of Slurm runs on gp1"):
        lab.book(alice, node_gpus, NOW, 3)


def test_a_portal_that_loses_its_right_refunds_and_releases_nothing(
    lab, slurm, node_gpus, alice
) -> None:
    made = lab.book(alice, node_gpus, NOW, 3)
    slurm.denied = True
    assert reconcile(LATER) == {"declined": 1}
    assert reconcile(at(9, 1)) == {"declined": 1}
    # Its reservation is hidden, so nobody knows whether the holder has come.
    assert reconcile(at(9, 20), watched_since=NOW) == {"declined": 1}
    with pytest.raises(EngineRefused, match="Slurm does not let the portal reserve"):
        lab.book(alice, node_gpus, at(15), 1)
    slurm.denied = False
    assert reconcile(at(9, 21)) == {}
    made.refresh_from_db()
    assert (made.state, len(slurm.holds)) == (State.ACTIVE, 1)


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "TIMEOUT"])
def test_a_job_that_ended_between_two_looks_checks_in(
    lab, slurm, node_gpus, alice, state
) -> None:
    made = lab.book(alice, node_gpus, NOW, 3)
    name = f"gp_lab1_{made.pk}"
    # This one was cancelled before it had a node.
    slurm.queue = [f"3|CANCELLED|alice|{name}|"]
    assert reconcile(LATER) == {}
    slurm.queue = [f"3|{state}|alice|{name}|gp1"]
    assert reconcile(at(9, 1)) == {"checked_in": 1, "change": 1}
    # It does not delay the end.
    release(reservation_id=made.pk, user=alice, now=at(10))
    assert reconcile(at(10, 1)) == {"release": 1}


@pytest.mark.parametrize(("since", "strike"), [(NOW, True), (at(9, 1), False)])
def test_a_purged_reservation_is_a_no_show_if_slurm_was_watched(
    lab, slurm, node_gpus, alice, since, strike
) -> None:
    made = lab.book(alice, node_gpus, NOW, 3)
    slurm.holds.clear()
    # Too early for a purge: it is made again.
    assert reconcile(at(9, 5)) == {"reserve": 1}
    slurm.holds.clear()
    did = "no-show" if strike else "unused"
    assert reconcile(at(9, 16), watched_since=since) == {did: 1}
    made.refresh_from_db()
    assert (made.state, made.no_show, made.end) == (State.RELEASED, strike, at(9, 15))
    rows = LedgerEntry.objects.filter(reservation=made)
    assert rows.filter(kind=LedgerEntry.Kind.RELEASE).exists()
    assert reconcile(at(9, 17)) == {"forget": 1}


def test_a_deleted_reservation_is_made_again_or_refunded(
    lab, slurm, node_gpus, alice
) -> None:
    made = lab.book(alice, node_gpus, at(12), 3)
    slurm.holds.clear()
    slurm.refuse["create"] = "Access/permission denied"
    assert reconcile(LATER) == {"declined": 1}
    assert "denied" in EngineHold.objects.get().failure
    slurm.refuse["create"] = OVERLAP
    assert reconcile(at(10)) == {"refunded": 1}
    made.refresh_from_db()
    assert made.state == State.REFUNDED
    why = made.user.notices.filter(kind="refunded").get().detail["reason"]
    assert why == "Slurm has reserved gp1 for another purpose in this time."


def test_a_change_that_is_refused_twice_is_refunded(
    lab, slurm, node_gpus, alice, caplog
) -> None:
    made = lab.book(alice, node_gpus, at(12), 3)
    Reservation.objects.filter(pk=made.pk).update(end=at(16))
    slurm.refuse["update"] = "Access/permission denied"
    assert reconcile(LATER) == {"declined": 1}
    assert reconcile(at(10)) == {"declined": 1}
    assert caplog.text.count("Slurm refuses it") == 1
    slurm.refuse["update"] = OVERLAP
    assert reconcile(at(10, 1)) == {"declined": 1}
    assert reconcile(at(10, 2)) == {"refunded": 1}
    made.refresh_from_db()
    assert made.state == State.REFUNDED
    assert reconcile(at(10, 3)) == {"release": 1}


def test_flex_is_held_once_nobody_can_take_it(lab, slurm, node_gpus, alice) -> None:
    Membership.objects.filter(user=alice).update(quota_gpu_seconds=0)
    lab.set(freeze_seconds=3600)
    made = lab.book(alice, node_gpus, at(12), 1)
    assert made.kind == Kind.FLEX
    assert slurm.holds == {}
    assert reconcile(LATER) == {}
    assert reconcile(at(11)) == {"reserve": 1}
    assert f"gp_lab1_{made.pk}" in slurm.holds


def test_a_cancelled_slot_can_be_booked_at_once(lab, slurm, node_gpus, alice) -> None:
    first = lab.book(alice, node_gpus, at(12), 1)
    cancel(reservation_id=first.pk, user=alice, now=NOW)
    second = lab.book(alice, node_gpus, at(12), 1)
    assert list(slurm.holds) == [f"gp_lab1_{second.pk}"]
    cancel(reservation_id=second.pk, user=alice, now=NOW)
    undo_cancel(reservation_id=second.pk, user=alice, now=NOW)
    assert list(slurm.holds) == [f"gp_lab1_{second.pk}"]


def test_a_reservation_that_ends_is_charged_and_given_back(
    lab, slurm, node_gpus, alice
) -> None:
    made = lab.book(alice, node_gpus, NOW, 1)
    slurm.jobs[f"gp_lab1_{made.pk}"] = 1
    reconcile(LATER)
    slurm.jobs.clear()
    tick.tick(at(10, 0))
    made.refresh_from_db()
    assert made.state == State.ENDED
    charge = LedgerEntry.objects.get(reservation=made, kind=LedgerEntry.Kind.CHARGE)
    assert charge.gpu_seconds == 2 * 3600
    assert reconcile(at(10, 1)) == {"release": 1}
