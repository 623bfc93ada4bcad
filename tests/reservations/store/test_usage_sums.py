"""A large ledger is added up once. A process that starts continues from there."""

from reservations.booking.release import release
from reservations.booking.service import book
from reservations.models import KeptUsage, LedgerEntry
from reservations.store import usage
from reservations.store.booking_facts import site_policy
from reservations.store.usage import store_usage
from tests.reservations.conftest import at


def test_a_process_that_starts_goes_on_from_the_stored_sums(
    lab, alice, monkeypatch, django_assert_max_num_queries
) -> None:
    def spend(hour: int) -> None:
        made = book(
            user=alice,
            membership=None,
            gpu_ids=[lab.gpus[0].pk],
            start=at(hour),
            end=at(hour + 2),
            now=at(hour),
        )
        release(reservation_id=made.pk, user=alice, now=at(hour + 1), reason="")

    policy = site_policy()
    spend(9)
    assert not store_usage(at(11), policy), "a small ledger is read anew each time"
    spend(11)
    whole = usage.past_usage(at(13), policy)
    assert whole[alice.memberships.get().pk] > 0

    monkeypatch.setattr(usage, "SMALL_LEDGER_ROWS", 0)
    monkeypatch.setattr(usage, "UNSETTLED_ROWS", 2)
    monkeypatch.setattr(usage, "_kept", {})
    assert usage.past_usage(at(13), policy) == whole
    assert store_usage(at(13), policy)
    assert not store_usage(at(13), policy), "nothing is new"

    # Another process: the oldest rows are not read again, the newest are.
    stored = KeptUsage.objects.get()
    newest = LedgerEntry.objects.latest("pk").pk
    assert stored.settled_pk == newest - 2
    monkeypatch.setattr(usage, "_kept", {})
    read: list[int] = []
    add = usage._add
    monkeypatch.setattr(
        usage,
        "_add",
        lambda sums, rows, half: read.append(rows.count()) or add(sums, rows, half),
    )
    assert usage.past_usage(at(13), policy) == whole
    assert sum(read) <= 2

    # More rows than are stored (another database): they do not serve.
    KeptUsage.objects.update(settled_pk=newest + 1000, sums={})
    monkeypatch.setattr(usage, "_kept", {})
    assert usage.past_usage(at(13), policy) == whole
