"""Holders of Gpus, for each audience."""

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from gpuportal.board.board_snapshot import (
    JobOwner,
    Viewer,
    detail_message,
    holders_for,
    load_board,
    viewer_of,
)
from reservations.rules.lifecycle import State
from tests.factories import make_gpu, make_gpus, make_reservation
from tests.telemetry.messages import process

HOUR = timedelta(hours=1)


def hours(start: float, end: float):
    now = timezone.now()
    return {"start": now + start * HOUR, "end": now + end * HOUR}


def entries(user, *, names_visible: bool = True) -> dict:
    viewer = viewer_of(user, names_visible=names_visible)
    return holders_for(load_board(timezone.now()), viewer)


class TestHolders:
    def test_the_holder_until_when_and_who_is_next(self, alice, bob):
        gpu = make_gpu()
        held = make_reservation(alice, [gpu], **hours(-1, 2), state=State.ACTIVE)
        coming = make_reservation(bob, [gpu], **hours(5, 6))
        told = entries(bob)[str(gpu.pk)]
        assert (told["user"], told["account"]) == ("Alice", "Vision")
        assert (told["reservation"], told["mine"]) == (held.pk, False)
        assert told["until"] == held.end.isoformat().replace("+00:00", "Z")
        assert told["free_from"] == told["until"]
        assert told["next"]["user"] == "Bob"
        assert told["next"]["mine"] is True
        assert told["next"]["start"] == coming.start.isoformat().replace("+00:00", "Z")

    def test_free_from_is_after_bookings_back_to_back(self, alice, bob):
        gpu = make_gpu()
        first = make_reservation(alice, [gpu], **hours(-1, 1))
        second = make_reservation(bob, [gpu], start=first.end, end=first.end + HOUR)
        make_reservation(alice, [gpu], **hours(9, 10))
        told = entries(alice)[str(gpu.pk)]
        assert told["free_from"] == second.end.isoformat().replace("+00:00", "Z")
        assert told["mine"] is True

    def test_a_gpu_that_is_free_now_tells_who_is_next(self, alice):
        gpu = make_gpu()
        make_reservation(alice, [gpu], **hours(2, 3))
        told = entries(alice)[str(gpu.pk)]
        assert (told["user"], told["until"], told["free_from"]) == (None, None, None)
        assert told["next"]["user"] == "Alice"

    def test_what_is_over_cancelled_or_far_ahead_is_not_told(self, alice):
        gpu = make_gpu()
        make_reservation(alice, [gpu], **hours(-3, -1), state=State.ENDED)
        make_reservation(alice, [gpu], **hours(-1, 1), state=State.CANCELLED)
        make_reservation(alice, [gpu], **hours(24 * 30, 24 * 30 + 1))
        assert entries(alice) == {}

    def test_without_names_carol_sees_groups_and_alice_herself(self, alice, carol):
        gpu = make_gpu()
        make_reservation(alice, [gpu], **hours(-1, 1))
        make_reservation(carol, [gpu], **hours(2, 3))
        seen = entries(carol, names_visible=False)[str(gpu.pk)]
        assert (seen["user"], seen["account"]) == (None, "Vision")
        assert seen["next"]["user"] == "Carol"
        own = entries(alice, names_visible=False)[str(gpu.pk)]
        assert (own["user"], own["next"]["user"]) == ("Alice", None)

    def test_the_operator_sees_names_always(self, alice, omar):
        gpu = make_gpu()
        make_reservation(alice, [gpu], **hours(-1, 1))
        assert entries(omar, names_visible=False)[str(gpu.pk)]["user"] == "Alice"

    @pytest.mark.once
    def test_no_query_more_for_more_gpus(self, alice, django_assert_num_queries):
        for gpu in make_gpus(30):
            make_reservation(alice, [gpu], **hours(-1, 1))
            make_reservation(alice, [gpu], **hours(2, 3))
        # The rows, the policy (no holder has come, so releases are near), and Slurm.
        with django_assert_num_queries(3):
            board = load_board(timezone.now())
        assert len(board.holdings) == 30
        assert board.people == {alice.pk}

    def test_it_knows_when_it_changes_by_itself(self, alice):
        make_reservation(alice, [make_gpu()], **hours(-1, 3))
        coming = make_reservation(alice, [make_gpu()], **hours(2, 4))
        assert load_board(timezone.now()).changes_at == coming.start


ALICE = Viewer(1, "alice", "", operator=False, named=True)
CAROL = Viewer(2, "carol", "", operator=False, named=True)
CAROL_PLAIN = Viewer(2, "carol", "", operator=False, named=False)
OMAR = Viewer(3, "omar", "", operator=True, named=True)


def told(viewer: Viewer, *processes: dict, owners=None, node="node-a") -> list:
    gpu = {"processes": list(processes), "throttle": [], "memory_reserved_bytes": 1}
    detail = {"node": node, "at": 1.0, "load1": None, "gpus": {"GPU-1": gpu}}
    message = json.loads(detail_message(detail, owners or {}, viewer))
    assert (message["type"], message["node"]) == ("detail", node)
    return message["gpus"]["GPU-1"]["processes"]


@pytest.mark.pure
class TestDetails:
    def test_alice_reads_her_own_command_in_full_and_carol_does_not(self):
        (own,) = told(ALICE, process())
        (others,) = told(CAROL, process())
        assert own["command"].endswith("--lr 0.1")
        assert own["mine"] is True
        assert (others["command"], others["mine"]) == ("python3 train.py", False)
        assert others["user"] == "alice"

    def test_the_operator_reads_everything(self):
        (one,) = told(OMAR, process())
        assert one["command"].endswith("--lr 0.1")

    def test_without_names_the_user_is_hidden(self):
        (one,) = told(CAROL_PLAIN, process())
        assert (one["user"], one["command"]) == (None, "python3 train.py")

    def test_a_unix_account_given_by_the_operator_counts_before_the_login(self):
        viewer = Viewer(1, "alice", "al23", operator=False, named=True)
        assert told(viewer, process(user="al23"))[0]["mine"] is True
        assert told(viewer, process(user="alice"))[0]["mine"] is False

    def test_a_process_of_a_job_is_its_owners_whatever_unix_user_it_runs_as(self):
        owners = {7: JobOwner(1, "alice", "node-a")}
        running = process(job=7, user="root")
        assert told(ALICE, running, owners=owners)[0]["mine"] is True
        (seen,) = told(CAROL, running, owners=owners)
        assert (seen["user"], seen["job"], seen["mine"]) == ("alice", 7, False)

    def test_a_node_that_names_another_nodes_job_is_not_believed(self):
        owners = {7: JobOwner(1, "alice", "node-b")}
        running = process(job=7, user="mallory")
        (seen,) = told(ALICE, running, owners=owners)
        assert (seen["user"], seen["job"], seen["mine"]) == ("mallory", None, False)

    def test_a_card_that_cannot_say_is_not_one_without_processes(self):
        gpu = {"processes": None, "throttle": None, "memory_reserved_bytes": None}
        detail = {"node": "n", "at": 1.0, "load1": None, "gpus": {"GPU-1": gpu}}
        message = json.loads(detail_message(detail, {}, ALICE))
        assert message["gpus"]["GPU-1"]["processes"] is None

    def test_uids_are_kept_from_browsers(self):
        assert "uid" not in told(ALICE, process())[0]
