"""Parameter counts are those of Hugging Face's own classes, to the element."""

import json
import re
from itertools import pairwise

import pytest

from placement.planner.model.families.config_json import parse_config
from placement.planner.model.spec import ModelSpec
from placement.planner.model.well_known import WELL_KNOWN, well_known_spec
from placement.planner.values.errors import SpecInvalid, UnknownFamily

pytestmark = pytest.mark.pure

SMALL = {
    "hidden_size": 256,
    "num_attention_heads": 8,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "vocab_size": 8000,
    "max_position_embeddings": 512,
}
GROUPED = {**SMALL, "num_key_value_heads": 4}

# Counted by transformers 5.23 on the meta device: parameters, tensors, largest tensor.
COUNTED = [
    ({"model_type": "gpt2"}, 124_439_808, 148, 38_597_376),
    ({"model_type": "opt"}, 125_239_296, 196, 38_608_896),
    (
        {
            "model_type": "opt",
            "word_embed_proj_dim": 128,
            "hidden_size": 256,
            "num_attention_heads": 8,
            "do_layer_norm_before": False,
        },
        29_109_760,
        196,
        6_434_816,
    ),
    ({"model_type": "bloom"}, 16_156_544, 29, 16_056_320),
    ({"model_type": "llama"}, 6_738_415_616, 291, 131_072_000),
    (
        {
            "model_type": "llama",
            "num_hidden_layers": 1,
            "attention_bias": True,
            "mlp_bias": True,
        },
        464_573_952,
        19,
        131_072_000,
    ),
    ({"model_type": "mistral", **GROUPED}, 7_047_424, 39, 2_048_000),
    ({"model_type": "mistral"}, 7_241_732_096, 291, 131_072_000),
    (
        {"model_type": "mixtral", **GROUPED, "num_local_experts": 4},
        13_539_584,
        39,
        2_048_000,
    ),
    (
        {
            "model_type": "glm4_moe",
            **GROUPED,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 128,
            "attention_bias": True,
            "use_qk_norm": True,
        },
        8_088_064,
        68,
        2_048_000,
    ),
    ({"model_type": "mixtral"}, 46_702_792_704, 291, 939_524_096),
    (
        {"model_type": "qwen2", **GROUPED, "tie_word_embeddings": True},
        5_001_472,
        50,
        2_048_000,
    ),
    ({"model_type": "qwen3", **GROUPED, "head_dim": 64}, 7_834_368, 47, 2_048_000),
    ({"model_type": "gemma", **GROUPED, "head_dim": 64}, 5_785_856, 38, 2_048_000),
    ({"model_type": "gemma2", **GROUPED, "head_dim": 64}, 5_787_904, 46, 2_048_000),
    ({"model_type": "phi", **GROUPED}, 6_341_696, 61, 2_048_000),
    (
        {"model_type": "phi", "num_hidden_layers": 2, "qk_layernorm": True},
        310_479_360,
        41,
        104_857_600,
    ),
    ({"model_type": "gpt_neox", **SMALL}, 6_598_912, 52, 2_048_000),
    (
        {"model_type": "falcon", "num_hidden_layers": 2},
        709_618_304,
        15,
        295_469_056,
    ),
    (
        {
            "model_type": "falcon",
            "num_hidden_layers": 2,
            "hidden_size": 512,
            "num_attention_heads": 8,
            "new_decoder_architecture": True,
            "num_kv_heads": 4,
            "num_ln_in_parallel_attn": 2,
        },
        39_064_576,
        19,
        33_292_288,
    ),
    (
        {
            "model_type": "falcon",
            "num_hidden_layers": 2,
            "hidden_size": 512,
            "num_attention_heads": 8,
            "alibi": True,
            "parallel_attn": False,
            "multi_query": False,
            "bias": True,
        },
        39_598_080,
        27,
        33_292_288,
    ),
    ({"model_type": "bert"}, 109_514_298, 202, 23_440_896),
    ({"model_type": "bert", "architectures": ["BertModel"]}, 109_482_240, 199, None),
    (
        {
            "model_type": "bert",
            "architectures": ["BertForSequenceClassification"],
            "id2label": {str(i): str(i) for i in range(5)},
        },
        109_486_085,
        201,
        None,
    ),
    ({"model_type": "roberta"}, 124_696_665, 202, 38_603_520),
    ({"model_type": "t5"}, 60_506_624, 131, 16_449_536),
    (
        {
            "model_type": "t5",
            "feed_forward_proj": "gated-gelu",
            "num_layers": 3,
            "num_decoder_layers": 2,
        },
        39_525_888,
        60,
        16_449_536,
    ),
    ({"model_type": "vit"}, 85_800_194, 200, 2_359_296),
    ({"model_type": "vit", "num_labels": 1000}, 86_567_656, 200, 2_359_296),
    ({"model_type": "vit", "architectures": ["ViTModel"]}, 86_389_248, 200, None),
]


