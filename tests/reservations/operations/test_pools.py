"""Pools kept for some, their quotas, weights, draining, replacement."""

from datetime import timedelta

import pytest

from reservations import tick
from reservations.booking import service as booking
from reservations.booking.release import cancel, release
from reservations.booking.slot_search import find_slots
from reservations.models import AuditEntry, Notice
from reservations.operations import closures, gpu_replacement, pools
from reservations.operations.pools import PoolEdit
from reservations.operations.replacement_rules import Carry
from reservations.presence.check_in import check_in
from reservations.rules.closed_time import PoolNotYours, PoolQuotaExceeded
from reservations.rules.errors import GpuNotBookable
from reservations.rules.lifecycle import Kind, State
from reservations.rules.review import FieldsInvalid, PreviewStale
from reservations.store.announced_closures import shut_to
from telemetry.models import Gpu
from tests.factories import at, make_gpus, make_node, make_pool
from tests.reservations.conftest import HOUR, NOW, WEIGHT, balance


@pytest.fixture
def desk(omar):
    return {"actor": omar, "now": NOW, "reason": "as agreed"}


def account_of(user):
    return user.memberships.get().account


def find(user, **wish):
    return find_slots(
        user=user,
        membership=None,
        count=wish.pop("count", 1),
        min_memory_bytes=0,
        duration_seconds=HOUR,
        earliest=at(12),
        now=NOW,
        **wish,
    )


@pytest.mark.once
def test_a_pool_kept_for_one_account_is_refused_to_others_by_name(
    lab, alice, carol, desk
) -> None:
    special = make_pool("NVIDIA H200", weight=18)
    gpu = make_gpus(1, make_node("node-h"), pool=special)[0]
    edit = PoolEdit(weight=18, account_ids=(account_of(alice).pk,))
    assert pools.change_pool(pool_id=special.pk, edit=edit, **desk)
    assert not pools.change_pool(pool_id=special.pk, edit=edit, **desk)
    lab.book(alice, [gpu], at(12), 1)
    with pytest.raises(PoolNotYours, match="reserved for Vision") as refused:
        lab.book(carol, [gpu], at(13), 1)
    assert refused.value.next_slot is not None
    assert refused.value.next_slot.gpu_ids[0] in {g.pk for g in lab.gpus}
    preview = booking.preview(
        user=carol, membership=None, gpu_ids=[gpu.pk], start=at(13), end=at(14), now=NOW
    )
    assert preview.refusal is not None
    assert preview.refusal.code == "pool-not-yours"
    assert gpu.pk not in {pk for slot in find(carol) for pk in slot.gpu_ids}
    with pytest.raises(PoolNotYours):
        find(carol, gpu_class="NVIDIA H200")
    # The institute stands above both: then everybody below it may.
    edit = PoolEdit(weight=18, account_ids=(lab.root.pk,))
    pools.change_pool(pool_id=special.pk, edit=edit, **desk)
    lab.book(carol, [gpu], at(13), 1)


def test_what_could_not_be_booked_is_said_before_a_plan_is_made(
    lab, alice, carol, omar, desk
) -> None:
    first, second, *_ = lab.gpus
    other = make_pool("NVIDIA H200", weight=18)
    other_gpu = make_gpus(1, make_node("node-h"), pool=other)[0]
    edit = PoolEdit(weight=18, account_ids=(account_of(alice).pk,))
    pools.change_pool(pool_id=other.pk, edit=edit, **desk)
    pools.act_on_gpus(act="drain", gpu_ids=[first.pk], **desk)
    closed = closures.ClosureDraft(
        kind="teaching",
        scope="gpus",
        start=at(12),
        end=at(14),
        reason="lab course",
        gpu_ids=(second.pk,),
        account_id=account_of(carol).pk,
    )
    seen = closures.preview(draft=closed, now=NOW).mark
    closures.save(draft=closed, actor=omar, now=NOW, mark=seen)
    rows = list(Gpu.objects.select_related("node", "pool__rule"))
    drained = {first.pk: "draining: no new bookings"}
    assert shut_to(alice.pk, rows, at(13), at(15)) == drained | {
        second.pk: "closed then: lab course"
    }
    assert shut_to(alice.pk, rows, at(14), at(15)) == drained
    assert shut_to(carol.pk, rows, at(13), at(15)) == drained | {
        other_gpu.pk: "kept for Vision"
    }


