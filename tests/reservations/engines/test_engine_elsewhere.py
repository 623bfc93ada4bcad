"""Acts of the portal that must leave nodes of Slurm alone."""

from dataclasses import replace

import pytest

from reservations.operations import gpu_replacement
from reservations.operations.evacuation_plan import (
    BookingFate,
    EvacuatedBooking,
    GpuTimetable,
    relieve,
)
from reservations.rules.calendar import CalendarGpu
from reservations.rules.review import FieldsInvalid
from reservations.rules.window import Window
from tests.reservations.conftest import NOW, at


@pytest.mark.pure
def test_no_booking_moves_to_a_node_of_slurm():
    old = CalendarGpu(1, "a", 0, "A100", 80, 10, pool_pk=1)
    other = replace(old, pk=2, node="b", engine="slurm")
    one = EvacuatedBooking(7, Window(at(12), at(13)), False, True, (old,), 10)

    def fate(*gpus):
        room = GpuTimetable(gpus, {1: [one.window]})
        (told,) = relieve([one], {1}, room, closed_from=at(10), now=NOW)
        return told.fate

    assert fate(old, other) is BookingFate.REFUNDED
    assert fate(old, replace(other, engine="")) is BookingFate.MOVED


@pytest.mark.django_db
def test_a_gpu_of_slurm_is_neither_replaced_nor_a_replacement(lab, node_gpus):
    ours, theirs = lab.gpus[0].pk, node_gpus[0].pk
    for old, new, field in ((ours, theirs, "new"), (theirs, ours, "old")):
        with pytest.raises(FieldsInvalid) as refusal:
            gpu_replacement.preview(old_id=old, new_id=new, now=NOW)
        assert "gp1:0 belongs to Slurm" in refusal.value.fields[field]
