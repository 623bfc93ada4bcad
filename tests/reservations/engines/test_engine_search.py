"""Find a slot, the next slot after a refusal and the waitlist, with nodes of Slurm."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from reservations.booking.service import book, preview
from reservations.booking.slot_search import find_slots
from reservations.engines.engine_refusals import EngineRefused
from reservations.models import Reservation, WaitingRequest
from reservations.rules.calendar import CalendarGpu, SlotWish, groups_of
from reservations.rules.engine_use import EngineHeld, EngineUse, engine_spans
from reservations.rules.never_fits import NeverFits
from reservations.rules.window import Window, unix
from reservations.store.booking_facts import site_policy
from reservations.waitlist import scheduler
from reservations.waitlist.service import ask
from telemetry.models import Gpu, SlurmCluster
from telemetry.rules.slurm_use import SlurmUse
from telemetry.slurm.cluster_view import SlurmGpuView, SlurmNodeView
from telemetry.slurm.service import record_view
from tests.reservations.conftest import NOW, at
from tests.reservations.engines.conftest import show_cards
from tests.reservations.engines.replayed_slurm import BUSY, OVERLAP

OWN = CalendarGpu(1, "a", 0, "A100", 80, 10)
HOUR = 3600
FIRST = unix(NOW)


def node(name: str, count: int, *, first: int, whole: bool) -> list[CalendarGpu]:
    """Return the GPUs of a node of Slurm."""
    return [
        CalendarGpu(
            first + n,
            name,
            n,
            "a100 (Slurm lab)",
            0,
            1,
            engine="slurm",
            whole_node=whole,
            of_node=count,
        )
        for n in range(count)
    ]


def pks(groups) -> list[list[int]]:
    return [[gpu.pk for gpu in group] for group in groups]


@pytest.mark.pure
def test_whole_nodes_are_found_as_a_whole():
    one, two = (node(f"gp{n}", 2, first=10 * n, whole=True) for n in (1, 2))
    assert pks(groups_of([OWN, *one], 1)) == [[1]]
    assert groups_of(one[:1], 1) == groups_of([OWN, one[0]], 2) == []
    assert pks(groups_of([*one, *two], 2)) == [[10, 11], [20, 21]]
    assert pks(groups_of([*two, *one], 4)) == [[10, 11, 20, 21]]
    assert groups_of([*one, two[0]], 3) == groups_of([*one, two[0]], 4) == []
    # The portal's own come first, and are not mixed with others.
    own = [OWN, replace(OWN, pk=2, node="b")]
    assert pks(groups_of([*one, *own], 2)) == [[1, 2], [10, 11]]
    fits = [SlotWish(count, HOUR).fits(one[0]) for count in (1, 2, 3, 4)]
    assert fits == [False, True, False, True]
    # Those of a search that did not read whole nodes are not found.
    assert not SlotWish(2, HOUR).fits(replace(one[0], of_node=0))


@pytest.mark.pure
def test_some_gpus_of_a_node_are_found_where_slurm_counts():
    one, two = (node(f"gp{n}", 4, first=10 * n, whole=False) for n in (1, 2))
    assert pks(groups_of([*one[:3], *two[:2]], 2)) == [[20, 21], [10, 11, 12]]
    assert pks(groups_of(one, 4)) == [[10, 11, 12, 13]]
    # Slurm holds the same number on each node, so several nodes are whole ones.
    assert groups_of([*one[:3], *two[:3]], 6) == []
    assert pks(groups_of([*one, *two], 8)) == [[10, 11, 12, 13, 20, 21, 22, 23]]
    fits = [SlotWish(count, HOUR).fits(one[0]) for count in (1, 4, 6, 8)]
    assert fits == [True, True, False, True]


def spans(gpus, uses=(), holds=(), booked=None) -> set[tuple[int, int, int]]:
    """Return GPU, start and end of each span, in hours from NOW."""
    found = engine_spans(
        gpus, uses, holds, booked or {}, first=FIRST, last=FIRST + 10 * HOUR
    )
    hours = ((s.gpu_pk, s.start - FIRST, s.end - FIRST) for s in found)
    return {(pk, start // HOUR, end // HOUR) for pk, start, end in hours}


@pytest.mark.pure
def test_the_time_of_jobs_and_of_other_reservations_is_not_free():
    gpus = [OWN, *node("gp1", 3, first=10, whole=False)]

    def held(name, start, end, count):
        return EngineHeld(name, "gp1", FIRST + start * HOUR, FIRST + end * HOUR, count)

    jobs = [EngineUse(10, FIRST + 2 * HOUR), EngineUse(11, None)]
    assert spans(gpus, jobs) == {(10, 0, 2), (11, 0, 10)}
    # One that began before, and one of all GPUs.
    begun = held("root_1", -5, 1, 1)
    assert spans(gpus, (), [begun]) == {(10, 0, 1)}
    assert spans(gpus, (), [held("root_2", 3, 99, None)]) == {
        (10, 3, 10),
        (11, 3, 10),
        (12, 3, 10),
    }
    # Its own job shows which GPU a reservation has.
    inside = [EngineUse(12, FIRST + HOUR, "root_1")]
    assert spans(gpus, inside, [begun]) == {(12, 0, 1)}
    # Two at a time have two GPUs, and not one that is booked then.
    two = [held("root_3", 1, 3, 1), held("root_4", 2, 4, 1)]
    booked = {10: [Window(at(9), at(15))]}
    assert spans(gpus, (), two, booked) == {(11, 1, 3), (12, 2, 4)}
    # Booked time is not there twice.
    all_gpus = [held("root_5", 0, 4, None)]
    found = spans(gpus, (), all_gpus, {10: [Window(at(9), at(10))]})
    assert found == {(10, 1, 4), (11, 0, 4), (12, 0, 4)}


def slots(user, count=2, **more) -> list[tuple[list[str], int]]:
    """Return the labels and the start in hours from NOW of each slot."""
    found = find_slots(
        user=user,
        membership=None,
        count=count,
        min_memory_bytes=0,
        duration_seconds=HOUR,
        now=NOW,
        **more,
    )
    labels = {gpu.pk: str(gpu) for gpu in Gpu.objects.select_related("node")}
    return [
        (
            [labels[pk] for pk in slot.gpu_ids],
            int((slot.start - NOW).total_seconds()) // HOUR,
        )
        for slot in found
    ]


def wait(user, **more) -> WaitingRequest:
    wish = {"count": 2, "gpu_class": "a100 (Slurm lab)", "duration_seconds": HOUR}
    return ask(user=user, membership=None, any_notice=True, now=NOW, **(wish | more))


def show(*nodes: SlurmNodeView) -> None:
    record_view("lab", nodes, version="22.05.8", now=NOW)


FREE = tuple(SlurmGpuView(n, "a100", SlurmUse.FREE) for n in range(2))


@pytest.mark.django_db
def test_a_search_finds_whole_nodes_of_slurm(lab, slurm, node_gpus, alice, bob):
    whole = ["gp1:0", "gp1:1"]
    kind = {"gpu_class": "a100 (Slurm lab)"}
    assert (whole, 0) in slots(alice)
    assert slots(alice, **kind)[0] == (whole, 0)
    # Half a node is not offered, and the refusal names the number.
    with pytest.raises(NeverFits, match=r"whole nodes. It can give you: 2\."):
        slots(alice, 1, **kind)

    # A job of others has one GPU for an hour, and a reservation the node after that.
    until = unix(NOW) + HOUR
    busy = replace(FREE[0], use=SlurmUse.BUSY, until=until)
    later = (("root_1", until + HOUR, until + 3 * HOUR, None),)
    show(SlurmNodeView("gp1", (busy, FREE[1]), held=later))
    assert [start for _gpus, start in slots(alice, limit=3, **kind)] == [1, 4, 5]
    # The portal's own holds are in its calendar.
    own = (("gp_lab1_99", *later[0][1:]),)
    show(SlurmNodeView("gp1", FREE, held=own))
    assert [start for _gpus, start in slots(alice, **kind)] == [0, 1, 2]
    # A closed node has no known end.
    show(SlurmNodeView("gp1", tuple(replace(g, use=SlurmUse.CLOSED) for g in FREE)))
    assert slots(alice, **kind) == []
    show(SlurmNodeView("gp1", FREE))

    # A person without a Unix user is told.
    told: list[EngineRefused] = []
    assert slots(bob, refused=told, **kind) == []
    assert [one.cause for one in told] == ["no-login"]
    # So is everybody while Slurm does not answer.
    SlurmCluster.objects.update(failing_since=NOW)
    told.clear()
    assert slots(alice, refused=told, **kind) == []
    assert [one.cause for one in told] == ["away"]


@pytest.mark.django_db
def test_a_search_counts_gpus_where_slurm_does(lab, counted, alice):
    kind = {"gpu_class": "a100 (Slurm lab)"}
    show_cards(("busy", "", 5), ("free", "", None))
    assert slots(alice, 3, **kind)[0] == (["gp1:1", "gp1:2", "gp1:3"], 0)
    assert slots(alice, 4, **kind) == []


@pytest.mark.django_db
def test_a_refusal_by_slurm_offers_another_node(lab, slurm, alice):
    show(*(SlurmNodeView(f"gp{n}", FREE) for n in (1, 2)))
    slurm.refuse["create"] = OVERLAP
    first = list(Gpu.objects.filter(node__name="gp1").values_list("pk", flat=True))
    with pytest.raises(EngineRefused) as refused:
        book(
            user=alice,
            membership=None,
            gpu_ids=first,
            start=at(12),
            end=at(13),
            now=NOW,
        )
    slot = refused.value.next_slot
    assert slot is not None
    names = Gpu.objects.filter(pk__in=slot.gpu_ids).values_list("node__name", flat=True)
    assert (set(names), slot.start) == ({"gp2"}, at(12))


@pytest.mark.django_db
def test_a_waiting_request_is_placed_on_a_node_of_slurm(lab, slurm, alice, client):
    policy = site_policy()
    show(*(SlurmNodeView(f"gp{n}", FREE) for n in (1, 2)))
    client.force_login(alice)
    page = client.get("/waiting/").content.decode()
    assert "<option>a100 (Slurm lab)</option>" in page

    # Slurm refuses one node, which the portal could not know: the other one is taken.
    row = wait(alice)
    slurm.refuse["create gp1"] = OVERLAP
    assert scheduler.place(NOW, policy)["placed"] == 1
    row.refresh_from_db()
    made = row.reservation
    assert set(made.allocations.values_list("gpu__node__name", flat=True)) == {"gp2"}
    (hold,) = slurm.holds.values()
    assert hold["Nodes"] == "gp2"


@pytest.mark.django_db
def test_a_request_that_slurm_refuses_keeps_waiting(lab, slurm, alice, bob):
    policy, later = site_policy(), NOW + timedelta(hours=1)
    row = wait(alice)
    # Bob has no Unix user there.
    with pytest.raises(EngineRefused, match="you have no Unix user there"):
        wait(bob)
    slurm.refuse["create"] = BUSY
    assert scheduler.place(NOW, policy)["placed"] == 0
    assert not Reservation.objects.exists()
    # While Slurm does not answer nobody is asked under locks.
    slurm.refuse.clear()
    slurm.commands.clear()
    slurm.away = True
    assert scheduler.place(later, policy)["placed"] == 0
    assert slurm.commands == []
    slurm.away = False
    assert scheduler.place(later + timedelta(hours=1), policy)["placed"] == 1
    row.refresh_from_db()
    assert row.state == "placed"


@pytest.mark.django_db
def test_a_request_with_a_job_needs_an_agent(lab, slurm, alice, settings):
    row = wait(alice)
    with pytest.raises(NeverFits):
        wait(alice, job={"name": "try"})
    WaitingRequest.objects.filter(pk=row.pk).update(has_job=True)
    assert scheduler.place(NOW, site_policy())["placed"] == 0
    settings.SLURM_AGENT = "slurm-login"
    later = NOW + timedelta(hours=1)
    assert scheduler.place(later, site_policy())["placed"] == 1


@pytest.mark.django_db
def test_a_preview_of_half_a_node_offers_nothing_impossible(
    lab, slurm, node_gpus, alice
):
    decision = preview(
        user=alice,
        membership=None,
        gpu_ids=[node_gpus[0].pk],
        start=at(12),
        end=at(13),
        now=NOW,
    )
    assert decision.refusal.code == "whole-node-needed"
    assert decision.next_slot is None


@pytest.mark.django_db
def test_whole_nodes_are_returned_as_a_whole(lab, slurm, alice, client, monkeypatch):
    monkeypatch.setattr("django.utils.timezone.now", lambda: NOW)
    show(*(SlurmNodeView(f"gp{n}", FREE) for n in (1, 2)))
    gpus = Gpu.objects.filter(node__name__in=("gp1", "gp2")).order_by("node", "index")
    made = lab.book(alice, list(gpus), at(12), 3)
    client.force_login(alice)
    path = f"/reservations/{made.pk}/"
    page = client.get(path).content.decode()
    boxes = re.findall(r'name="gpus" value="([\d,]+)">(\w+)<', page)
    pks = [gpu.pk for gpu in gpus]
    assert boxes == [
        (f"{a},{b}", node)
        for a, b, node in (
            (*pks[:2], "gp1"),
            (*pks[2:], "gp2"),
        )
    ]
    form = {"gpus": [boxes[1][0]], "version": made.version}
    assert client.post(f"{path}give-back/", form).status_code == 302
    kept = made.allocations.filter(live=True).values_list("gpu_id", flat=True)
    assert sorted(kept) == pks[:2]
