"""Stored logs as pages read them."""

import fcntl
import time
from datetime import timedelta
from itertools import pairwise

import pytest
from django.utils import timezone

from placement.jobs.nodes import log_store
from placement.models import Job, PlacementPolicy
from placement.protocol.node_refusals import LogTooLarge
from tests.factories import make_node, make_reservation
from tests.placement.lab import signed_in


@pytest.fixture
def job(alice):
    return Job.objects.create(
        reservation=make_reservation(alice),
        owner=alice,
        node=make_node(),
        name="try",
        kind="recipe",
        attempt=1,
    )


def write(job, data):
    log_store.append(job, attempt=1, offset=log_store.size(job), data=data)


def test_a_job_without_a_log_is_empty(job):
    assert log_store.size(job) == 0
    assert log_store.read(job, offset=0).data == ""
    assert log_store.tail(job).data == ""
    assert log_store.numbers(job).rows == []
    assert log_store.last_lines(job, 3) == []


def test_a_range_is_told_in_raw_bytes_and_shown_clean(job):
    write(job, b"one\n\x1b[2Jtwo\n")
    piece = log_store.read(job, offset=4, length=100)
    assert (piece.offset, piece.bytes, piece.size) == (4, 8, 12)
    assert piece.data == "two\n"


def test_ranges_outside_are_empty(job):
    write(job, b"one\n")
    piece = log_store.read(job, offset=100)
    assert (piece.offset, piece.bytes, piece.data) == (4, 0, "")


def test_a_range_is_at_most_a_mebibyte(job):
    write(job, b"x" * 1_500_000)
    assert log_store.read(job, offset=0, length=10**9).bytes == 2**20


def test_the_tail_begins_with_a_line(job):
    write(job, b"".join(b"line %d\n" % n for n in range(1000)))
    piece = log_store.tail(job, 100)
    assert piece.data.splitlines()[-1] == "line 999"
    assert all(line.startswith("line ") for line in piece.data.splitlines())
    raw = log_store.path_of(job).read_bytes()
    assert raw[piece.offset : piece.offset + piece.bytes].decode() == piece.data


def test_last_lines_are_the_nodes_words_until_the_log_is_there(job):
    job.last_lines = ["told\x1b[2J"]
    assert log_store.last_lines(job, 5) == ["told"]
    write(job, b"a\nb\nc\n")
    assert log_store.last_lines(job, 2) == ["b", "c"]


def test_numbers_are_read_on_as_the_log_grows(job):
    write(job, b"step=1 loss=3.5\nnoise\nstep=2 lo")
    assert log_store.numbers(job).rows == [{"step": 1, "loss": 3.5}]
    write(job, b"ss=3.0\n")
    assert log_store.numbers(job).rows[-1] == {"step": 2, "loss": 3.0}
    assert len(log_store.numbers(job).rows) == 2
    assert log_store.numbers(job).not_finite == {}
    write(job, b"step=3 loss=nan\n")
    assert log_store.numbers(job).not_finite == {"loss": 3}


def test_what_a_library_tells_before_its_numbers_is_kept_between_two_looks(job):
    write(job, b"Epoch 2/3\n")
    assert log_store.numbers(job).rows == []
    write(job, b"1/8 [.....] - ETA: 0s - loss: 0.9\r8/8 [=====] - 1s - loss: 0.5\n")
    assert log_store.numbers(job).rows == [{"step": 16, "loss": 0.5}]


def test_a_request_reads_a_part_of_a_long_log_and_says_what_is_left(job, monkeypatch):
    monkeypatch.setattr(log_store, "NUMBERS_BLOCK_BYTES", 500)
    lines = b"".join(b"step=%d loss=1.0\n" % n for n in range(300))
    write(job, lines + b"step=300 lo")
    first = log_store.numbers(job, 1000)
    assert 0 < len(first.rows) < 300
    assert first.left_bytes == len(lines) + 11 - first.new_bytes
    rest = log_store.numbers(job, 10**6)
    assert (len(rest.rows), rest.left_bytes) == (300, 0)
    assert first.new_bytes + rest.new_bytes == len(lines)


