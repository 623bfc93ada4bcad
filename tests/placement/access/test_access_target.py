"""Who may connect to a node through a reservation."""

from datetime import timedelta

import pytest
from django.utils import timezone

from placement.access.access_target import access_target
from placement.device_gate.queries import grants_of
from placement.protocol.stream_refusal import StreamRefused
from reservations.models import Allocation, CoUser
from reservations.rules.errors import NotFound
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation

pytestmark = pytest.mark.django_db


def test_owner_and_co_users_connect_while_the_window_runs(alice, bob, omar):
    now = timezone.now() + timedelta(minutes=1)
    gpus = make_gpus(1, make_node("node-b")) + make_gpus(1, make_node("node-a"))
    made = make_reservation(alice, gpus, state=State.ACTIVE)

    def code(user, at=now, node="", row=made):
        with pytest.raises((StreamRefused, NotFound)) as found:
            access_target(user, row.pk, at, node_name=node)
        return found.value.code, str(found.value)

    found = access_target(alice, made.pk, now)
    assert (found.node, found.login, found.until) == ("node-a", "alice", made.end)
    assert access_target(alice, made.pk, now, node_name="node-b").node == "node-b"
    assert code(alice, node="node-c") == (
        "access-over",
        f"Reservation {made.pk} has no GPU on node-c, but on node-a, node-b.",
    )
    for other in (bob, omar):
        assert code(other)[0] == "not-found", "another student's, and an admin's"
    shared = CoUser.objects.create(reservation=made, user=bob, added_by=alice)
    assert access_target(bob, made.pk, now).login == "bob"
    CoUser.objects.filter(pk=shared.pk).update(removed_at=now)
    assert code(bob)[0] == "not-found"
    assert code(alice, made.end)[0] == "access-over", "at the end itself"
    early = now + timedelta(days=1)
    later = make_reservation(alice, make_gpus(1, make_node("node-d")), start=early)
    assert code(alice, row=later) == (
        "access-early",
        f"Reservation {later.pk} has not begun yet.",
    )
    Allocation.objects.filter(reservation=made).update(live=False)
    made.state = State.RELEASED
    made.save()
    assert code(alice) == ("access-over", f"Reservation {made.pk} is over.")


def test_two_reservations_on_one_node_hold_and_end_separately(alice):
    node = make_node("node-a")
    first, second = (
        make_reservation(alice, make_gpus(1, node), state=State.ACTIVE)
        for _ in range(2)
    )
    later = second.end + timedelta(hours=1)
    Allocation.objects.filter(reservation=second).update(end=later)
    now = timezone.now()

    def granted(at):
        return {uuid for one in grants_of(node, at) for uuid in one.gpu_uuids}

    uuids = {made.pk: made.allocations.get().gpu.uuid for made in (first, second)}
    # The number of the reservation says which one a connection belongs to.
    for made, end in ((first, first.end), (second, later)):
        found = access_target(alice, made.pk, now, node_name="node-a")
        assert (found.node, found.reservation, found.until) == ("node-a", made.pk, end)
    assert granted(now) == set(uuids.values())
    with pytest.raises(StreamRefused, match=f"Reservation {first.pk} is over"):
        access_target(alice, first.pk, first.end)
    assert access_target(alice, second.pk, first.end).until == later
    assert granted(first.end) == {uuids[second.pk]}
    Allocation.objects.filter(reservation=second).update(live=False)
    with pytest.raises(StreamRefused):
        access_target(alice, second.pk, now)
    assert access_target(alice, first.pk, now).node == "node-a"
    assert granted(now) == {uuids[first.pk]}
