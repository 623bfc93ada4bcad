"""Replaying traces: exact small cases, promises kept, and the recorded anchors."""

import gzip
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reservations.reports.replay.engine import Profile, ReplayedRun, TooWide, replay
from reservations.reports.replay.measures import max_min, measure
from reservations.reports.replay.queue_orders import (
    NAMES,
    FairTreeOrder,
    FirmFlex,
    default_half_life_seconds,
    order_of,
)
from reservations.reports.replay.site_rules import (
    AccountEdit,
    AccountRule,
    MemberRule,
    SiteTree,
)
from reservations.reports.replay.trace import TraceInvalid, TraceJob, read_trace
from reservations.rules.policy import Policy

HOUR = 3600
TRACES = Path(__file__).resolve().parents[5] / "shared" / "data" / "traces"
HEAD = "job_id,user,group,submit_s,gpus,duration_s,status,req_s\n"


def job(number: int, submit_s: int, gpus: int, ran_s: int, **fields) -> TraceJob:
    fields.setdefault("req_s", ran_s)
    fields.setdefault("user", "alice")
    fields.setdefault("group", "vision")
    return TraceJob(
        number=number,
        job_id=f"j{number}",
        submit_s=submit_s,
        gpus=gpus,
        duration_s=min(ran_s, fields["req_s"]),
        **fields,
    )


def starts(name: str, jobs: list[TraceJob], gpus: int, **options) -> dict[int, int]:
    order = order_of(name, jobs, gpus=gpus, policy=Policy(), **options)
    return {run.job.number: run.start_s for run in replay(jobs, gpus=gpus, order=order)}


