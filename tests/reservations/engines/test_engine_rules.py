"""The next request about a hold, and the fields of Slurm's commands. Pure."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from reservations.engines.engine_port import HoldInfo, PortalEngine
from reservations.engines.rules import (
    HoldFacts,
    Step,
    covers,
    is_due,
    most_held_gpus,
    next_step,
)
from reservations.engines.slurm_engine import (
    changed_fields,
    creation_fields,
    hold_of,
)
from reservations.rules.lifecycle import Kind, State
from reservations.rules.policy import Policy
from telemetry.slurm.slurm_records import SlurmReservation, read_reservations
from telemetry.slurm.slurm_refusals import SlurmAnswer, answer_of
from tests.reservations.conftest import NOW

pytestmark = pytest.mark.pure
DATA = Path(__file__).parents[2] / "data" / "slurm"
HOUR = timedelta(hours=1)
WANTED = HoldInfo("gp_lab1_7", NOW + HOUR, NOW + 2 * HOUR, ("gp1",), ("ada",), 900)
BEGUN = replace(WANTED, start=NOW - HOUR)
KEPT = HoldFacts(WANTED, confirmed=True, asked_at=NOW - HOUR)
OVER = HoldFacts(None, confirmed=True, asked_at=NOW - HOUR, grace_seconds=30.0)


PART = replace(BEGUN, idle_seconds=0, gpus_each=2, kind="a100", cpus_each=4, of_each=4)
WHOLE = replace(WANTED, gpus_each=4, kind="a100", cpus_each=8, of_each=4)


@pytest.mark.parametrize(
    ("facts", "seen", "step"),
    [
        (KEPT, WANTED, Step.NOTHING),
        (KEPT, None, Step.RESERVE),
        (KEPT, replace(WANTED, end=NOW), Step.CHANGE),
        (KEPT, replace(WANTED, users=("bo",)), Step.CHANGE),
        (replace(KEPT, asked_at=NOW), None, Step.NOTHING),
        # Once it has begun, its start in Slurm is the moment of the request.
        (
            replace(KEPT, wanted=BEGUN),
            replace(BEGUN, start=NOW - HOUR / 2),
            Step.NOTHING,
        ),
        (replace(KEPT, wanted=BEGUN, watched_since=BEGUN.start), None, Step.NO_SHOW),
        (replace(KEPT, wanted=BEGUN, watched_since=NOW), None, Step.UNUSED),
        (replace(KEPT, wanted=BEGUN), None, Step.UNUSED),
        (replace(KEPT, wanted=BEGUN, confirmed=False), None, Step.RESERVE),
        (replace(KEPT, wanted=replace(BEGUN, idle_seconds=0)), None, Step.RESERVE),
        # Whole nodes that were reserved without a number stay so.
        (replace(KEPT, wanted=WHOLE), WANTED, Step.NOTHING),
        (replace(KEPT, wanted=PART), PART, Step.NOTHING),
        (replace(KEPT, wanted=PART), replace(PART, gpus_each=3), Step.CHANGE),
        (replace(KEPT, wanted=PART), replace(PART, gpus_each=0), Step.CHANGE),
        (replace(KEPT, wanted=PART), None, Step.RESERVE),
        (replace(KEPT, wanted=PART, idle_seconds=900), PART, Step.UNUSED),
        (replace(KEPT, wanted=PART, idle_seconds=7200), PART, Step.NOTHING),
        (OVER, None, Step.FORGET),
        (HoldFacts(None, confirmed=False), None, Step.NOTHING),
        (OVER, WANTED, Step.RELEASE),
        (
            replace(OVER, leaving_since=NOW - timedelta(seconds=20)),
            WANTED,
            Step.RELEASE,
        ),
        (replace(OVER, leaving_since=NOW - timedelta(seconds=40)), WANTED, Step.STOP),
        (replace(OVER, leaving_since=NOW - HOUR), WANTED, Step.SHORTEN),
        (replace(OVER, leaving_since=NOW - HOUR), replace(WANTED, end=NOW), Step.STOP),
    ],
)
def test_the_next_request(facts, seen, step):
    assert next_step(facts, seen, seen_at=NOW, now=NOW) is step


@pytest.mark.parametrize(
    ("state", "kind", "hours", "due"),
    [
        (State.CONFIRMED, Kind.FIRM, 100, True),
        (State.ACTIVE, Kind.FLEX, -1, True),
        (State.CONFIRMED, Kind.FLEX, 1, True),
        (State.CONFIRMED, Kind.FLEX, 3, False),
        (State.CANCELLED, Kind.FIRM, 1, False),
    ],
)
def test_flex_is_held_when_it_is_frozen(state, kind, hours, due):
    policy = replace(Policy(), freeze_seconds=7200)
    assert is_due(state, kind, NOW + hours * HOUR, now=NOW, policy=policy) is due


def test_the_fields_of_the_commands():
    assert creation_fields(BEGUN, now=NOW)["StartTime"] == "now"
    assert creation_fields(replace(WANTED, idle_seconds=0), now=NOW)["Flags"] == (
        "MAGNETIC"
    )
    assert changed_fields(WANTED, WANTED, now=NOW) == {}
    # Slurm would keep the length, and move the end too.
    moved = replace(WANTED, start=NOW + HOUR / 2)
    assert changed_fields(moved, WANTED, now=NOW) == {
        "StartTime": "2026-03-02T09:30:00",
        "EndTime": "2026-03-02T11:00:00",
    }
    assert changed_fields(replace(WANTED, idle_seconds=0), WANTED, now=NOW) == {
        "Flags-": "PURGE_COMP"
    }
    other = replace(WANTED, nodes=("gp1", "gp2"), users=("ada", "bo"))
    assert changed_fields(other, WANTED, now=NOW) == {
        "Nodes": "gp1,gp2",
        "Users": "ada,bo",
    }


def test_an_error_without_known_words_is_no_answer_of_a_kind():
    assert answer_of("scontrol: Unable to contact slurm controller (connect failure)")
    assert answer_of("something new") is SlurmAnswer.OTHER


def test_the_portal_itself_need_not_be_asked():
    engine = PortalEngine()
    assert not engine.capabilities().holds
    engine.reserve(WANTED, now=NOW)
    engine.change(WANTED, seen=WANTED, now=NOW)
    engine.stop(WANTED.name)
    engine.release(WANTED.name)
    assert engine.observe(now=NOW).holds == {}


def test_a_number_of_gpus_in_the_words_of_scontrol():
    assert creation_fields(PART, now=NOW)["TRESPerNode"] == "cpu=4,gres/gpu:a100=2"
    untyped = replace(PART, kind="")
    assert creation_fields(untyped, now=NOW)["TRESPerNode"] == "cpu=4,gres/gpu=2"
    assert "TRESPerNode" not in creation_fields(WANTED, now=NOW)


def test_what_26_05_prints_of_a_number_of_gpus():
    """Over two nodes it prints the total."""
    told = json.loads((DATA / "slurm-26.05.5.json").read_text())["reservations"]
    first, second, whole = map(hold_of, read_reservations(json.dumps(told).encode()))
    assert (first.gpus_each, first.kind, first.cpus_each) == (2, "a100", 4)
    assert (second.gpus_each, second.kind, second.cpus_each) == (1, "a100", 2)
    assert (whole.gpus_each, whole.kind, whole.idle_seconds) == (0, "", 900)
    both = SlurmReservation("r", 1, 2, ("g1", "g2"), tres="cpu=8,gres/gpu=4")
    assert (hold_of(both).gpus_each, hold_of(both).cpus_each) == (2, 4)


def test_the_gpus_that_others_hold_at_one_instant():
    def other(hours: int, **more):
        start = WANTED.start + hours * HOUR / 4
        return replace(PART, start=start, end=start + HOUR / 4, **more)

    asked = replace(PART, start=WANTED.start, end=WANTED.end)
    assert most_held_gpus(asked, []) == 0
    assert most_held_gpus(asked, [other(0), other(1)]) == 2
    assert most_held_gpus(asked, [other(0), other(0, gpus_each=1)]) == 3
    assert most_held_gpus(asked, [other(-1), other(4), other(0, nodes=("g9",))]) == 0
    assert most_held_gpus(asked, [other(2, gpus_each=0)]) == 4


@pytest.mark.parametrize(
    ("seen", "covered"),
    [
        (PART, True),
        (replace(PART, start=NOW, users=("bo",), gpus_each=3), True),
        (replace(PART, gpus_each=0), True),
        (replace(PART, gpus_each=1), False),
        (replace(PART, end=PART.end - HOUR), False),
        (replace(PART, start=NOW + HOUR), False),
        (replace(PART, nodes=("g9",)), False),
    ],
)
def test_whether_a_hold_has_all_that_was_booked(seen, covered):
    assert covers(seen, PART, now=NOW) is covered
