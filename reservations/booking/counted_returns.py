"""The Gpus and hours that a change gives back, and the part that still counts."""

from collections.abc import Iterable

from reservations.models import Allocation, Reservation
from reservations.rules.fairness.quota import Spend
from reservations.rules.policy import Policy
from reservations.rules.request import Request
from reservations.rules.window import Window, without
from reservations.store import ledger


def given_back(
    row: Reservation,
    gpu_pks: Iterable[int],
    window: Window,
    held: Iterable[Allocation] | None = None,
) -> list[tuple[Allocation, Window]]:
    """Return what a change to these Gpus and this Window would give back."""
    before = Window(row.start, row.end)
    kept = set(gpu_pks)
    returned: list[tuple[Allocation, Window]] = []
    for allocation in allocations_of(row) if held is None else held:
        gone = without(before, [window]) if allocation.gpu_id in kept else [before]
        returned += [(allocation, part) for part in gone]
    return returned


def allocations_of(row: Reservation) -> list[Allocation]:
    """Return its Allocations with the cost of each, in pk order of the Gpus."""
    return list(row.allocations.select_related("gpu__pool").order_by("gpu_id"))


def given_back_late(
    row: Reservation, request: Request, policy: Policy, held: Iterable[Allocation]
) -> list[Spend]:
    """Return the spends that are given back too late and still count in quotas."""
    gpu_pks = {gpu.pk for gpu in request.gpus}
    returned = given_back(row, gpu_pks, request.window, held)
    spends = ledger.late_spends(
        row, returned, now=request.now, permille=policy.late_return_permille
    )
    return spends + ledger.remaining_late_spends(row, gpu_pks, request.window)