class TestOrders:
    WIDE = [
        job(0, 0, 3, 100),
        job(1, 1, 4, 50),  # waits for all four
        job(2, 2, 1, 99, user="bob"),  # ends before the wide one may start
        job(3, 3, 1, 500, user="bob"),  # would push it back
    ]

    def test_fifo_lets_nobody_overtake(self):
        assert starts("fifo", self.WIDE, 4) == {0: 0, 1: 100, 2: 150, 3: 150}

    def test_easy_lets_overtake_who_pushes_nobody_back(self):
        found = starts("easy", [*self.WIDE[:2], job(2, 2, 1, 98), self.WIDE[3]], 4)
        assert found == {0: 0, 1: 100, 2: 2, 3: 150}

    def test_max_min_serves_whoever_holds_least(self):
        jobs = [
            job(0, 0, 2, 100),
            job(1, 1, 1, 100),
            job(2, 2, 1, 100, user="bob"),
            job(3, 0, 2, 50, user="carol", group="audio"),
        ]
        found = starts("max-min", sorted(jobs, key=lambda j: j.submit_s), 4)
        # At 50 s two Gpus are free: Alice holds two, Bob none.
        assert (found[2], found[1]) == (50, 50)
        assert starts("max-min", jobs[:3], 3) == {0: 0, 1: 1, 2: 100}

    def test_fair_tree_serves_the_group_that_used_less(self):
        jobs = [
            job(0, 0, 1, 1000),
            job(1, 1, 1, 10),
            job(2, 2, 1, 10, user="carol", group="audio"),
        ]
        assert starts("fair-tree", jobs, 1) == {0: 0, 2: 1000, 1: 1010}

    def test_what_the_quota_allows_goes_before_what_it_does_not(self):
        jobs = [
            job(0, 0, 1, 100, user="bob"),
            job(1, 1, 1, 200),  # beyond a quota of 150 s: flex
            job(2, 2, 1, 100, user="bob"),  # 200 s in all: flex too
            job(3, 3, 1, 50),  # firm
        ]
        found = starts("firm-flex", jobs, 1, quota_gpu_seconds=150)
        assert found == {0: 0, 3: 100, 1: 150, 2: 350}

    def test_the_sites_own_shares_and_quotas_bind_as_they_do_there(self):
        jobs = [
            job(0, 0, 1, 100, user="bob", group="nlp"),
            job(1, 1, 1, 200),
            job(2, 2, 1, 100, user="dave"),
            job(3, 3, 1, 50, user="bob", group="nlp"),
        ]
        tree = SiteTree(
            (
                AccountRule("lab", None, 1, None),
                AccountRule("vision", "lab", 1, 250 * 4),
                AccountRule("nlp", "lab", 1, None),
                AccountRule("idle", "lab", 99, 0),
            ),
            (
                MemberRule("vision", "alice", 1, 300 * 4),
                MemberRule("vision", "dave", 1, None),
                MemberRule("nlp", "bob", 1, None, 120 * 4),
                MemberRule("idle", "erin", 1, 0),
            ),
        )

        def firm(**edits) -> set[int]:
            now = tree.edited(edits, quota_gpu_seconds=150 * 4)
            found = now.of_trace(jobs, weight=4)
            assert {one.name for one in found.accounts} == {"lab", "vision", "nlp"}
            order = FirmFlex(jobs, Policy(), 150, tree=found)
            replay(jobs, gpus=1, order=order)
            return order.firm

        # Dave is within his own quota and not within his group's; Bob's Pool has one.
        assert firm() == {0, 1}
        wider = AccountEdit(1, None)
        assert firm(vision=wider) == {0, 1, 2}
        assert firm(vision=AccountEdit(1, None, 500)) == {0}
        assert firm(nlp=AccountEdit(1, None, 1250)) == {0, 1, 3}

        def order_after(**edits) -> list[int]:
            now = tree.edited(edits, quota_gpu_seconds=0).of_trace(jobs, weight=4)
            order = FairTreeOrder(jobs, Policy(), now)
            for one, end in ((jobs[0], 100), (jobs[1], 300)):
                order.started(one, end - one.duration_s)
                order.ended(one, end, waiting=True)
            return [one.number for one in order.queue(jobs[2:], 10_000)]

        # nlp used 100 and vision 200; with three times the shares vision used less.
        assert order_after() == [3, 2]
        assert order_after(vision=AccountEdit(3, None)) == [2, 3]

    def test_quota_comes_back_with_what_is_given_back(self):
        order = FirmFlex([job(0, 0, 1, 10)], Policy(), quota_gpu_seconds=HOUR)
        short = job(0, 0, 1, 10, req_s=HOUR)
        order.submitted(short, 0)
        order.started(short, 0)
        order.ended(short, 10, waiting=False)
        order.submitted(job(1, 20, 1, HOUR - 10), 20)
        order.submitted(job(2, 21, 1, 1), 21)
        assert order.firm == {0, 1}

    def test_giving_back_what_nobody_waits_for_costs_half(self):
        order = FirmFlex([job(0, 0, 2, 10)], Policy(), quota_gpu_seconds=HOUR)
        early = job(0, 0, 2, HOUR, req_s=3 * HOUR)
        assert order.price(early, waiting=True) == 2 * HOUR
        assert order.price(early, waiting=False) == 2 * HOUR + 2 * HOUR

    def test_flex_whose_planned_start_is_frozen_is_not_pushed_back_by_firm(self):
        jobs = [
            job(0, 0, 2, 100, user="bob"),
            job(1, 1, 2, 300, user="carol"),  # beyond the quota: flex
            job(2, 2, 2, 100),  # firm
        ]
        options = {"quota_gpu_seconds": 200}
        assert starts("firm-flex", jobs, 2, **options) == {0: 0, 2: 100, 1: 200}
        kept = starts("firm-flex", jobs, 2, keeps_plans=True, **options)
        assert kept == {0: 0, 1: 100, 2: 400}
        never = Policy(freeze_seconds=0, flex_horizon_seconds=0)
        order = order_of(
            "firm-flex", jobs, gpus=2, policy=never, keeps_plans=True, **options
        )
        runs = replay(jobs, gpus=2, order=order)
        assert {run.job.number: run.start_s for run in runs} == {0: 0, 2: 100, 1: 200}

    def test_progress_is_told_and_can_end_a_replay(self):
        told = []

        def stop(ratio):
            told.append(ratio)
            if ratio > 0.5:
                raise InterruptedError

        jobs = [job(n, n, 1, 1) for n in range(300)]
        order = order_of("fifo", jobs, gpus=1, policy=Policy())
        with pytest.raises(InterruptedError):
            replay(jobs, gpus=1, order=order, progress=stop)
        assert told == sorted(told)
        assert len(told) > 2

    def test_a_job_wider_than_the_cluster_is_refused(self):
        with pytest.raises(TooWide, match="j0 wants 5 GPUs, there are 4"):
            starts("fifo", [job(0, 0, 5, 1)], 4)


jobs_strategy = st.lists(
    st.tuples(
        st.integers(0, 50),
        st.integers(1, 4),
        st.integers(0, 30),
        st.integers(1, 40),
        st.sampled_from("abc"),
        st.sampled_from("xy"),
    ),
    min_size=1,
    max_size=12,
).map(
    lambda rows: sorted(
        (
            job(n, at, gpus, ran, req_s=asked, user=user, group=group)
            for n, (at, gpus, ran, asked, user, group) in enumerate(rows)
        ),
        key=lambda one: (one.submit_s, one.number),
    )
)