@pytest.mark.parametrize(("config", "parameters", "tensors", "largest"), COUNTED)
def test_counts_are_those_of_hugging_face(config, parameters, tensors, largest):
    spec = parse_config(config)

    assert spec.parameter_count == parameters
    assert spec.tensor_count == tensors
    if largest is not None:
        assert max(layer.largest for layer in spec.layers) == largest


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("bert-base", 109_514_298),
        ("vit-base", 86_567_656),
        ("qwen2-0.5b", 494_032_768),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3-8b", 8_030_261_248),
        ("mistral-7b", 7_241_732_096),
    ],
)
def test_well_known_models_have_their_published_sizes(name, parameters):
    assert well_known_spec(name).parameter_count == parameters


@pytest.mark.parametrize("known", WELL_KNOWN.values(), ids=WELL_KNOWN)
def test_titles_tell_the_size_to_three_digits(known):
    found = re.search(r", ([0-9.]+) ([MB])\b", known.title)
    if found is None:
        assert known.name == "opt-125m"
        return
    said = float(found[1]) * {"M": 1e6, "B": 1e9}[found[2]]
    assert well_known_spec(known.name).parameter_count == pytest.approx(said, rel=0.015)


def test_the_demo_model_has_about_ten_million_parameters():
    assert 9e6 < well_known_spec("tiny-gpt").parameter_count < 11e6


@pytest.mark.parametrize("name", WELL_KNOWN)
def test_a_spec_survives_json(name):
    spec = well_known_spec(name)

    assert ModelSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_components_add_up_to_all_parameters():
    spec = well_known_spec("llama-3-8b")

    assert sum(spec.component_parameters().values()) == spec.parameter_count


def test_a_tied_head_owns_nothing_but_knows_what_it_uses():
    head = well_known_spec("gpt2").layers[-1]

    assert head.component_parameters("head") == 0
    assert head.tied_parameters == 50257 * 768


def test_an_unknown_family_names_the_known_ones():
    with pytest.raises(UnknownFamily) as caught:
        parse_config({"model_type": "megalodon"})

    assert "megalodon" in str(caught.value)
    assert "llama" in caught.value.known


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hidden_size": -1}, "hidden_size"),
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"hidden_size": 1e300}, "hidden_size"),
        ({"hidden_size": 10**5000}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": float("nan")}, "hidden_size"),
        ({"hidden_size": 100}, "num_attention_heads"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers"),
        ({"vocab_size": 2.5}, "vocab_size"),
        ({"hidden_act": "tanhexp"}, "hidden_act"),
        ({"attention_dropout": 1.5}, "attention_dropout"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"torch_dtype": "float99"}, "torch_dtype"),
    ],
)
def test_a_bad_field_is_named(changes, field):
    with pytest.raises(SpecInvalid) as caught:
        parse_config({"model_type": "llama", **changes})

    assert field in caught.value.fields