def test_a_pools_quota_binds_on_its_gpus_alone_for_one_and_for_a_group(
    lab, alice, bob, desk
) -> None:
    special = make_pool("NVIDIA H200", weight=20)
    gpus = make_gpus(2, make_node("node-h"), pool=special)
    member = alice.memberships.get()
    limit = {"pool_id": special.pk, **desk}
    pools.set_pool_quota(membership_id=member.pk, quota_gpu_seconds=40 * HOUR, **limit)
    pools.set_pool_quota(
        account_id=member.account_id, quota_gpu_seconds=60 * HOUR, **limit
    )
    far = at(12, day=9)
    assert lab.book(alice, gpus[:1], far, 2).kind == Kind.FIRM
    with pytest.raises(PoolQuotaExceeded, match="only NVIDIA H200 GPUs") as refused:
        lab.book(alice, gpus[1:], far, 1)
    assert refused.value.numbers["quota_gpu_seconds"] == 40 * HOUR
    assert refused.value.numbers["would_hold_gpu_seconds"] == 60 * HOUR
    assert refused.value.numbers["fits_gpu_seconds"] == 0
    # On other GPUs the site's quota alone counts.
    assert lab.book(alice, lab.gpus[:1], far, 4).kind == Kind.FIRM
    assert lab.book(bob, gpus[1:], far, 1).kind == Kind.FIRM
    with pytest.raises(PoolQuotaExceeded, match="bookings of Vision would cost"):
        lab.book(bob, gpus[1:], far + timedelta(hours=1), 1)
    # Near enough it is flex, as beyond any quota.
    soon = lab.book(bob, gpus[1:], at(12, day=4), 1)
    assert soon.kind == Kind.FLEX
    pools.set_pool_quota(membership_id=member.pk, quota_gpu_seconds=None, **limit)
    pools.set_pool_quota(account_id=member.account_id, quota_gpu_seconds=None, **limit)
    assert lab.book(bob, gpus[1:], far + timedelta(hours=1), 1).kind == Kind.FIRM
    assert AuditEntry.objects.filter(verb="pool.quota").count() == 4


@pytest.mark.once
def test_a_new_weight_counts_for_new_bookings_only(lab, alice, bob, desk) -> None:
    before = lab.book(alice, lab.gpus[:1], at(12), 2)
    edit = PoolEdit(weight=2 * WEIGHT)
    pools.change_pool(pool_id=lab.gpus[0].pool_id, edit=edit, **desk)
    after = lab.book(bob, lab.gpus[1:2], at(12), 2)
    assert after.cost_gpu_seconds == 2 * before.cost_gpu_seconds
    for row in (before, after):
        tick.tick(at(12))
        check_in(reservation_id=row.pk, now=at(12), by="click")
    tick.tick(at(14))
    assert balance(before) == (0, 2 * HOUR * WEIGHT)
    assert balance(after) == (0, 4 * HOUR * WEIGHT)


def test_draining_takes_no_new_bookings_and_moves_what_it_may(
    lab, alice, bob, desk
) -> None:
    first, second, third, _ = lab.gpus
    running = lab.book(alice, [first], NOW, 2)
    booked = lab.book(bob, [second], at(12), 2)
    act = {"gpu_ids": [first.pk, second.pk, third.pk], **desk}
    assert pools.act_on_gpus(act="drain", **act).changed == 3
    with pytest.raises(GpuNotBookable, match="draining"):
        lab.book(bob, [third], at(15), 1)
    assert not Gpu.objects.bookable().filter(pk=third.pk).exists()
    assert find(alice)[0].gpu_ids == (lab.gpus[3].pk,)
    done = pools.act_on_gpus(act="drain", move_booked=True, **act)
    assert (done.changed, done.moved, done.stay) == (0, 1, 1)
    assert booked.allocations.get().gpu == lab.gpus[3]
    assert running.allocations.get().gpu == first
    assert Notice.objects.get(kind="moved").reservation == booked
    pools.act_on_gpus(act="drain-ended", **act)
    lab.book(bob, [third], at(15), 1)
    node = first.node
    assert pools.drain_node(node_id=node.pk, draining=True, **desk)
    assert not pools.drain_node(node_id=node.pk, draining=True, **desk)
    with pytest.raises(GpuNotBookable, match="node is draining"):
        lab.book(bob, [third], at(17), 1)


