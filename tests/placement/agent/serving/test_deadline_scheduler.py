"""The promises of the scheduler of served models, under a simulated clock."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.agent.serving.deadline_scheduler import (
    MOST_WAITING,
    AdmissionVerdict,
    GpuAction,
    Scheduler,
)
from placement.agent.serving.queue_simulation import QueuedRequest, ScheduledModel
from placement.protocol.serving_times import FEWEST, ServingError, Timing, quantile
from tests.placement.serving.virtual import open_loop, uneven

GIB = 2**30


def timing(one=0.010, more=0.002, most=8, load=0.1):
    """Runs that take `one` seconds and `more` for each further row."""
    sizes = [size for size in (1, 2, 4, 8, 16) if size <= most]
    profile = {size: [one + more * (size - 1)] * 5 for size in sizes}
    return Timing(profile, load_seconds=load)


def scheduler(*names, room=4, memory=1, admits=True, loaded=True, **times):
    """A scheduler with some equal models."""
    made = Scheduler(room_bytes=room * GIB, admits=admits)
    for name in names:
        model = ScheduledModel(name, memory * GIB, timing(**times), most_rows=8)
        made.place(model, loaded=loaded)
    return made


def ask(number, model="a", at=0.0, within=1.0, rows=1, like="x"):
    return QueuedRequest(number, model, rows, at, at + within, like)


def test_a_quantile_is_the_nearest_rank():
    assert quantile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert quantile(range(1, 101), 0.99) == 99
    assert quantile([5.0], 0.99) == 5.0
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


def test_a_prediction_follows_the_runs_of_late_and_forgives_an_old_hiccup():
    times = timing()
    assert times.predicted_seconds(1) == pytest.approx(0.010)
    assert times.predicted_seconds(3) == pytest.approx(0.016)
    for number in range(FEWEST):
        times.record_run(1, 0.5, now=number * 0.1)
    assert times.predicted_seconds(1) == pytest.approx(0.5)
    assert times.typical_seconds(1) == pytest.approx(0.5)
    times.forget(now=60.0)
    assert times.predicted_seconds(1) == pytest.approx(0.010)


def test_who_cannot_be_in_time_is_turned_away_at_once_with_the_time_it_would_take():
    gpu = scheduler("a")
    assert gpu.offer(ask(1, within=0.010, like=""), 0.0).verdict is AdmissionVerdict.IN
    turned = gpu.offer(ask(2, within=0.015, like=""), 0.0)
    assert turned.verdict is AdmissionVerdict.TOO_LATE
    assert turned.done_at == pytest.approx(0.020)
    # A later deadline is fine, and an earlier one goes first.
    assert gpu.offer(ask(3, within=0.5, like=""), 0.0).verdict is AdmissionVerdict.IN
    action = gpu.next(0.0)
    assert [one.id for one in action.requests] == [1]


def test_nobody_is_let_in_who_would_make_others_late():
    gpu = scheduler("a", "b")
    assert (
        gpu.offer(ask(1, "a", within=0.020, like=""), 0.0).verdict
        is AdmissionVerdict.IN
    )
    assert (
        gpu.offer(ask(2, "b", within=0.021, like=""), 0.0).verdict
        is AdmissionVerdict.IN
    )
    first = ask(3, "a", within=0.011, like="")
    assert gpu.offer(first, 0.0).verdict is AdmissionVerdict.TOO_LATE


def test_equal_requests_share_a_run_as_far_as_the_first_deadline_allows():
    gpu = scheduler("a")
    for number in range(6):
        assert (
            gpu.offer(ask(number, within=0.016 + number), 0.0).verdict
            is AdmissionVerdict.IN
        )
    action = gpu.next(0.0)
    # Four rows take 16 ms, eight (which stand for five) 24 ms.
    assert action.rows == 4
    assert action.latest == pytest.approx(0.0)
    assert gpu.begin(action, 0.0)
    assert gpu.next(0.001) is None, "one at a time"
    gpu.finish(action, 0.016, seconds=0.016)
    assert gpu.next(0.016).rows == 2


def test_a_batch_gives_way_where_it_would_make_another_model_late():
    gpu = scheduler("a", "b")
    assert gpu.offer(ask(1, "a", within=0.040), 0.0).verdict is AdmissionVerdict.IN
    assert gpu.offer(ask(2, "b", within=0.0211), 0.0).verdict is AdmissionVerdict.IN
    # b first (10 ms), a and its equals after it: 10 + 16 ms.
    assert gpu.offer(ask(3, "a", within=0.050), 0.0).verdict is AdmissionVerdict.IN
    assert (
        gpu.offer(ask(4, "a", within=0.0205, like=""), 0.0).verdict
        is AdmissionVerdict.IN
    )
    assert [one.id for one in gpu.next(0.0).requests] == [4]


def test_who_opens_a_batch_behind_others_leaves_room_to_fill_it():
    gpu = scheduler("a")
    for number in range(8):
        assert gpu.offer(ask(number, within=0.060), 0.0).verdict is AdmissionVerdict.IN
    assert gpu.begin(gpu.next(0.0), 0.0), "eight rows, until 24 ms"
    for number in range(8, 16):
        asked = ask(number, within=0.060)
        assert gpu.offer(asked, 0.0).verdict is AdmissionVerdict.IN, (
            "in one, until 48 ms"
        )
    # Alone it would finish after 58 ms; filled, as half its deadline allows, after 72.
    turned = gpu.offer(ask(16, within=0.065), 0.0)
    assert turned.verdict is AdmissionVerdict.TOO_LATE
    assert turned.done_at == pytest.approx(0.072)
    assert gpu.offer(ask(17, within=0.073), 0.0).verdict is AdmissionVerdict.IN
    # A request that joins others, or cannot share, or goes first, needs no such room.
    assert gpu.offer(ask(18, within=0.073), 0.0).verdict is AdmissionVerdict.IN
    gpu = scheduler("a")
    for number in range(2):
        alone = ask(number, within=0.021, like="")
        assert gpu.offer(alone, 0.0).verdict is AdmissionVerdict.IN


def test_what_lasts_longer_than_was_thought_lasts_longer_still():
    gpu = scheduler("a")
    gpu.busy(3.0, more_seconds=3.0)
    assert (
        gpu.offer(ask(1, at=1.0, within=1.9), 1.0).verdict is AdmissionVerdict.TOO_LATE
    )
    assert gpu.offer(ask(2, at=1.0, within=3.0), 1.0).verdict is AdmissionVerdict.IN
    # It was not over then. A request that comes now is not admitted for the moment
    # before.
    admission = gpu.offer(ask(3, at=3.5, within=1.0), 3.5)
    assert admission.verdict is AdmissionVerdict.TOO_LATE
    assert admission.done_at > 6.0
    gpu.drop_late(3.9)
    assert gpu.late == []
    gpu.drop_late(4.0)
    assert [one.id for one in gpu.late] == [2], "found late while something else runs"
    gpu.busy(4.2)
    assert gpu.offer(ask(4, at=4.2, within=0.1), 4.2).verdict is AdmissionVerdict.IN


def test_an_action_that_is_late_is_dropped_not_queued():
    gpu = scheduler("a")
    gpu.offer(ask(1, within=0.020), 0.0)
    action = gpu.next(0.0)
    assert not gpu.begin(action, 0.011)
    assert [one.id for one in gpu.late] == [1]
    assert gpu.next(0.011) is None
    gpu.offer(ask(2, at=0.02, within=0.020), 0.02)
    assert gpu.next(0.05) is None, "found late before it is tried"
    assert [one.id for one in gpu.late] == [1, 2]


def test_models_that_do_not_fit_together_take_turns():
    gpu = scheduler("a", "b", "c", room=2, loaded=False)
    acts = []
    now = 0.0
    for number, name in enumerate("abca"):
        gpu.offer(ask(number, name, at=now, within=2.0), now)
        while (action := gpu.next(now)) is not None:
            assert gpu.begin(action, now)
            acts.append((action.act, action.model))
            now += action.predicted_seconds
            gpu.finish(action, now, seconds=action.predicted_seconds)
    load, unload, infer = GpuAction.LOAD, GpuAction.UNLOAD, GpuAction.INFER
    assert acts == [
        *((load, "a"), (infer, "a"), (load, "b"), (infer, "b")),
        *((unload, "a"), (load, "c"), (infer, "c")),
        *((unload, "b"), (load, "a"), (infer, "a")),
    ]


def test_the_time_of_a_load_counts_against_the_deadline():
    gpu = scheduler("a", loaded=False, load=0.1)
    turned = gpu.offer(ask(1, within=0.1), 0.0)
    assert turned.verdict is AdmissionVerdict.TOO_LATE
    assert turned.done_at == pytest.approx(0.110)
    assert gpu.offer(ask(2, within=0.2), 0.0).verdict is AdmissionVerdict.IN
    action = gpu.next(0.0)
    assert (action.act, action.latest) == (GpuAction.LOAD, pytest.approx(0.090))


def test_a_full_queue_a_foreign_model_and_too_many_rows_are_told_apart():
    gpu = scheduler("a")
    for number in range(MOST_WAITING):
        gpu.offer(ask(number, within=1e6), 0.0)
    assert gpu.offer(ask(9999, within=1e6), 0.0).verdict is AdmissionVerdict.FULL
    for wrong in (ask(1, "z"), ask(1, rows=9), ask(1, rows=0)):
        with pytest.raises(ServingError):
            gpu.offer(wrong, 0.0)
    with pytest.raises(ServingError, match="larger than the room"):
        gpu.place(ScheduledModel("big", 5 * GIB, timing()), loaded=False)
    assert len(gpu.remove("a")) == MOST_WAITING
    assert gpu.waiting == 0


def test_without_admission_it_is_first_come_first_served():
    gpu = scheduler("a", admits=False)
    for number, within in enumerate((1.0, 0.001, 0.5)):
        asked = ask(number, within=within, like="")
        assert gpu.offer(asked, 0.0).verdict is AdmissionVerdict.IN
    assert [one.id for one in gpu.next(5.0).requests] == [0]


@pytest.mark.parametrize("most_batch", [1, 8])
def test_goodput_stays_flat_past_saturation_with_admission_and_only_with_it(most_batch):
    one, more = 0.010, 0.004
    capacity = most_batch / (one + more * (most_batch - 1))

    def fates(percent, admits):
        gpu = Scheduler(room_bytes=GIB, admits=admits)
        times = timing(one, more, most=most_batch)
        gpu.place(ScheduledModel("a", GIB, times, most_rows=most_batch), loaded=True)
        return open_loop(
            gpu,
            model="a",
            per_second=capacity * percent / 100,
            seconds=10,
            deadline_seconds=0.1,
            run_seconds=uneven(7, one, more),
            seed=3,
        )

    with_it = {percent: fates(percent, True) for percent in (50, 75, 100, 150, 300)}
    assert with_it[50]["in time"] > 0.99 * sum(with_it[50].values())
    assert with_it[75]["in time"] > 0.97 * sum(with_it[75].values())
    assert with_it[150]["in time"] > 0.95 * with_it[100]["in time"]
    for percent in (150, 300):
        assert with_it[percent]["in time"] > 0.88 * capacity * 10, "batches stay full"
    for percent in (100, 150):
        let_in = sum(with_it[percent].values()) - with_it[percent]["refused"]
        assert with_it[percent]["in time"] > 0.9 * let_in
    without = fates(150, False)
    assert without["in time"] < 0.2 * with_it[150]["in time"]


arrivals = st.lists(
    st.tuples(
        st.integers(0, 30),  # milliseconds since the one before
        st.sampled_from("abc"),
        st.integers(1, 4),  # rows
        st.integers(5, 400),  # milliseconds until the deadline
        st.sampled_from(("", "x", "y")),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(arrivals, st.integers(1, 3))
def test_who_is_let_in_is_in_time_and_nothing_breaks_the_rules(asked, room):
    gpu = scheduler("a", "b", "c", room=room, loaded=False, load=0.03)
    now, free_at, running = 0.0, 0.0, None
    let_in, done = {}, {}

    def run_until(until):
        nonlocal now, free_at, running
        while True:
            if running is not None:
                if free_at > until:
                    break
                now = free_at
                gpu.finish(running, now, seconds=running.predicted_seconds)
                for one in running.requests:
                    assert one.id not in done
                    done[one.id] = now
                running = None
            running = gpu.next(now)
            if running is None:
                break
            assert gpu.begin(running, now), "a clock that stands still is never late"
            free_at = now + running.predicted_seconds
            used = sum(gpu.placed[name].memory_bytes for name in gpu.loaded)
            assert used <= gpu.room_bytes
            if running.act is GpuAction.INFER:
                assert running.model in gpu.loaded
                assert running.rows <= gpu.placed[running.model].most_rows
                assert {one.model for one in running.requests} == {running.model}
                assert len({one.like for one in running.requests}) == 1
        now = max(now, until)

    at = 0.0
    for number, (gap, model, rows, within, like) in enumerate(asked):
        at += gap / 1000
        run_until(at)
        request = ask(number, model, at, within / 1000, rows, like)
        admission = gpu.offer(request, at)
        if admission.verdict is AdmissionVerdict.IN:
            let_in[number] = request
            assert admission.done_at <= request.deadline_at + 1e-6
        else:
            assert admission.done_at > at
    run_until(at + 100)
    assert set(done) == set(let_in), "everybody who is let in is served"
    assert gpu.late == []
    for number, request in let_in.items():
        assert done[number] <= request.deadline_at + 1e-6
