"""A wish for GPUs that the site does not have names what it has."""

from dataclasses import replace

import pytest

from reservations.rules.calendar import CalendarGpu, SlotWish
from reservations.rules.closed_time import PoolNotYours
from reservations.rules.never_fits import GIB_BYTES, NeverFits, check_there

A100 = CalendarGpu(1, "a", 0, "A100", 80 * GIB_BYTES, 10, pool_pk=1)
H200 = replace(A100, pk=2, gpu_class="H200", memory_total_bytes=141 * GIB_BYTES)
KEPT = replace(H200, pk=3, gpu_class="B200", pool_pk=2)
SLURM = replace(A100, pk=4, gpu_class="GH200", engine="slurm")
GPUS = (A100, H200, KEPT, SLURM)
BARRED = {2: ("vision",)}


def said(count=1, memory_gib=0.0, gpu_class=None):
    wish = SlotWish(count, 3600, int(memory_gib * GIB_BYTES), gpu_class)
    with pytest.raises(NeverFits) as refused:
        check_there(wish, GPUS, BARRED)
    return refused.value.text()


def test_an_unknown_class_is_refused_with_those_that_exist():
    words = "There is no class {}. The classes are: A100, H200."
    assert said(gpu_class="nonsense") == words.format("nonsense")
    assert said(gpu_class="GH200") == words.format("GH200")


def test_the_largest_memory_is_named():
    most = "No GPU here has 150.5 GiB. The largest has 141 GiB."
    assert said(memory_gib=150.5) == most
    most = "No A100 here has 90 GiB. The largest has 80 GiB."
    assert said(memory_gib=90, gpu_class="A100") == most


def test_too_few_that_fit_are_counted():
    assert said(2, 90).startswith("Of the GPUs you may book here 1 fits; 2 were")
    assert said(3).startswith("Of the GPUs you may book here 2 fit; 3 were")


def test_what_is_there_is_not_refused_even_out_of_service():
    check_there(SlotWish(1, 3600), [replace(A100, bookable=False)], {})
    with pytest.raises(PoolNotYours):
        check_there(SlotWish(1, 3600, gpu_class="B200"), GPUS, BARRED)