@pytest.mark.parametrize("name", NAMES)
@given(jobs=jobs_strategy)
@settings(max_examples=25, deadline=None)
def test_every_job_runs_once_and_no_gpu_twice(name, jobs):
    runs = replay(jobs, gpus=4, order=order_of(name, jobs, gpus=4, policy=Policy()))
    assert sorted(run.job.number for run in runs) == sorted(j.number for j in jobs)
    for instant in {run.start_s for run in runs}:
        held = sum(r.job.gpus for r in runs if r.start_s <= instant < r.end_s)
        assert held <= 4
    assert all(run.wait_s >= 0 for run in runs)
    found = measure(runs, gpus=4)
    assert 0 <= found.utilization <= 1
    assert found.jain_flat <= 1 + 1e-9


@given(
    held=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 3)), max_size=5),
    gpus=st.integers(1, 6),
    seconds=st.integers(1, 15),
)
@settings(max_examples=60, deadline=None)
def test_the_earliest_start_is_the_earliest(held, gpus, seconds):
    ends = sorted((end, n, width) for n, (end, width) in enumerate(held))
    profile = Profile(0, 6, ends)
    profile.hold(3, 2, 4)
    at = profile.earliest(gpus, seconds)

    def free(instant: int) -> int:
        back = sum(width for end, width in held if end <= instant)
        return 6 + back - (2 if 3 <= instant < 7 else 0)

    def works(start: int) -> bool:
        return all(free(t) >= gpus for t in range(start, start + seconds))

    assert works(at)
    assert not any(works(start) for start in range(at))


@given(
    wanted=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 9), min_size=1),
    capacity=st.integers(0, 20),
)
@settings(max_examples=50, deadline=None)
def test_max_min_gives_all_there_is_and_nobody_less_than_a_richer_one(wanted, capacity):
    shares = max_min(wanted, capacity)
    assert sum(shares.values()) == pytest.approx(min(capacity, sum(wanted.values())))
    for name, share in shares.items():
        assert share <= wanted[name]
        if share < wanted[name]:
            assert all(other <= share + 1e-9 for other in shares.values())


class TestMeasures:
    def test_waits_slowdown_and_use_of_two_jobs(self):
        runs = [
            ReplayedRun(job(0, 0, 1, HOUR), 0),
            ReplayedRun(job(1, 0, 1, HOUR, user="bob"), HOUR),
        ]
        found = measure(runs, gpus=1)
        assert (found.wait_mean_hours, found.wait_p50_hours) == (0.5, 0.5)
        assert found.bounded_slowdown == 1.5
        assert found.utilization == pytest.approx(2 / 24)

    def test_equal_service_is_an_index_of_one_and_one_of_two_a_half(self):
        both = [
            ReplayedRun(job(0, 0, 1, HOUR), 0),
            ReplayedRun(job(1, 0, 1, HOUR, user="bob"), 0),
        ]
        assert measure(both, gpus=2).jain_flat == pytest.approx(1)
        day = 86_400
        one = [
            ReplayedRun(job(0, 0, 1, day), 0),
            ReplayedRun(job(1, 0, 1, day, user="bob"), day),
        ]
        assert measure(one, gpus=1).jain_flat == pytest.approx(0.5)


class TestTrace:
    def test_rows_come_in_order_of_submission_and_runs_are_cut_at_the_request(self):
        text = HEAD + "b,u,g,9,2,50,pass,30\na,u,g,3,1,5,failed,60\n"
        found = read_trace(text.splitlines())
        assert [(j.job_id, j.duration_s) for j in found] == [("a", 5), ("b", 30)]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "no column job_id"),
            (HEAD, "no job"),
            ("job_id,user\n1,2\n", "no column group"),
            (HEAD + "a,u,g,x,1,5,pass,60\n", "line 2: submit_s is not a whole number"),
            (HEAD + "a,u,g,1,0,5,pass,60\n", "line 2: gpus is 0, not 1 to"),
            (HEAD + "a,u,g,1,-1,5,pass,60\n", "gpus is not a whole number: '-1'"),
            (HEAD + "a,u,g,1\n", "line 2: no gpus"),
            (HEAD + "a,u,g,1," + "9" * 16 + ",5,pass,60\n", "is not a whole number"),
            (HEAD + "a," + "u" * 300 + ",g,1,1,5,pass,60\n", "user is too long"),
        ],
    )
    def test_what_is_no_trace_says_where(self, text, said):
        with pytest.raises(TraceInvalid, match=said):
            read_trace(text.splitlines(keepends=True))