def test_one_process_reads_a_log_for_numbers_at_a_time(job):
    write(job, b"step=1 loss=3.5\n")
    log_store.numbers(job)
    write(job, b"step=2 loss=3.0\n")
    turn = log_store.path_of(job).with_suffix(".numbers.turn")
    with turn.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = log_store.numbers(job)
    assert (len(waiting.rows), waiting.new_bytes, waiting.left_bytes) == (1, 0, 16)
    assert len(log_store.numbers(job).rows) == 2


# Files only.
@pytest.mark.once
def test_the_few_points_of_an_evaluation_are_kept_beside_many_others(job):
    lines = []
    for step in range(1, 6001):
        lines.append(f"step={step} loss={1 / step:.6f}")
        if step % 500 == 0:
            lines.append(f"step={step} eval_loss={2 / step:.6f}")
    write(job, ("\n".join(lines) + "\n").encode())
    rows = log_store.numbers(job).rows
    of_evaluation = [row["step"] for row in rows if "eval_loss" in row]
    assert of_evaluation == list(range(500, 6001, 500))
    of_training = [row["step"] for row in rows if "loss" in row]
    assert 400 < len(of_training) <= log_store.MOST_POINTS
    gaps = {after - before for before, after in pairwise(of_training)}
    assert gaps == {8.0}


def test_names_without_end_are_thinned_together(job):
    lines = (f"step={n} loss_{n}=0.5\n" for n in range(1, 3001))
    write(job, "".join(lines).encode())
    rows = log_store.numbers(job).rows
    assert 0 < len(rows) <= log_store.MOST_POINTS


def test_a_million_lines_become_a_chart_that_a_browser_can_draw(job):
    lines = b"".join(b"step=%d loss=1.0\n" % n for n in range(1_000_000))
    for start in range(0, len(lines), 2**20):
        write(job, lines[start : start + 2**20])
    began = time.process_time()
    rows = log_store.numbers(job, 2**26).rows
    assert time.process_time() - began < 20
    assert 400 < len(rows) <= log_store.MOST_POINTS
    steps = [row["step"] for row in rows]
    assert steps == sorted(steps) and steps[0] == 0 and steps[-1] > 990_000
    began = time.process_time()
    log_store.numbers(job)
    assert time.process_time() - began < 0.1


@pytest.mark.once
@pytest.mark.parametrize("block", [7, 64, 2**20])
def test_a_search_finds_every_line_wherever_it_lies(job, monkeypatch, block):
    lines = [b"step %d" % n for n in range(40)]
    lines[3:3] = [b"x" * 900 + b"Error" + b"y" * 900, b"", b"\xff\x1b]0;t\x07 error"]
    lines += [b"no more errors", b"an ERROR at the end"]
    write(job, b"\n".join(lines))
    monkeypatch.setattr(log_store, "BLOCK_BYTES", block)
    found = log_store.search(job, "eRRor")
    shown = [hit.data for hit in found.hits]
    assert found.next_offset is None and len(shown) == 4
    assert "Error" in shown[0] and len(shown[0]) <= 410
    assert shown[1:] == ["\ufffd error", "no more errors", "an ERROR at the end"]
    whole = b"\n".join(lines)
    assert found.hits[2].offset == whole.index(b"no more")
    assert log_store.search(job, "nowhere").hits == ()


def test_a_search_goes_on_where_the_last_one_ended(job, monkeypatch):
    write(job, b"".join(b"hit %d\n" % n for n in range(250)))
    offset, seen = 0, []
    while offset is not None:
        found = log_store.search(job, "hit", offset=offset)
        seen += [hit.data for hit in found.hits]
        offset = found.next_offset
    assert seen == [f"hit {n}" for n in range(250)]


def test_logs_of_jobs_that_ended_long_ago_are_deleted(job, alice):
    now = timezone.now()
    write(job, b"old\n")
    newer = Job.objects.create(
        reservation=job.reservation,
        owner=alice,
        node=job.node,
        name="newer",
        kind="recipe",
        attempt=1,
        ended_at=now - timedelta(days=89),
    )
    write(newer, b"new\n")
    log_store.numbers(job)
    assert log_store.drop_due(now) == 0, "it has not ended"
    Job.objects.filter(pk=job.pk).update(ended_at=now - timedelta(days=91), attempt=2)
    assert [log_store.drop_due(now) for _ in range(2)] == [1, 0]
    job.refresh_from_db()
    assert job.log_dropped_at == now
    left = [path.name for path in log_store.path_of(job).parent.iterdir()]
    assert left == [log_store.path_of(newer).name]
    PlacementPolicy.objects.update_or_create(pk=1, defaults={"logs_keep_days": 0})
    assert log_store.drop_due(now + timedelta(days=9999)) == 0
    shown = signed_in(alice).get(f"/jobs/{job.pk}/").content.decode()
    assert "This log was deleted on" in shown


