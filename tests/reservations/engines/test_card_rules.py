"""The permutation of the GPUs of a node. Pure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reservations.engines.card_rules import exchange

pytestmark = pytest.mark.pure
GPUS = [1, 2, 3, 4, 5, 6]
OWNERS = st.lists(st.sampled_from([0, 7, 8, 9]), min_size=6, max_size=6)


def test_who_has_what_slurm_says_changes_nothing():
    assert exchange(GPUS, {7: [1, 2], 8: [3]}, {2: 7, 3: 8}) == {}


def test_a_job_on_a_gpu_of_another_booking():
    moved = exchange(GPUS, {7: [1, 2], 8: [3, 4]}, {3: 7, 1: 8})
    assert (moved[1], moved[3]) == (3, 1)
    assert not {2, 4, 5, 6} & moved.keys()


@given(OWNERS, OWNERS)
def test_each_gpu_that_slurm_names_becomes_its_holders(booked, named):
    held = {
        pk: [g for g, own in zip(GPUS, booked, strict=True) if own == pk]
        for pk in (7, 8, 9)
    }
    held = {pk: own for pk, own in held.items() if own}
    marks: dict[int, int] = {}
    for gpu, pk in zip(GPUS, named, strict=True):
        if pk in held and list(marks.values()).count(pk) < len(held[pk]):
            marks[gpu] = pk
    moved = exchange(GPUS, held, marks)
    after = [moved.get(gpu, gpu) for gpu in GPUS]
    assert sorted(after) == GPUS
    for pk, own in held.items():
        has = {moved.get(gpu, gpu) for gpu in own}
        assert {gpu for gpu, who in marks.items() if who == pk} <= has
    again = {pk: [moved.get(gpu, gpu) for gpu in own] for pk, own in held.items()}
    assert exchange(GPUS, again, marks) == {}