def test_all_bad_fields_are_reported_at_once():
    with pytest.raises(SpecInvalid) as caught:
        parse_config({"model_type": "llama", "hidden_size": -1, "vocab_size": "x"})

    assert set(caught.value.fields) >= {"hidden_size", "vocab_size"}


@pytest.mark.parametrize(
    "config", [[], "gpt2", None, 3, {}, {"model_type": 7}, {"model_type": []}]
)
def test_what_is_no_config_is_refused(config):
    with pytest.raises(SpecInvalid):
        parse_config(config)


def test_nesting_without_end_is_refused():
    config: dict = {"model_type": "gpt2"}
    at = config
    for _ in range(200):
        at["x"] = {}
        at = at["x"]

    with pytest.raises(SpecInvalid, match="nested"):
        parse_config(config)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(version=2),
        lambda data: data.pop("layers"),
        lambda data: data.update(layers=[]),
        lambda data: data["layers"][0].update(kind="sandwich"),
        lambda data: data["layers"][0]["parts"][0].update(parameters=-5),
        lambda data: data["layers"][0]["parts"][0].update(parameters=2.5),
        lambda data: data["shape"].update(hidden="768"),
        lambda data: data["shape"].update(kv_heads=7),
        lambda data: data.update(dtype="float"),
    ],
)
def test_a_broken_stored_spec_is_refused(change):
    data = json.loads(json.dumps(well_known_spec("gpt2").to_json()))
    change(data)

    with pytest.raises(SpecInvalid):
        ModelSpec.from_json(data)


def test_t5_blocks_come_encoder_first():
    kinds = [layer.kind for layer in parse_config({"model_type": "t5"}).layers]

    changes = [(a, b) for a, b in pairwise(kinds) if a != b]
    assert changes == [
        ("embedding", "encoder"),
        ("encoder", "decoder"),
        ("decoder", "head"),
    ]


@pytest.mark.parametrize(
    ("family", "architecture"),
    [
        ("llama", "LlamaForSequenceClassification"),
        ("bert", "BertForQuestionAnswering"),
        ("electra", "ElectraForPreTraining"),
        ("whisper", "WhisperForAudioClassification"),
        ("t5", "T5EncoderModel"),
    ],
)
def test_a_known_family_in_an_unknown_form_is_left_to_a_build(family, architecture):
    with pytest.raises(UnknownFamily) as caught:
        parse_config({"model_type": family, "architectures": [architecture]})

    assert caught.value.code == "unknown-family"
    assert caught.value.field == "architectures"


def test_a_family_of_another_name_is_read_as_the_class_that_it_names():
    """Kimi K2 runs DeepSeek's class."""
    known = {"model_type": "deepseek_v3", "num_hidden_layers": 5}
    named = {
        **known,
        "model_type": "kimi_k2",
        "architectures": ["DeepseekV3ForCausalLM"],
    }
    made = parse_config(named)

    assert made.family == "deepseek_v3"
    assert made.parameter_count == parse_config(known).parameter_count
    assert "kimi_k2 is read as deepseek_v3" in made.notes[0]
    for changes in (
        {"architectures": ["KimiForCausalLM"]},
        {"architectures": ["DeepseekV3Model"]},
        {"architectures": [3]},
        {"architectures": None},
    ):
        with pytest.raises(UnknownFamily):
            parse_config({**named, **changes})


def test_a_config_without_any_size_says_that_all_are_defaults():
    bare, sized = {"model_type": "llama"}, {"model_type": "llama", "hidden_size": 4096}
    assert (
        "every size is the default of llama: 6,738,415,616"
        in (parse_config(bare).notes[0])
    )
    assert not parse_config(sized).notes


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "bert"])
def test_a_head_has_at_least_one_number(family):
    with pytest.raises(SpecInvalid, match="head_dim: must be between 1"):
        parse_config({"model_type": family, "head_dim": 0})
