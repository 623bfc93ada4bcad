"""Registered models: parsed separately, stored once, private."""

import json
import os
import subprocess
import threading
import time
from dataclasses import replace

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone

from placement.models import RegisteredModel
from placement.planner.model.adaptation import adapted
from placement.planner.model.spec import ModelSpec
from placement.planner.values.errors import SpecInvalid
from placement.plans import model_registry
from placement.plans.model_registry import chosen_spec, parse_model

pytestmark = pytest.mark.django_db
GPT2 = json.dumps({"model_type": "gpt2"}).encode()


def keep(user, name="config.json", content=GPT2):
    upload = SimpleUploadedFile(name, content)
    return parse_model(user=user, upload=upload, now=timezone.now())


def refused(user, name, content):
    with pytest.raises(SpecInvalid) as caught:
        keep(user, name, content)
    return caught.value.fields


@pytest.mark.once
def test_a_spec_is_kept_and_not_the_file(alice, settings, tmp_path):
    row = keep(alice, "my-model.json")
    assert (row.name, row.source) == ("my-model.json", "config")
    spec = ModelSpec.from_json(row.spec)
    assert (spec.name, spec.parameter_count) == ("my-model", 124_439_808)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.once
def test_the_same_file_again_is_the_same_model(alice, bob):
    assert keep(alice).pk == keep(alice, "again.json").pk
    assert keep(bob).pk != keep(alice).pk


@pytest.mark.once
def test_a_file_name_is_not_a_path(alice):
    assert keep(alice, "../../etc/config.json").name == "config.json"


def test_old_models_make_room_for_new_ones(alice, monkeypatch):
    monkeypatch.setattr(model_registry, "MODELS_PER_USER", 2)
    for layers in (1, 2, 3):
        config = {"model_type": "gpt2", "n_layer": layers}
        keep(alice, "config.json", json.dumps(config).encode())
    left = RegisteredModel.objects.filter(owner=alice)
    assert [len(ModelSpec.from_json(row.spec).layers) for row in left] == [5, 4]


def test_a_file_too_large_is_refused_before_it_is_read(alice, monkeypatch):
    monkeypatch.setattr(model_registry, "MOST_UPLOAD_BYTES", 10)
    assert "at most 10" in refused(alice, "m.onnx", b"x" * 11)["upload"]


@pytest.mark.once
def test_the_parser_gets_none_of_our_environment(alice, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "hush")
    monkeypatch.setenv("DATABASE_URL", "postgres://hush")
    seen = {}
    real = subprocess.run

    def run(command, **options):
        seen.update(options["env"])
        return real(command, **options)

    monkeypatch.setattr(subprocess, "run", run)
    keep(alice)
    assert not {"SECRET_KEY", "DATABASE_URL", "DJANGO_SETTINGS_MODULE"} & set(seen)
    assert set(seen) < {*os.environ, "LANG", "PYTHONDONTWRITEBYTECODE", "PATH"}


def test_a_parser_that_hangs_is_given_up(alice, monkeypatch):
    monkeypatch.setattr(model_registry, "PARSE_SECONDS", 0.001)
    assert "took more than" in refused(alice, "config.json", GPT2)["upload"]


def test_a_parser_that_dies_is_a_sentence_and_no_crash(alice, monkeypatch):
    dead = subprocess.CompletedProcess([], -9)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: dead)
    assert "memory" in refused(alice, "config.json", GPT2)["upload"]


@pytest.mark.once
def test_a_chosen_model_is_ones_own(alice, carol):
    row = keep(alice)
    spec = chosen_spec(user=alice, well_known="", model_id=row.pk)
    assert spec.family == "gpt2"
    with pytest.raises(SpecInvalid, match="upload it again"):
        chosen_spec(user=carol, well_known="", model_id=row.pk)
    with pytest.raises(SpecInvalid, match="nosuch"):
        chosen_spec(user=alice, well_known="nosuch", model_id=None)


@pytest.mark.once
def test_more_files_at_once_than_the_machine_reads_are_told_to_wait(alice, monkeypatch):
    places = replace(model_registry._parsers, most_waiting=1, wait_seconds=0.05)
    monkeypatch.setattr(model_registry, "_parsers", places)
    with places.taken(), places.taken():
        assert "try again" in refused(alice, "config.json", GPT2)["upload"]
    for _ in range(3):
        refused(alice, "config.json", b"{")
    assert keep(alice)


def test_a_long_queue_for_the_parser_is_refused_at_once(redis_client):
    places = replace(model_registry._builders, most_waiting=1, wait_seconds=60)
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with places.taken():
            held.set()
            let_go.wait(90)

    threads = [threading.Thread(target=hold) for _ in range(2)]
    for thread in threads:
        thread.start()
    held.wait(60)
    while not redis_client.zcard("slots.builders.waiting"):
        time.sleep(0.01)
    begun = time.monotonic()
    with pytest.raises(SpecInvalid), places.taken():
        pass
    assert time.monotonic() - begun < 30
    let_go.set()
    for thread in threads:
        thread.join(60)
    with places.taken():
        pass


