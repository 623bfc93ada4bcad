"""Jobs and other holds beside a hold of some GPUs of a node. Pure."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from reservations.engines.engine_port import (
    EngineAnswer,
    EngineCapabilities,
    EngineDeclined,
    EngineView,
    HoldInfo,
)
from reservations.engines.hold_jobs import has_room, holds_of_jobs, is_counted
from reservations.engines.rehearsed_engine import RehearsedEngine
from telemetry.slurm.placed_jobs import PlacedJob
from tests.reservations.conftest import NOW

pytestmark = pytest.mark.pure
HOLD = HoldInfo(
    "gp_lab1_7",
    NOW - timedelta(hours=1),
    NOW + timedelta(hours=1),
    ("gp1",),
    ("ada",),
    gpus_each=2,
    of_each=4,
)
SECOND = replace(HOLD, name="gp_lab1_8", gpus_each=1)
WHOLE = replace(HOLD, gpus_each=0, of_each=0)


def job(job_id: int, user: str = "ada", reservation: str = "", runs: bool = True):
    return PlacedJob(job_id, runs, user, reservation, ("gp1",))


def names(jobs, holds, gpus: dict[int, int]) -> list[str]:
    counts = Counter({(number, "gp1"): count for number, count in gpus.items()})
    return [name for _job, name in holds_of_jobs(jobs, holds, counts, now=NOW)]


def test_a_job_counts_to_a_hold_while_it_has_gpus_left() -> None:
    three = [job(1), job(2), job(3)]
    assert names(three, [HOLD], {1: 1, 2: 1, 3: 1}) == [HOLD.name, HOLD.name, ""]
    assert names([job(1)], [HOLD], {1: 3}) == [""]
    assert names([job(1)], [HOLD], {}) == [""]
    assert names([job(1, "bo"), job(2, runs=False)], [HOLD], {1: 1, 2: 1}) == ["", ""]
    # A job in it has its GPUs first, also if it is listed later.
    jobs = [job(1), job(2, reservation=HOLD.name)]
    assert names(jobs, [HOLD], {1: 1, 2: 2}) == ["", HOLD.name]
    # The second booking of the same person has room.
    both = [HOLD.name, SECOND.name]
    assert names([job(1), job(2)], [HOLD, SECOND], {1: 2, 2: 1}) == both
    # All of a person's jobs count to whole nodes, those without GPUs included.
    assert names(three, [WHOLE], {}) == [WHOLE.name] * 3


def test_gpus_of_jobs_are_asked_for_only_if_they_matter() -> None:
    assert is_counted([job(1)], [HOLD], now=NOW)
    assert not is_counted([job(1)], [WHOLE], now=NOW)
    assert not is_counted([job(1, "bo"), job(2, reservation="x")], [HOLD], now=NOW)
    assert not is_counted([job(1)], [HOLD], now=HOLD.end)


@pytest.mark.parametrize(
    ("hold", "others", "jobs", "gpus", "room"),
    [
        (HOLD, [], [job(1), job(2, "bo")], {1: 2, 2: 2}, True),
        (HOLD, [], [job(1), job(2, "bo")], {1: 2, 2: 3}, False),
        # More than was booked.
        (HOLD, [], [job(1), job(2, "bo")], {1: 3, 2: 1}, True),
        (HOLD, [], [job(1), job(2, "bo")], {1: 3, 2: 2}, False),
        # Another reservation has the GPUs of its jobs.
        (HOLD, [SECOND], [job(1), job(2, "bo", SECOND.name)], {1: 2, 2: 1}, True),
        (HOLD, [SECOND], [job(1), job(2, "bo")], {1: 1, 2: 2}, False),
        (HOLD, [WHOLE], [job(1)], {1: 1}, False),
        (WHOLE, [], [job(1), job(2)], {}, True),
        (WHOLE, [], [job(1), job(2, "bo")], {}, False),
    ],
)
def test_room_beside_jobs(hold, others, jobs, gpus, room) -> None:
    counts = {(number, "gp1"): count for number, count in gpus.items()}
    assert has_room(hold, others, jobs, counts) is room


def test_a_preview_counts_the_gpus_of_other_reservations() -> None:
    theirs = replace(HOLD, name="course")
    mine = {HOLD.name: HOLD, SECOND.name: SECOND}
    view = EngineView(NOW, holds=mine, others=(theirs,))
    engine = RehearsedEngine(EngineCapabilities(holds=True), view)
    engine.reserve(replace(HOLD, gpus_each=1), now=NOW)
    with pytest.raises(EngineDeclined) as no:
        engine.reserve(HOLD, now=NOW)
    assert (no.value.answer, no.value.held_gpus) == (EngineAnswer.SHORT, 3)
    engine.release(SECOND.name)
    engine.reserve(HOLD, now=NOW)
    after = HOLD.end + timedelta(hours=1)
    engine.reserve(replace(HOLD, gpus_each=4, start=HOLD.end, end=after), now=NOW)
    # A booking without a number needs the whole node.
    with pytest.raises(EngineDeclined) as no:
        engine.reserve(WHOLE, now=NOW)
    assert no.value.answer is EngineAnswer.TAKEN