def limit_of(most_bytes):
    PlacementPolicy.objects.update_or_create(
        pk=1, defaults={"logs_person_bytes": most_bytes}
    )


def another(job, owner, **fields):
    return Job.objects.create(
        reservation=job.reservation,
        owner=owner,
        node=job.node,
        name="another",
        kind="recipe",
        attempt=1,
        **fields,
    )


def test_the_logs_of_jobs_that_ended_first_go_where_a_person_has_too_many(
    job, alice, bob, client
):
    now = timezone.now()
    ended = [
        another(job, alice, ended_at=now - timedelta(hours=hours))
        for hours in (1, 3, 2)
    ]
    others = another(job, bob, ended_at=now - timedelta(hours=9))
    for one in (job, *ended, others):
        write(one, b"0123456789\n" * 100)
    assert log_store.limit_each_person(now) == {"dropped": 0, "cut": 0}
    limit_of(3000)
    assert log_store.limit_each_person(now) == {"dropped": 2, "cut": 0}
    assert log_store.limit_each_person(now) == {"dropped": 0, "cut": 0}
    for one in (job, *ended, others):
        one.refresh_from_db()
    gone = [one.log_dropped_at == now for one in (job, *ended, others)]
    assert gone == [False, False, True, True, False], "the oldest two of alice's"
    assert [log_store.size(one) for one in ended] == [1100, 0, 0]
    web = signed_in(alice)
    assert (
        "exceeded the limit together, and the oldest are deleted first"
        in web.get(f"/jobs/{ended[1].pk}/").content.decode()
    )
    for address in ("", "/log"):
        answer = web.get(f"/api/v1/jobs/{ended[1].pk}{address}").json()
        words = answer["note" if address else "log_note"]
        assert words.startswith("This log was deleted on ")
    with pytest.raises(LogTooLarge, match="was deleted"):
        write(ended[1], b"from a node that sends it once more\n")
    assert log_store.size(ended[1]) == 0
    limit_of(0)
    assert log_store.limit_each_person(now) == {"dropped": 0, "cut": 0}


@pytest.mark.once
def test_a_running_jobs_log_is_cut_with_one_line_where_running_ones_hold_too_much(
    job, alice
):
    now = timezone.now()
    small = another(job, alice)
    write(job, b"0123456789\n" * 400)
    log_store.append(job, attempt=1, offset=0, data=b"of another node\n", part=1)
    write(small, b"0123456789\n" * 100)
    limit_of(4000)
    assert log_store.limit_each_person(now) == {"dropped": 0, "cut": 1}
    assert log_store.limit_each_person(now) == {"dropped": 0, "cut": 0}
    job.refresh_from_db()
    line = (
        "gpuportal: the log is cut here: the logs of your jobs hold 5.4 KiB, and may "
        "hold 3.9 KiB. The job runs on."
    )
    text = log_store.path_of(job).read_text()
    assert text.startswith("0123456789\n") and text.count(line) == 1
    assert log_store.path_of(job, part=1).read_text().endswith(f"{line}\n")
    with pytest.raises(LogTooLarge, match="This log is not stored"):
        write(job, b"more\n")
    write(small, b"more\n")
    small.refresh_from_db()
    assert log_store.read(small, offset=-5).data == "more\n", (
        "an equal part is left to it"
    )
    page = signed_in(alice).get(f"/jobs/{job.pk}/").content.decode()
    assert "This log is not stored from" in page


def test_a_log_of_a_job_that_had_the_number_before_counts_for_nobody(job):
    write(job, b"x" * 100)
    before = log_store.path_of(job)
    (before.parent / f"{job.pk}-1-{'0' * 16}.log").write_bytes(b"y" * 9000)
    limit_of(4000)
    assert log_store.limit_each_person(timezone.now()) == {"dropped": 0, "cut": 0}