@pytest.mark.once
def test_a_family_that_is_built_keeps_no_short_file_waiting(alice, carol):
    with model_registry._builders.taken():
        assert keep(alice)
        assert keep(carol)


def test_a_place_whose_holder_was_killed_is_free_after_its_time(redis_client):
    """The slots are the site's: a web process that ends returns none."""
    places = replace(model_registry._builders, most_waiting=0, wait_seconds=0)
    member, now_ms = "0|1|0|0|a-machine", int(time.time() * 1000)
    redis_client.zadd("slots.builders.running", {member: now_ms + 60_000})
    with pytest.raises(SpecInvalid, match="other people"), places.taken():
        pass
    redis_client.zadd("slots.builders.running", {member: now_ms - 1})
    with places.taken():
        pass


def test_files_are_refused_in_words_while_the_broker_is_away(alice, settings):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    assert "broker is away" in refused(alice, "config.json", GPT2)["upload"]


@pytest.mark.once
def test_one_person_takes_one_place_of_those_where_files_are_read(
    alice, carol, monkeypatch
):
    monkeypatch.setattr(model_registry, "OWN_WAIT_SECONDS", 0)
    with model_registry._one_at_a_time(alice):
        assert "wait until it is done" in refused(alice, "config.json", GPT2)["upload"]
        assert keep(carol)
    assert keep(alice)


@pytest.mark.once
def test_a_family_that_is_not_known_is_built_on_meta(alice):
    config = {
        "model_type": "dbrx",
        "auto_map": {"AutoModelForCausalLM": "evil--hub/code.Model"},
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 3,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0},
        "torch_dtype": "bfloat16",
    }
    row = keep(alice, "config.json", json.dumps(config).encode())
    spec = ModelSpec.from_json(row.spec)

    assert (spec.family, spec.source, row.source) == ("dbrx", "config.json", "config")
    assert [layer.kind for layer in spec.layers].count("other") == 3
    assert spec.activations_are_a_guess
    assert "parameters are exact" in spec.notes[0]
    assert row.spec["config"] == config


@pytest.mark.once
@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "dbrx", "n_layers": 10**6}, "at most 4,096 layers"),
        ({"model_type": "dbrx", "d_model": 10**30}, "must be between"),
    ],
)
def test_absurd_sizes_of_an_unknown_family_are_refused(alice, config, words):
    problems = refused(alice, "config.json", json.dumps(config).encode())

    assert words in next(iter(problems.values()))


@pytest.mark.once
def test_a_config_that_names_a_kernel_of_the_hub_is_built_without_it(alice):
    config = {
        "model_type": "granite",
        **dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 64),
        **dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 2),
        "num_key_value_heads": 2,
        "_attn_implementation": "kernels-community/flash-attn",
    }

    assert keep(alice, "config.json", json.dumps(config).encode()).spec["layers"]


def header_file(name, *names):
    header = {
        tensor: {"dtype": "F32", "shape": [4, 4], "data_offsets": [64 * i, 64 * i + 64]}
        for i, tensor in enumerate(names)
    }
    return SimpleUploadedFile(name, json.dumps(header).encode())


@pytest.mark.once
def test_an_index_and_its_shards_come_as_several_files(alice):
    index = {"weight_map": {"h.0.w": "a.safetensors", "h.1.w": "b.safetensors"}}
    files = [
        header_file("a.safetensors", "h.0.w"),
        header_file("b.json", "h.1.w"),
        SimpleUploadedFile("big.safetensors.index.json", json.dumps(index).encode()),
    ]
    row = parse_model(user=alice, upload=files, now=timezone.now())

    assert (row.name, row.source) == ("big.safetensors.index.json", "safetensors")
    spec = ModelSpec.from_json(row.spec)
    assert (spec.name, spec.parameter_count) == ("big", 32)


@pytest.mark.once
def test_a_header_saved_as_json_is_read(alice):
    file = header_file("header.json", "h.0.w")
    row = parse_model(user=alice, upload=file, now=timezone.now())

    assert ModelSpec.from_json(row.spec).parameter_count == 16


def test_a_module_and_callable_is_never_run_by_the_portal(alice):
    with pytest.raises(SpecInvalid, match="never does"):
        chosen_spec(user=alice, well_known="nets:make", model_id=None)


def test_adapters_and_quantized_weights_are_chosen_with_a_model(alice):
    spec = chosen_spec(user=alice, well_known="llama-3.2-1b", model_id=None)
    both = adapted(spec, weights="nf4", lora_rank=8)

    assert both.is_quantized
    assert both.trainable_count == 16 * 8 * (2048 + 2048 + 2048 + 512)
    with pytest.raises(SpecInvalid, match="must be int8 or nf4"):
        adapted(spec, weights="int2")
