"""Parameters exact to the element: ours beside transformers' and PEFT's own modules.

One subprocess builds every case on meta (about six seconds of processor time).
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from placement.planner.model.adaptation import (
    EXPERT_NAMES,
    FUSED_FAMILIES,
    MAMBA_FAMILIES,
    MAMBA_NAMES,
    target_names,
    with_lora,
)
from placement.planner.model.families.config_json import FAMILIES, parse_config
from placement.planner.model.well_known import WELL_KNOWN
from tests.placement.planner import exact_cases
from tests.placement.planner.exact_cases import products

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parents[3]
MODELS = [known.config for known in WELL_KNOWN.values()]
SMALL = list(exact_cases.cases())


def with_adapters(configs):
    """Each config with a rank and some of its linear layers' names, from a seed."""
    draw = random.Random(11)
    for config in configs:
        spec = parse_config(config)
        names = list(target_names(spec))
        if spec.family in FUSED_FAMILIES:
            names = [name for name in names if name not in EXPERT_NAMES]
        if spec.family in MAMBA_FAMILIES:
            names = [name for name in names if name not in MAMBA_NAMES]
        targets = draw.sample(names, k=min(len(names), draw.choice([1, 2, 3])))
        yield {
            "config": config,
            "lora": {"rank": draw.choice([1, 8, 16]), "targets": targets},
        }


@pytest.fixture(scope="module")
def built():
    """(ours, theirs, the case) of every case."""
    cases = [*with_adapters(SMALL), *({"config": config} for config in MODELS)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.placement.planner.meta_child"],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={
            "PATH": os.environ["PATH"],
            "OMP_NUM_THREADS": "1",
            "HOME": "/nonexistent",
        },
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout)
    return [
        (parse_config(case["config"]), one, case)
        for case, one in zip(cases, theirs, strict=True)
    ]


def said(case):
    return json.dumps(case["config"])[:400]


def test_every_family_has_cases():
    assert set(exact_cases.FAMILIES) == set(FAMILIES)


def test_parameters_tensors_and_the_largest_are_exact(built):
    for spec, theirs, case in built:
        assert spec.parameter_count == theirs["parameters"], said(case)
        assert spec.tensor_count == theirs["tensors"], said(case)
        assert spec.trainable_count == theirs["trainable"], said(case)
        largest = max(layer.largest for layer in spec.layers)
        assert largest == theirs["largest"], said(case)


def test_tied_tensors_are_counted_once_and_named(built):
    for spec, theirs, case in built:
        assert bool(spec.tied_groups) == bool(theirs["tied"]), said(case)


def test_every_block_is_exact(built):
    for spec, theirs, case in built:
        blocks = [
            layer for layer in spec.layers if layer.kind not in ("embedding", "head")
        ]
        sums = [layer.parameters for layer in blocks]
        encoders = [layer.kind for layer in blocks].count("encoder")
        if encoders:
            # The norm behind the encoder belongs to its last block here.
            sums[encoders - 1] -= blocks[encoders - 1].parts[-1].parameters
        assert sums == theirs["blocks"], said(case)


def test_linear_layers_have_their_familys_names_and_sizes(built):
    for spec, theirs, case in built:
        assert products(spec) == theirs["linears"], said(case)


def test_adapters_are_those_of_peft(built):
    checked = 0
    for spec, theirs, case in built:
        if "lora" not in case:
            continue
        lora = case["lora"]
        adapted = with_lora(spec, rank=lora["rank"], targets=lora["targets"])
        parts = [
            part
            for layer in adapted.layers
            for part in layer.parts
            if part.component == "adapter"
        ]
        assert adapted.trainable_count == theirs["lora"]["parameters"], case
        assert sum(part.tensors for part in parts) == theirs["lora"]["tensors"], case
        assert max(part.largest for part in parts) == theirs["lora"]["largest"], case
        assert adapted.parameter_count - adapted.trainable_count == spec.parameter_count
        checked += 1
    assert checked == len(SMALL)
