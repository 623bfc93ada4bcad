"""Mamba and Mamba-2 without torch: exact parameters, and a step that fits."""

import pytest

from placement.planner.model.families.config_json import parse_config
from placement.planner.search.planner import plan
from placement.planner.values.errors import SpecInvalid
from placement.planner.values.workload import Workload
from tests.placement.planner.made import make_offer

pytestmark = pytest.mark.pure

MAMBA2 = {
    "model_type": "mamba2",
    "hidden_size": 2560,
    "num_heads": 80,
    "n_groups": 1,
    "vocab_size": 50288,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (
            {"model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64},
            2_768_345_600,
        ),
        (
            {
                "model_type": "falcon_mamba",
                "hidden_size": 4096,
                "num_hidden_layers": 64,
                "vocab_size": 65024,
                "tie_word_embeddings": False,
            },
            7_272_665_088,
        ),
        (MAMBA2, 2_702_599_680),
        (
            MAMBA2 | {"hidden_size": 2048, "num_heads": 64, "num_hidden_layers": 48},
            1_343_757_312,
        ),
    ],
)
def test_parameters_are_those_of_transformers(config, parameters):
    """Counted with transformers 5.23's classes on meta."""
    assert parse_config(config).parameter_count == parameters


def test_a_step_of_mamba_2_is_planned_without_torch():
    cards = [make_offer(index=i, uuid=f"g{i}") for i in range(4)]
    found = plan(parse_config(MAMBA2), Workload(batch=8, precision="bf16"), cards)
    assert found.best is not None and not found.best.absurd
    assert any("mamba-ssm" in note for note in found.notes)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_heads": 81}, "num_heads"),
        ({"num_heads": 0}, "num_heads"),
        ({"n_groups": 3}, "n_groups"),
        ({"hidden_size": [2560]}, "hidden_size"),
        ({"state_size": 2**40}, "state_size"),
    ],
)
def test_a_wrong_field_is_named(change, field):
    with pytest.raises(SpecInvalid) as refused:
        parse_config(MAMBA2 | change)
    assert field in refused.value.fields
