"""Nodes, jobs and reservations in the shapes of Slurm's versions."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.slurm import slurm_output
from telemetry.slurm.slurm_output import SlurmOutputInvalid, number_of, read_records
from telemetry.slurm.slurm_records import (
    read_jobs,
    read_nodes,
    read_reservation_lines,
    read_reservations,
)
from tests.telemetry.slurm import answers

pytestmark = pytest.mark.pure
END = 1_900_000_000


@pytest.mark.parametrize(
    "output",
    [
        answers.old(
            "nodes", answers.old_node("g1", "gpu:a100:4", "gpu:a100:0", "idle")
        ),
        answers.new(
            "nodes", answers.new_node("g1", "gpu:a100:4", "gpu:a100:0", "IDLE")
        ),
        answers.BANNER
        + answers.new("nodes", answers.new_node("g1", "gpu:a100:4", "gpu:a100:0")),
    ],
)
def test_reads_nodes(output):
    (node,) = read_nodes(output)
    assert (node.name, node.states) == ("g1", {"IDLE"})
    assert [(one.kind, one.count) for one in node.gpus] == [("a100", 4)]


@pytest.mark.parametrize(
    "output",
    [
        answers.old(
            "jobs",
            answers.old_job(
                7, "ada", ["g1", "g2"], ["gpu:a100:1(IDX:3)", "gpu:2(IDX:0-1)"], END
            ),
        ),
        answers.new(
            "jobs",
            answers.new_job(
                7, "ada", "g[1-2]", ["gpu:a100:1(IDX:3)", "gpu:2(IDX:0-1)"], END
            ),
        ),
    ],
)
def test_reads_jobs(output):
    (job,) = read_jobs(output)
    assert (job.job_id, job.user, job.account, job.end) == (7, "ada", "vision", END)
    assert [(one.node, one.gpus[0].indices) for one in job.shares] == [
        ("g1", (3,)),
        ("g2", (0, 1)),
    ]


def test_leaves_out_jobs_without_gpus():
    pending = {**answers.new_job(1, "ada", "", [], 0), "job_state": ["PENDING"]}
    failed = answers.new_job(2, "ada", "g1", ["gpu:1(IDX:0)"], END)
    failed["job_state"] = ["FAILED"]
    cpus = answers.new_job(3, "ada", "g1", [""], END)
    assert read_jobs(answers.new("jobs", pending, failed, cpus)) == []


def test_a_completing_job_still_has_its_gpus():
    job = answers.new_job(3, "ada", "g1", ["gpu:1(IDX:0)"], END)
    job["job_state"] = ["COMPLETED", "COMPLETING"]
    assert len(read_jobs(answers.new("jobs", job))) == 1


@pytest.mark.parametrize(
    "limit",
    [
        {"time_limit": answers.INFINITE},
        {"end_time": answers.INFINITE},
        {"time_limit": None},
    ],
)
def test_a_job_without_a_limit_has_no_end(limit):
    job = answers.new_job(3, "ada", "g1", ["gpu:1(IDX:0)"], END) | limit
    assert read_jobs(answers.new("jobs", job))[0].end is None


def test_a_user_without_a_name_has_a_number():
    job = answers.new_job(3, "", "g1", ["gpu:1(IDX:0)"], END)
    assert read_jobs(answers.new("jobs", job))[0].user == "1000"


def test_an_error_with_exit_status_zero_is_no_empty_cluster():
    """What 22.05 prints while its controller is away."""
    found = json.loads(answers.old("jobs"))
    found["errors"] = [
        {"description": "Failed while looking for jobs", "error": "Unspecified error"}
    ]
    with pytest.raises(SlurmOutputInvalid, match="Failed while looking for jobs"):
        read_jobs(json.dumps(found).encode())


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"slurm_load_jobs error: Unable to contact slurm controller",
        b'{"jobs": 7, "errors": []}',
        b'{"jobs": [',
        b'{"other": []}',
        b"[" * 100_000,
        b"{" * 100_000,
        b'{"jobs":' + b"[" * 100_000,
        b"\xff\xfe\x00",
    ],
)
def test_refuses_other_output(output):
    with pytest.raises(SlurmOutputInvalid):
        read_jobs(output)


def test_refuses_too_much_output(monkeypatch):
    monkeypatch.setattr(slurm_output, "MOST_BYTES", 100)
    with pytest.raises(SlurmOutputInvalid, match="MiB"):
        read_records(answers.old("nodes"), "nodes")


def test_a_cluster_without_nodes_is_an_error():
    with pytest.raises(SlurmOutputInvalid, match="no node"):
        read_nodes(answers.old("nodes"))


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (7, 7),
        ("7", 7),
        ({"set": True, "infinite": False, "number": 7}, 7),
        ({"number": 7}, 7),
        (answers.NOT_SET, None),
        (answers.INFINITE, None),
        ({"set": True, "number": None}, None),
        (None, None),
        (True, None),
        (float("nan"), None),
        (float("inf"), None),
        ([], None),
    ],
)
def test_reads_numbers(value, number):
    assert number_of({"n": value}, "n") == number


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["set", "infinite", "number", "nodes", "allocation", "name"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(
            ["job_id", "job_state", "gres_detail", "job_resources", "end_time", "nodes"]
        ),
        JSON,
    )
)
def test_takes_any_fields(fields):
    job = answers.new_job(1, "ada", "g1", ["gpu:1(IDX:0)"], END) | fields
    with contextlib.suppress(SlurmOutputInvalid):
        read_jobs(answers.new("jobs", job))


def test_reads_reservations():
    record = answers.new_reservation(
        "r1", END, END + 60, "g[1-2]", tres="cpu=2,gres/gpu:a100=2"
    )
    (one,) = read_reservations(answers.new("reservations", record))
    assert (one.name, one.start, one.end) == ("r1", END, END + 60)
    assert (one.nodes, one.users) == (("g1", "g2"), ("alice",))


LINE = (
    b"ReservationName=r1 StartTime=1900000000 EndTime=1900003600 Duration=01:00:00 "
    b"Nodes=g[1-2] NodeCnt=2 CoreCnt=4 Features=(null) PartitionName=(null) "
    b"Flags=MAINT,SPEC_NODES TRES=cpu=4 Users=ada,bo Groups=(null) State=INACTIVE\n"
)


def test_reads_reservation_lines():
    (one,) = read_reservation_lines(answers.BANNER + LINE)
    assert (one.start, one.end) == (END, END + 3600)
    assert (one.nodes, one.users) == (("g1", "g2"), ("ada", "bo"))
    assert (one.flags, one.tres) == ({"MAINT", "SPEC_NODES"}, "cpu=4")


@pytest.mark.parametrize(
    ("flag", "seconds"),
    [
        ("", 0),
        ("PURGE_COMP,", 0),
        ("PURGE_COMP=00:15:30,", 930),
        ("PURGE_COMP=1-01:15:00,", 90_900),
    ],
)
def test_reads_after_how_long_an_idle_reservation_ends(flag, seconds):
    line = LINE.replace(b"Flags=", b"Flags=" + flag.encode())
    (one,) = read_reservation_lines(line)
    assert one.purge_seconds == seconds
    told = {"time": {"set": bool(seconds), "infinite": False, "number": seconds}}
    known = {"purge_completed": told, "flags": ["PURGE_COMP"]}
    record = answers.new_reservation("r1", END, END + 60, "g1", **known)
    (one,) = read_reservations(answers.new("reservations", record))
    assert one.purge_seconds == seconds
    # 26.05 keeps the time of a flag that was taken off.
    record["flags"] = ["SPEC_NODES"]
    (one,) = read_reservations(answers.new("reservations", record))
    assert one.purge_seconds == 0


def test_no_reservation_lines():
    assert read_reservation_lines(b"No reservations in the system\n") == []


def test_leaves_out_a_reservation_that_it_cannot_read():
    odd = LINE.replace(b"1900000000", b"2026-11-28T10:00:00").replace(b"r1", b"r0")
    (one,) = read_reservation_lines(odd + LINE)
    assert one.name == "r1"
    # A list of hosts that is not readable names none.
    (one,) = read_reservation_lines(LINE.replace(b"g[1-2]", b"g[1-"))
    assert one.nodes == ()