@pytest.mark.skipif(
    not (TRACES / "philly_week.csv.gz").exists(),
    reason="the Philly trace is other people's: it lies in shared/, not in this tree",
)
class TestPhillyWeek:
    """Anchors of the trace's README: a reference simulator on 400 Gpus."""

    @pytest.mark.parametrize(
        ("name", "wait", "slowdown", "flat", "tree", "short", "worst"),
        [
            ("fifo", 6.4636, 212, 0.565, 0.539, 0.248, 17.7),
            ("easy", 3.84, 107, 0.616, 0.574, 0.227, 18.1),
            ("max-min", 1.85, 17, 0.908, 0.837, 0.111, 15.2),
        ],
    )
    def test_equals_the_reference(self, name, wait, slowdown, flat, tree, short, worst):
        with gzip.open(TRACES / "philly_week.csv.gz", "rt") as lines:
            jobs = read_trace(lines)
        order = order_of(name, jobs, gpus=400, policy=Policy())
        found = measure(replay(jobs, gpus=400, order=order), gpus=400)
        assert found.wait_mean_hours == pytest.approx(wait, abs=0.005)
        assert found.bounded_slowdown == pytest.approx(slowdown, abs=0.5)
        assert found.jain_flat == pytest.approx(flat, abs=0.002)
        assert found.jain_tree == pytest.approx(tree, abs=0.002)
        assert found.unserved_entitlement == pytest.approx(short, abs=0.001)
        assert found.worst_user_wait_hours == pytest.approx(worst, abs=0.06)

    def test_firm_flex_is_as_good_as_the_best_of_each_column(self):
        with gzip.open(TRACES / "philly_week.csv.gz", "rt") as lines:
            jobs = read_trace(lines)
        policy = Policy(half_life_seconds=default_half_life_seconds(jobs, Policy()))
        order = order_of("firm-flex", jobs, gpus=400, policy=policy)
        found = measure(replay(jobs, gpus=400, order=order), gpus=400)
        assert found.utilization >= 0.905
        assert found.unserved_entitlement <= 0.106
        assert found.jain_tree >= 0.837


class TestGaps:
    """Jobs that can be paused run on GPUs that are held for a planned start."""

    def test_a_job_runs_in_the_gap_of_a_planned_start_and_goes_on_behind_it(self):
        jobs = [
            job(0, 0, 3, 1000),
            job(1, 0, 4, 500),  # holds the fourth GPU from 1000 on
            job(2, 0, 1, 2000, user="bob"),  # would push it back
        ]
        runs = {
            run.job.number: run
            for run in replay(
                jobs,
                gpus=4,
                order=order_of("easy", jobs, gpus=4, policy=Policy()),
                pauses=lambda one: one.number == 2,
            )
        }
        assert runs[1].start_s == 1000, "nobody was pushed back"
        # A minute to start, 940 s of work, a pause of 500 s, then the rest.
        assert runs[2].pieces == ((60, 1000), (1500, 2560))
        assert runs[2].job == jobs[2]
        assert runs[2].wait_s == 560
        assert measure(list(runs.values()), gpus=4).jobs == 3

    def test_what_cannot_be_paused_waits_as_before(self):
        jobs = [job(0, 0, 3, 100), job(1, 0, 4, 50), job(2, 0, 1, 200, user="bob")]
        order = order_of("easy", jobs, gpus=4, policy=Policy())
        runs = replay(jobs, gpus=4, order=order, pauses=lambda one: False)
        assert {run.job.number: run.start_s for run in runs} == {0: 0, 1: 100, 2: 150}

    @given(
        st.lists(
            st.tuples(
                st.integers(0, 3000),
                st.integers(1, 4),
                st.integers(0, 2000),
                st.integers(0, 2000),
                st.booleans(),
            ),
            min_size=1,
            max_size=25,
        ),
        st.sampled_from(NAMES),
    )
    @settings(max_examples=100, deadline=None)
    def test_all_work_is_done_once_and_never_on_more_gpus_than_there_are(
        self, drawn, name
    ):
        jobs = sorted(
            (
                job(n, at, gpus, ran, req_s=max(1, ran + more), user="ab"[odd])
                for n, (at, gpus, ran, more, odd) in enumerate(drawn)
            ),
            key=lambda one: (one.submit_s, one.number),
        )
        order = order_of(name, jobs, gpus=4, policy=Policy())
        runs = replay(jobs, gpus=4, order=order, pauses=lambda one: one.number % 2)
        assert sorted(run.job.number for run in runs) == list(range(len(jobs)))
        events = []
        for run in runs:
            assert sum(e - s for s, e in run.served) == run.job.duration_s
            assert run.served[0][0] >= run.job.submit_s
            assert all(a[1] <= b[0] for a, b in pairwise(run.served))
            events += [(s, run.job.gpus) for s, e in run.served if e > s]
            events += [(e, -run.job.gpus) for s, e in run.served if e > s]
        held = 0
        for _at, change in sorted(events):
            held += change
            assert held <= 4
