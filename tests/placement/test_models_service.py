"""Registered models: parsed apart, kept once, nobody else's."""

import json
import os
import subprocess

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone

from placement import services
from placement.domain.errors import SpecInvalid
from placement.domain.spec import ModelSpec
from placement.models import RegisteredModel
from placement.services import models

pytestmark = pytest.mark.django_db
GPT2 = json.dumps({"model_type": "gpt2"}).encode()


def keep(user, name="config.json", content=GPT2):
    upload = SimpleUploadedFile(name, content)
    return services.parse_model(user=user, upload=upload, now=timezone.now())


def refused(user, name, content):
    with pytest.raises(SpecInvalid) as caught:
        keep(user, name, content)
    return caught.value.problems


def test_a_spec_is_kept_and_not_the_file(alice, settings, tmp_path):
    row = keep(alice, "my-model.json")
    assert (row.name, row.source) == ("my-model.json", "config")
    spec = ModelSpec.from_json(row.spec)
    assert (spec.name, spec.parameter_count) == ("my-model", 124_439_808)
    assert not list(tmp_path.rglob("*.json"))


def test_the_same_file_again_is_the_same_model(alice, bob):
    assert keep(alice).pk == keep(alice, "again.json").pk
    assert keep(bob).pk != keep(alice).pk


def test_a_file_name_is_not_a_path(alice):
    assert keep(alice, "../../etc/config.json").name == "config.json"


def test_old_models_make_room_for_new_ones(alice, monkeypatch):
    monkeypatch.setattr(models, "MODELS_PER_USER", 2)
    for layers in (1, 2, 3):
        config = {"model_type": "gpt2", "n_layer": layers}
        keep(alice, "config.json", json.dumps(config).encode())
    left = RegisteredModel.objects.filter(owner=alice)
    assert [len(ModelSpec.from_json(row.spec).layers) for row in left] == [5, 4]


def test_a_file_too_large_is_refused_before_it_is_read(alice, monkeypatch):
    monkeypatch.setattr(models, "MOST_UPLOAD_BYTES", 10)
    assert "at most 10" in refused(alice, "m.onnx", b"x" * 11)["upload"]


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
    monkeypatch.setattr(models, "PARSE_SECONDS", 0.001)
    assert "took more than" in refused(alice, "config.json", GPT2)["upload"]


def test_a_parser_that_dies_is_a_sentence_and_no_crash(alice, monkeypatch):
    dead = subprocess.CompletedProcess([], -9)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: dead)
    assert "memory" in refused(alice, "config.json", GPT2)["upload"]


def test_a_chosen_model_is_ones_own(alice, carol):
    row = keep(alice)
    spec = services.chosen_spec(user=alice, well_known="", model_id=row.pk)
    assert spec.family == "gpt2"
    with pytest.raises(SpecInvalid, match="upload it again"):
        services.chosen_spec(user=carol, well_known="", model_id=row.pk)
    with pytest.raises(SpecInvalid, match="nosuch"):
        services.chosen_spec(user=alice, well_known="nosuch", model_id=None)


def test_more_files_at_once_than_the_machine_reads_are_told_to_wait(alice, monkeypatch):
    monkeypatch.setattr(models, "PARSER_WAIT_SECONDS", 0)
    for _ in range(models.MOST_PARSERS):
        models._parsers.acquire()
    try:
        assert "try again" in refused(alice, "config.json", GPT2)["upload"]
    finally:
        for _ in range(models.MOST_PARSERS):
            models._parsers.release()
    for _ in range(models.MOST_PARSERS + 1):
        refused(alice, "config.json", b"{")
    assert keep(alice)