def test_a_replaced_gpu_hands_its_bookings_on_and_names_conflicts(
    lab, alice, bob, carol, desk
) -> None:
    old, taken, *_ = lab.gpus
    lighter = make_gpus(1, make_node("node-l"), pool=make_pool("NVIDIA L40", weight=4))
    new = lighter[0]
    running = lab.book(alice, [old], NOW, 2)
    carried = lab.book(bob, [old, taken], at(12), 2)
    held = lab.book(carol, [new], at(15), 2)
    clash = lab.book(alice, [old], at(16), 1)
    plan = gpu_replacement.preview(old_id=old.pk, new_id=new.pk, now=NOW)
    assert {c.pk: (c.what, c.with_pk) for c in plan.carried} == {
        running.pk: (Carry.RUNS, None),
        carried.pk: (Carry.CARRIED, None),
        clash.pk: (Carry.TAKEN, held.pk),
    }
    with pytest.raises(PreviewStale):
        gpu_replacement.replace(old_id=old.pk, new_id=new.pk, mark="other", **desk)
    gpu_replacement.replace(old_id=old.pk, new_id=new.pk, mark=plan.mark, **desk)
    carried.refresh_from_db()
    assert set(carried.allocations.values_list("gpu_id", flat=True)) == {
        taken.pk,
        new.pk,
    }
    # The lower of the two weights: nobody pays more for it.
    assert carried.cost_gpu_seconds == 2 * HOUR * (WEIGHT + 4)
    assert balance(carried) == (carried.cost_gpu_seconds, 0)
    old.refresh_from_db()
    assert (old.replaced_by, old.draining, old.retired) == (new, True, False)
    assert new.replaces == old
    cancel(reservation_id=clash.pk, user=alice, now=NOW)
    release(reservation_id=running.pk, user=alice, now=at(10))
    assert tick.tick(at(10))["gpus_retired"] == 1
    old.refresh_from_db()
    assert old.retired
    assert "gpus_retired" not in tick.tick(at(10))
    clash.refresh_from_db()
    assert clash.state == State.CANCELLED


@pytest.mark.once
def test_what_cannot_be_meant_is_refused_by_field(lab, alice, desk) -> None:
    gpu, other = lab.gpus[:2]
    pool = gpu.pool_id
    for wrong, call in (
        (
            "weight",
            lambda: pools.change_pool(pool_id=pool, edit=PoolEdit(weight=0), **desk),
        ),
        (
            "accounts",
            lambda: pools.change_pool(pool_id=pool, edit=PoolEdit(1, (10**9,)), **desk),
        ),
        ("name", lambda: pools.add_pool(name=" ", weight=1, **desk)),
        ("name", lambda: pools.add_pool(name="NVIDIA A100 80GB", weight=1, **desk)),
        (
            "whose",
            lambda: pools.set_pool_quota(pool_id=pool, quota_gpu_seconds=1, **desk),
        ),
        (
            "quota",
            lambda: pools.set_pool_quota(
                pool_id=pool, account_id=lab.root.pk, quota_gpu_seconds=-1, **desk
            ),
        ),
        ("act", lambda: pools.act_on_gpus(act="melt", gpu_ids=[gpu.pk], **desk)),
        ("gpus", lambda: pools.act_on_gpus(act="drain", gpu_ids=[], **desk)),
        ("pool", lambda: pools.act_on_gpus(act="pool", gpu_ids=[gpu.pk], **desk)),
    ):
        with pytest.raises(FieldsInvalid) as refused:
            call()
        assert list(refused.value.fields) == [wrong]
    for old, new, field in (
        (gpu.pk, gpu.pk, "new"),
        (10**9, gpu.pk, "old"),
        (gpu.pk, 10**9, "new"),
    ):
        with pytest.raises(FieldsInvalid) as no:
            gpu_replacement.preview(old_id=old, new_id=new, now=NOW)
        assert list(no.value.fields) == [field]
    Gpu.objects.filter(pk=other.pk).update(maintenance=True)
    with pytest.raises(FieldsInvalid, match="under maintenance"):
        gpu_replacement.preview(old_id=gpu.pk, new_id=other.pk, now=NOW)
