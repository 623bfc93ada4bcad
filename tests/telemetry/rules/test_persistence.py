"""Only time that fresh samples cover counts, and ten readings tell of all."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.protocol.reading import GpuReading, ProcessReading, Throttle
from telemetry.rules.persistence import (
    MOST_READINGS,
    PersistentCauses,
    ReadingTrail,
    reading_facts,
)

pytestmark = pytest.mark.pure
READING = GpuReading("GPU-1", util_pct=1)


def test_a_cause_counts_samples_and_the_time_between_them():
    stands = PersistentCauses()
    for second in range(5):
        stands.begin_look(READING, at=float(second))
        stand = stands.holds("idle")
    assert (stand.seconds, stand.samples) == (4.0, 5)
    assert stand.passes(4, 5)
    assert not stand.passes(4, 6)


def test_the_same_sample_seen_again_counts_once():
    stands = PersistentCauses()
    for at in (0.0, 0.001, 0.002, 1.0, 1.001):
        stands.begin_look(READING, at=at)
        stand = stands.holds("idle")
    assert (stand.seconds, stand.samples) == (1.0, 2)


def test_a_gap_adds_no_more_than_what_makes_a_gpu_stale():
    stands = PersistentCauses()
    for at in (0.0, 600.0):
        stands.begin_look(READING, at=at)
        stand = stands.holds("idle")
    assert stand.seconds == 3.5


def test_blind_time_adds_nothing_and_forgets_nothing():
    stands = PersistentCauses()
    for at in (0.0, 1.0):
        stands.begin_look(READING, at=at)
        stands.holds("idle")
    stands.note_gap()
    stands.begin_look(READING, at=600.0)
    assert stands.holds("idle").seconds == 1.0


def test_a_break_begins_anew_whether_it_was_said_or_not_asked():
    stands = PersistentCauses()
    for at in (0.0, 1.0, 2.0):
        stands.begin_look(READING, at=at)
        stands.holds("idle", at != 1.0)
        if at != 1.0:
            process = stands.holds(("process", 7))
    assert process.samples == 1
    assert stands.holds("idle").samples == 1


def test_a_clock_that_is_set_back_takes_nothing_away():
    stands = PersistentCauses()
    for at in (3600.0, 3601.0, 0.0, 1.0):
        stands.begin_look(READING, at=at)
        stand = stands.holds("idle")
    assert (stand.seconds, stand.samples) == (2.0, 4)


@settings(max_examples=30, deadline=None)
@given(st.integers(min_value=1, max_value=4000))
def test_a_trail_keeps_at_most_ten_the_first_and_the_last_among_them(count):
    trail = ReadingTrail()
    for at in range(count):
        trail.add(float(at), READING)
    kept = [one["at"] for one in trail.facts()]
    assert len(kept) == min(count, len(kept)) <= MOST_READINGS
    assert (kept[0], kept[-1]) == (0.0, float(count - 1))
    assert kept == sorted(set(kept))
    gaps = [b - a for a, b in itertools.pairwise(kept)]
    assert not gaps or max(gaps) <= max(1, count / 4)


def test_what_the_card_cannot_say_is_left_out_of_the_facts():
    facts = reading_facts(
        7.04,
        GpuReading(
            "GPU-1",
            util_pct=0,
            throttle=(Throttle.HW_THERMAL,),
            processes=tuple(ProcessReading(pid=n, user="bob") for n in range(1, 7)),
        ),
    )
    assert facts["at"] == 7.0
    assert facts["util_pct"] == 0
    assert facts["throttle"] == ["hw_thermal"]
    assert len(facts["processes"]) == 4
    assert facts["process_count"] == 6
    assert "power_watts" not in facts
