"""One state for each GPU of a Slurm cluster."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.rules.slurm_use import SlurmUse
from telemetry.slurm.cluster_view import view_cluster
from telemetry.slurm.gres import read_gres
from telemetry.slurm.slurm_records import (
    JobShare,
    SlurmJob,
    SlurmNode,
    SlurmReservation,
)

pytestmark = pytest.mark.pure
NOW = 1_900_000_000
FREE, BUSY, RESERVED = SlurmUse.FREE, SlurmUse.BUSY, SlurmUse.RESERVED
CLOSED, AWAY = SlurmUse.CLOSED, SlurmUse.AWAY


def node(gres: str = "gpu:a100:4", used: str = "", *states: str) -> SlurmNode:
    states = states or ("IDLE",)
    gpus, taken = read_gres(gres), read_gres(used)
    return SlurmNode("g1", frozenset(states), gpus, taken, "new fans", cpus=8)


def job(number: int, gres: str, **more: Any) -> SlurmJob:
    values = {"user": "ada", "account": "vision", "end": NOW + 60} | more
    shares = (JobShare("g1", read_gres(gres)),)
    return SlurmJob(job_id=number, shares=shares, **values)


def reservation(start: int, **more: Any) -> SlurmReservation:
    values = {"name": "r1", "nodes": ("g1",), "users": ("bo",), "tres": "cpu=8"}
    return SlurmReservation(start=start, end=NOW + 3600, **(values | more))


def gpus(one, jobs=(), reservations=()):
    (found,) = view_cluster([one], jobs, reservations, now=NOW)
    return found.gpus


def uses(*args):
    return [gpu.use for gpu in gpus(*args)]


def test_jobs_hold_the_cards_that_slurm_names():
    found = gpus(node(), [job(7, "gpu:a100:2(IDX:1,3)")])
    assert [gpu.use for gpu in found] == [FREE, BUSY, FREE, BUSY]
    held = found[1]
    assert (held.unix_user, held.account, held.job_id) == ("ada", "vision", 7)
    assert held.until == NOW + 60


def test_jobs_hold_a_count_where_slurm_names_no_card():
    found = gpus(node("gpu:3"), [job(9, "gpu:1(CNT:1)"), job(2, "gpu:1(CNT:1)")])
    assert [gpu.job_id for gpu in found] == [2, 9, None]


def test_types_are_numbered_one_after_another():
    found = gpus(node("gpu:a100:1,gpu:v100:2"), [job(1, "gpu:v100:1(CNT:1)")])
    assert [(gpu.kind, gpu.use) for gpu in found] == [
        ("a100", FREE),
        ("v100", BUSY),
        ("v100", FREE),
    ]


def test_cards_of_hidden_jobs_are_busy_without_a_name():
    """PrivateData=jobs: squeue shows only jobs of our user."""
    found = gpus(node(used="gpu:a100:2(IDX:0-1)"), [job(1, "gpu:a100:1(IDX:0)")])
    assert [(gpu.use, gpu.unix_user) for gpu in found] == [
        (BUSY, "ada"),
        (BUSY, ""),
        (FREE, ""),
        (FREE, ""),
    ]
    assert uses(node("gpu:2", "gpu:1"), [job(1, "gpu:1(CNT:1)")]) == [BUSY, FREE]
    assert uses(node("gpu:2", "gpu:2"), [job(1, "gpu:1(CNT:1)")]) == [BUSY, BUSY]


@pytest.mark.parametrize(
    ("states", "use"),
    [
        (("IDLE",), FREE),
        (("IDLE", "POWERED_DOWN"), FREE),
        (("IDLE", "DRAIN"), CLOSED),
        (("DOWN", "DRAIN"), AWAY),
        (("IDLE", "NOT_RESPONDING"), AWAY),
        (("UNKNOWN", "DRAIN", "INVALID_REG"), AWAY),
    ],
)
def test_states_of_nodes(states, use):
    (found,) = view_cluster([node("gpu:1", "", *states)], [], [], now=NOW)
    assert found.gpus[0].use is use
    assert found.reason == ("" if use is FREE else "new fans")


def test_a_job_on_a_drained_node_is_shown_until_it_ends():
    found = uses(node("gpu:2", "", "MIXED", "DRAIN"), [job(1, "gpu:1(IDX:0)")])
    assert found == [BUSY, CLOSED]


def test_a_job_on_a_node_that_does_not_answer_keeps_its_holder():
    (gpu,) = gpus(node("gpu:1", "", "DOWN"), [job(1, "gpu:1(IDX:0)")])
    assert (gpu.use, gpu.unix_user) == (AWAY, "ada")


def test_a_reservation_of_whole_nodes():
    found = gpus(node("gpu:2"), [], [reservation(NOW - 5)])
    assert [(gpu.use, gpu.unix_user, gpu.until) for gpu in found] == [
        (RESERVED, "bo", NOW + 3600)
    ] * 2
    assert found[0].reservation == "r1"


def test_a_reservation_of_some_gpus_counts_its_own_jobs():
    tres = "cpu=2,gres/gpu:a100=3,gres/gpu=3"
    inside = job(1, "gpu:a100:1(IDX:2)", reservation="r1")
    found = gpus(node(), [inside], [reservation(NOW - 5, tres=tres)])
    assert [gpu.use for gpu in found] == [RESERVED, RESERVED, BUSY, FREE]


def test_a_reservation_keeps_the_cards_that_stood_for_it():
    """Otherwise two reservations would exchange theirs when a job ends."""
    held = [
        reservation(NOW - 5, name=name, tres=f"gres/gpu:a100={count}")
        for name, count in (("r1", 1), ("r2", 2))
    ]
    before = {("g1", 3): "r1", ("g1", 0): "r2", ("g2", 1): "r1"}
    (found,) = view_cluster([node()], [], held, now=NOW, before=before)
    assert [gpu.reservation for gpu in found.gpus] == ["r2", "r2", "", "r1"]


def test_a_reservation_of_a_few_cpus_holds_no_gpu():
    assert uses(node("gpu:1"), [], [reservation(NOW - 5, tres="cpu=2")]) == [FREE]


def test_a_total_is_divided_among_the_nodes():
    both = reservation(NOW - 5, nodes=("g1", "g2"), tres="gres/gpu=3")
    assert uses(node(), [], [both]) == [RESERVED, RESERVED, FREE, FREE]


def test_maintenance_closes_the_node():
    maintenance = reservation(NOW - 5, flags=frozenset({"MAINT"}))
    assert uses(node("gpu:1"), [], [maintenance]) == [CLOSED]


def test_a_later_reservation_is_the_next_one():
    later, latest = reservation(NOW + 600), reservation(NOW + 900, users=("cy",))
    (gpu,) = gpus(node("gpu:1"), [], [latest, later])
    assert (gpu.use, gpu.next_at, gpu.next_user) == (FREE, NOW + 600, "bo")


def test_several_users_have_no_single_name():
    (gpu,) = gpus(node("gpu:1"), [], [reservation(NOW - 5, users=("bo", "cy"))])
    assert gpu.unix_user == ""


def test_a_reservation_that_is_over_is_ignored():
    over = SlurmReservation("r1", NOW - 60, NOW, ("g1",))
    assert uses(node("gpu:1"), [], [over]) == [FREE]


def test_nodes_without_gpus_are_left_out():
    assert view_cluster([node("")], [], [], now=NOW) == []


GRES = st.sampled_from(
    ["", "gpu:2", "gpu:a100:4", "gpu:a100:9(IDX:0-8)", "gpu:1(IDX:77)", "gpu:v100:3"]
)


@given(GRES, GRES, st.lists(GRES, max_size=3), st.sampled_from(["", "gres/gpu=9"]))
def test_every_card_has_one_state(gres, used, jobs, tres):
    has = [job(number, text) for number, text in enumerate(jobs)]
    held = [reservation(NOW - 5, tres=tres), reservation(NOW + 5, tres=tres)]
    for one in view_cluster([node(gres, used)], has, held, now=NOW):
        assert [gpu.index for gpu in one.gpus] == list(range(len(one.gpus)))
