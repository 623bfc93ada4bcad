"""Remedies that make a model fit on one Gpu: an ordered list with the bytes of each."""

import pytest

from placement.planner.memory.estimate import estimate
from placement.planner.model.adaptation import with_lora
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.fit_suggestions import ladder
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.gpu_list import offers_from_list
from placement.planner.values.workload import Workload

GIB = 2**30


def gpu(free_gib: float) -> GpuOffer:
    entry = {"name": "NVIDIA A100 80GB PCIe", "free_bytes": int(free_gib * GIB)}
    return offers_from_list([entry])[0]


def test_a_model_that_fits_needs_no_remedy():
    found = ladder(well_known_spec("gpt2"), Workload(), gpu(80))
    assert found.fits_as_asked and found.fits and found.rungs == ()


@pytest.mark.parametrize("name", ["gpt2", "llama-3.2-1b", "llama-3-8b"])
def test_each_rung_saves_what_it_says_and_the_last_one_fits(name):
    spec, asked = well_known_spec(name), Workload(batch=32, sequence_length=1024)
    whole = estimate(spec, asked).likely_bytes
    found = ladder(spec, asked, gpu(0.4 * whole / GIB))
    assert found.need_bytes == whole
    need = whole
    for rung in found.rungs:
        assert rung.saves_bytes > 0
        assert rung.need_bytes == need - rung.saves_bytes
        need = rung.need_bytes
    assert [rung.fits for rung in found.rungs] == [False] * (len(found.rungs) - 1) + [
        True
    ]
    assert found.fits and found.missing_bytes == 0


def test_what_changes_the_question_comes_last_and_says_so():
    found = ladder(well_known_spec("llama-3-8b"), Workload(batch=8), gpu(1))
    kinds = [rung.changes_question for rung in found.rungs]
    assert kinds == sorted(kinds)
    assert kinds[-1]


def test_a_ladder_too_short_says_what_still_lacks():
    found = ladder(well_known_spec("llama-3-70b"), Workload(batch=1), gpu(0.5))
    assert not found.fits
    assert found.missing_bytes == found.rungs[-1].need_bytes - found.gpu.free_bytes > 0


def test_adapters_let_the_frozen_weights_be_quantized():
    spec = with_lora(well_known_spec("llama-3-8b"), rank=8)
    words = [r.words for r in ladder(spec, Workload(batch=1), gpu(1)).rungs]
    assert any("nf4" in text for text in words)
    full = ladder(well_known_spec("llama-3-8b"), Workload(batch=1), gpu(1))
    assert not any("nf4" in rung.words for rung in full.rungs)


def test_inference_is_offered_offload_and_smaller_batches_only():
    asked = Workload(task="infer", batch=4, sequence_length=4096)
    words = [
        r.words for r in ladder(well_known_spec("llama-3-8b"), asked, gpu(2)).rungs
    ]
    assert "keep the weights there too (slower)" in words
    assert any(text.startswith("a batch of") for text in words)
    assert not any("optimizer" in text or "accumulation" in text for text in words)
