"""Queries whose SQL is written once: the same rows, and no value in the SQL."""

from datetime import timedelta

import pytest

from reservations.models import Account, Allocation, Membership, Reservation
from reservations.snapshots.compiled import compiled, instances, whole
from tests.reservations.conftest import at


def test_a_compiled_query_answers_as_the_queryset_does(
    lab, alice, bob, django_assert_num_queries
) -> None:
    for number, user in enumerate((alice, bob, alice)):
        lab.book(user, [lab.gpus[number % 2]], at(12 + 3 * number), 2)
    built = []

    @compiled
    def near(*, gpus, start, end, without, state, live):
        built.append(gpus)
        rows = Allocation.objects.filter(
            gpu_id__in=gpus, start__lt=end, end__gt=start, live=live
        ).exclude(reservation_id=without)
        if state is not None:
            rows = rows.filter(reservation__state=state)
        return rows.order_by("pk").values_list("gpu_id", "start", "weight")

    def plain(gpus, start, end, without, state) -> list[tuple[object, ...]]:
        rows = Allocation.objects.filter(
            gpu_id__in=gpus, start__lt=end, end__gt=start, live=True
        ).exclude(reservation_id=without)
        if state is not None:
            rows = rows.filter(reservation__state=state)
        return list(rows.order_by("pk").values_list("gpu_id", "start", "weight"))

    pks = [gpu.pk for gpu in lab.gpus[:2]]
    first = Reservation.objects.order_by("pk")[0].pk
    asked = [
        (pks, at(0), at(23), 0, None),
        (pks[::-1], at(13), at(16), first, None),
        (pks[:1], at(0), at(23), 0, "confirmed"),
        (pks[1:], at(0), at(23), 0, "it's 100 %s"),
    ]
    found = []
    for gpus, start, end, without, state in asked:
        with django_assert_num_queries(1):
            rows = near(
                gpus=gpus, start=start, end=end, without=without, state=state, live=True
            )
        assert rows == plain(gpus, start, end, without, state)
        found.append(len(rows))
    assert found[0] == 3 and found[3] == 0, "it finds, and it does not"
    assert len(built) == 2 * 2, "two tries for each shape, none for another value"
    assert near(gpus=[], start=at(0), end=at(9), without=0, state=None, live=True) == []
    long = list(range(1, 100))
    assert len(
        near(gpus=long, start=at(0), end=at(23), without=0, state=None, live=True)
    ) == len(plain(long, at(0), at(23), 0, None))


def test_a_value_never_becomes_part_of_the_sql(lab) -> None:
    @compiled
    def computed(*, end):
        later = end + timedelta(hours=1)
        return Allocation.objects.filter(start__lt=later).values_list("pk")

    with pytest.raises(TypeError, match="computes"):
        computed(end=at(12))

    @compiled
    def depends(*, number):
        name = "gpu_id" if number > 20_500 else "reservation_id"
        return Allocation.objects.filter(**{name: number}).values_list("pk")

    with pytest.raises(TypeError, match="depends"):
        depends(number=3)


def test_whole_rows_come_back_as_instances(lab, alice) -> None:
    own = alice.memberships.select_related("account__parent").get()

    @compiled
    def rights(*, user):
        return Membership.objects.filter(user_id=user).values_list(
            *whole(Membership),
            *whole(Account, "account"),
            *whole(Account, "account__parent__parent__parent"),
        )

    membership, account, above = instances(
        rights(user=alice.pk)[0], Membership, Account, Account
    )
    assert (membership, account, above) == (own, own.account, None)
    assert account.name == own.account.name
    membership.refresh_from_db()
