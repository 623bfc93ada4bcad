"""A simulation with inserted and removed requests equals the one over all that wait
then.
"""

import random

import pytest

from placement.agent.serving.queue_simulation import (
    InferenceQueue,
    QueuedRequest,
    QueueSimulation,
    ScheduledModel,
)
from placement.protocol.serving_times import HEARD_SECONDS, Lag, Timing

ROOM = 2
LOAD_SECONDS = 0.03


def models():
    profile = {size: [0.010 + 0.002 * (size - 1)] * 5 for size in (1, 2, 4, 8)}
    return {
        name: ScheduledModel(name, 1, Timing(profile, load_seconds=LOAD_SECONDS), 8)
        for name in "abc"
    }


def walk_over(queue, *, at, greedy, loaded=("a",)):
    walk = QueueSimulation(
        queue, models(), room_bytes=ROOM, loaded=loaded, at=at, greedy=greedy
    )
    walk.simulate_rest(queue.groups)
    return walk


def told(walk):
    steps = [
        (one.model, [r.id for r in one.batch], one.in_time, one.loaded)
        for one in walk.steps
    ]
    times = [(one.before, one.begin, one.end) for one in walk.steps]
    return steps, times, walk.loaded, walk.late


def same(walk, other):
    (steps, times, *rest), (steps2, times2, *rest2) = told(walk), told(other)
    assert steps == steps2
    assert rest == rest2
    assert [x for one in times for x in one] == pytest.approx(
        [x for one in times2 for x in one]
    )
    assert walk.at == pytest.approx(other.at)


def people(lots):
    """Who comes, and what becomes of each."""
    acts = ("stay", "stay", "take back", "stay and begin")
    return [
        (
            lots.choice("abc"),
            lots.randint(1, 5),  # rows
            lots.randint(5, 300),  # milliseconds until the deadline
            lots.choice(("", "x", "x", "y")),
            lots.choice(acts),
        )
        for _ in range(lots.randint(1, 30))
    ]


@pytest.mark.parametrize("greedy", [True, False])
def test_a_walk_with_a_newcomer_is_the_walk_over_everybody(greedy):
    for seed in range(150):
        comes_and_goes(people(random.Random(seed)), greedy=greedy)


def comes_and_goes(asked, *, greedy):
    queue = InferenceQueue(by_deadline=True)
    walk = walk_over(queue, at=0.0, greedy=greedy)
    loaded = ("a",)
    for number, (model, rows, within, like, then) in enumerate(asked):
        request = QueuedRequest(number, model, rows, 0.0, within / 1000, like)
        before = told(walk)
        queue.add(request)
        changed = walk.insert(request)
        same(walk, walk_over(queue, at=walk.began_at, greedy=greedy, loaded=loaded))
        assert request in walk.step_of(request).batch
        if then == "take back":
            assert queue.drop(request) and not queue.drop(request)
            walk.undo_insert(changed)
            assert told(walk) == before
        if then == "stay and begin":
            step = walk.steps[0]
            for one in step.batch:
                queue.drop(one)
            assert walk.begin_first_step(step.batch)
            loaded = walk.steps[0].loaded if walk.steps else walk.loaded
        same(walk, walk_over(queue, at=walk.began_at, greedy=greedy, loaded=loaded))
    assert len(queue) == len(queue.all()) == sum(len(one.batch) for one in walk.steps)


def test_a_newcomer_with_the_latest_deadline_costs_one_batch_not_the_queue():
    queue = InferenceQueue(by_deadline=True)
    walk = walk_over(queue, at=0.0, greedy=True)
    made = []
    step = walk._step
    walk._step = lambda *args: (made.append(args), step(*args))
    for number in range(200):
        request = QueuedRequest(number, "a", 1, 0.0, 1.0 + number, "x")
        queue.add(request)
        walk.insert(request)
    assert len(walk.steps) == 25
    assert len(made) <= 2 * 200


def test_another_run_than_the_first_step_is_not_taken_for_it():
    queue = InferenceQueue(by_deadline=True)
    for number in range(2):
        queue.add(QueuedRequest(number, "a", 1, 0.0, 1.0 + number))
    walk = walk_over(queue, at=0.0, greedy=True)
    assert not walk.begin_first_step(walk.steps[1].batch)
    assert walk.begin_first_step(walk.steps[0].batch) and walk.begin_first_step(
        walk.steps[0].batch
    )
    assert not walk.begin_first_step(())


def test_a_small_batch_takes_no_longer_than_a_larger_one_of_late():
    timing = models()["a"].timing
    for number in range(5):
        timing.record_run(1, 0.5, now=number)
    assert timing.typical_seconds(1) == pytest.approx(0.5)
    for number in range(5):
        timing.record_run(4, 0.017, now=number)
    assert timing.typical_seconds(1) == pytest.approx(0.017)
    assert timing.predicted_seconds(2) == pytest.approx(0.012)
    assert timing.typical_seconds(8) == pytest.approx(0.024)
    timing.forget(now=100.0)
    assert timing.typical_seconds(1) == pytest.approx(0.010)


def test_one_hiccup_of_a_rare_size_does_not_make_all_its_runs_slow():
    timing = models()["a"].timing
    for number in range(40):
        timing.record_run(1, 0.010 + number % 2 / 1000, now=number / 100)
    for seconds in (0.024, 0.024, 0.024, 0.024, 0.024, 0.240):
        timing.record_run(8, seconds, now=1.0)
    slower = timing.predicted_seconds(8) / timing.typical_seconds(8)
    assert 1.0 < slower < 1.1
    for _ in range(10):
        timing.record_run(1, 0.030, now=1.0)
    slower = timing.predicted_seconds(8) / timing.typical_seconds(8)
    assert slower > 1.5, "what is slow often is, whatever its size"


def test_the_lag_of_answers_is_of_late_and_leaves_out_one_in_twenty():
    lag = Lag()
    assert lag.seconds(0.0) == 0.0
    for number in range(100):
        lag.heard(9.0 if number in (3, 50) else number / 1000, now=1.0)
    assert lag.seconds(1.0) == pytest.approx(0.096)
    lag.heard(0.002, now=1.0 + HEARD_SECONDS + 1)
    assert lag.seconds(1.01) == pytest.approx(0.096), "not made anew for each request"
    assert lag.seconds(1.0 + HEARD_SECONDS + 1) == pytest.approx(0.002)
