"""The parser's own process: real files, real limits, one line of JSON."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from placement.planner.model.spec import ModelSpec

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parents[4]


def parse(*arguments):
    """Run the parser like a caller: clean environment, own timeout."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "placement.planner.sandbox.model_file_reader",
            *map(str, arguments),
        ],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.count("\n") == 1, done.stderr
    return done.returncode, json.loads(done.stdout)


def write(tmp_path, name, content):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content)
    return path


def test_a_config_becomes_a_spec(tmp_path):
    path = write(tmp_path, "config.json", json.dumps({"model_type": "gpt2"}))
    code, answer = parse("config", path, "my model")

    assert code == 0
    spec = ModelSpec.from_json(answer)
    assert spec.parameter_count == 124_439_808
    assert spec.name == "my model"


def test_a_bad_config_names_its_field(tmp_path):
    path = write(tmp_path, "c.json", '{"model_type": "llama", "hidden_size": -4}')
    code, answer = parse("config", path)

    assert code == 2
    assert answer["error"] == "spec-invalid"
    assert answer["field"] == "hidden_size"


def test_an_unknown_family_is_a_problem_of_its_own(tmp_path):
    path = write(tmp_path, "c.json", '{"model_type": "megalodon"}')

    assert parse("config", path)[1]["error"] == "unknown-family"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", "not-json"),
        ("{", "not-json"),
        ('{"hidden_size": NaN}', "not-json"),
        ('{"hidden_size": ' + "9" * 10_000 + "}", "not-json"),
        ("[" * 500_000, "too-deep"),
        ('{"a": "' + "x" * 2**20 + '"}', "too-large"),
        (b"\xff\xfe\x00", "not-json"),
    ],
)
def test_hostile_text_is_refused(tmp_path, content, error):
    code, answer = parse("config", write(tmp_path, "c.json", content))

    assert (code, answer["error"]) == (2, error)


def safetensors(tensors, data_bytes=None):
    header, at = {}, 0
    for name, shape in tensors:
        size = 4
        for length in shape:
            size *= length
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    body = b"\0" * (at if data_bytes is None else data_bytes)
    return struct.pack("<Q", len(text)) + text + body


TENSORS = [("wte", [10, 4]), ("h.0.w", [4, 4]), ("h.1.w", [4, 4])]


@pytest.mark.parametrize("data_bytes", [None, 0])
def test_a_safetensors_file_or_its_beginning_becomes_a_spec(tmp_path, data_bytes):
    path = write(tmp_path, "m.safetensors", safetensors(TENSORS, data_bytes))
    code, answer = parse("safetensors", path)

    assert code == 0
    assert answer["parameter_count"] == 72
    assert answer["shape"] is None


def test_a_truncated_safetensors_file_is_refused(tmp_path):
    path = write(tmp_path, "m.safetensors", safetensors(TENSORS, 3))

    assert parse("safetensors", path)[0] == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        struct.pack("<Q", 2**63),
        struct.pack("<Q", 100) + b"{}",
        struct.pack("<Q", 2) + b"{}",
    ],
)
def test_a_broken_safetensors_file_is_refused(tmp_path, content):
    assert parse("safetensors", write(tmp_path, "m", content))[0] == 2


def test_a_huge_sparse_safetensors_file_is_parsed_by_its_header_alone(tmp_path):
    path = write(tmp_path, "m.safetensors", safetensors([("h.0.w", [2**15, 2**20])], 0))
    os.truncate(path, path.stat().st_size + 4 * 2**35)
    code, answer = parse("safetensors", path)

    assert code == 0
    assert answer["parameter_count"] == 2**35


def onnx_model(**external):
    weights = [
        helper.make_tensor(
            f"layers.{i}.fc.weight", TensorProto.FLOAT, [4, 8], [0.0] * 32
        )
        for i in range(3)
    ]
    ids = helper.make_tensor("shape", TensorProto.INT64, [2], [1, 2])
    if external:
        weights[0].ClearField("float_data")
        weights[0].data_location = TensorProto.EXTERNAL
        for key, value in external.items():
            entry = weights[0].external_data.add()
            entry.key, entry.value = key, value
    graph = helper.make_graph([], "g", [], [], [*weights, ids])
    return helper.make_model(graph).SerializeToString()


def test_an_onnx_file_becomes_a_spec(tmp_path):
    code, answer = parse("onnx", write(tmp_path, "m.onnx", onnx_model()))

    assert code == 0
    assert answer["parameter_count"] == 96
    assert len(answer["layers"]) == 3


def test_external_data_of_an_onnx_file_is_never_opened(tmp_path):
    path = write(tmp_path, "m.onnx", onnx_model(location="/etc/shadow"))

    assert parse("onnx", path)[0] == 0


@pytest.mark.parametrize("content", [b"hello", b"\xff" * 100, b""])
def test_what_is_no_onnx_model_is_refused(tmp_path, content):
    assert parse("onnx", write(tmp_path, "m.onnx", content))[0] == 2


def test_an_index_without_shapes_says_what_to_give_instead(tmp_path):
    path = write(tmp_path, "i.json", '{"weight_map": {"a": "x.safetensors"}}')
    code, answer = parse("index", path)

    assert code == 2
    assert "config.json" in answer["detail"]


def test_a_link_is_not_followed(tmp_path):
    target = write(tmp_path, "c.json", '{"model_type": "gpt2"}')
    link = tmp_path / "link.json"
    link.symlink_to(target)

    assert parse("config", link)[1]["error"] == "unreadable"


def test_a_pipe_or_folder_is_refused_at_once(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    assert parse("config", pipe)[1]["error"] == "unreadable"
    assert parse("config", tmp_path)[1]["error"] == "unreadable"


def test_a_wrong_call_says_how_to_call(tmp_path):
    assert parse("pickle", tmp_path)[1]["error"] == "usage"


def test_parsing_a_config_imports_neither_torch_nor_django(tmp_path):
    path = write(tmp_path, "c.json", '{"model_type": "gpt2"}')
    script = (
        "import sys; from placement.planner.sandbox import model_file_reader as parse; "
        f"parse.main(['config', {str(path)!r}]); "
        "assert not {'torch', 'django', 'onnx'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60)


def test_json_is_told_apart_by_what_is_in_it(tmp_path):
    header = {"h.0.w": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}
    for content, parameters in (({"model_type": "gpt2"}, 124_439_808), (header, 16)):
        path = write(tmp_path, "x.json", json.dumps(content))
        assert parse("json", path)[1]["parameter_count"] == parameters
    path = write(tmp_path, "x.json", '{"weight_map": {"a": "b"}}')
    assert parse("json", path)[1]["field"] == "weight_map"
    path = write(tmp_path, "x.json", '{"a": 1}')
    assert "is not a config.json" in parse("json", path)[1]["detail"]
    unknown = {"_class_name": "AutoencoderKL", "_diffusers_version": "0.19.0"}
    path = write(tmp_path, "x.json", json.dumps(unknown))
    refused = parse("json", path)[1]
    assert refused["field"] == "_class_name"
    assert ".safetensors" in refused["detail"]
    path = write(tmp_path, "x.json", '{"_class_name": "UNet2DConditionModel"}')
    unet = parse("json", path)[1]
    assert unet["sample_tokens"] == 64 * 64 and "config" not in unet


def test_an_index_with_its_shards_is_one_model(tmp_path):
    first = write(tmp_path, "0.safetensors", safetensors(TENSORS[:2], 0))
    second = write(tmp_path, "1.safetensors", safetensors(TENSORS[2:]))
    index = {"weight_map": dict.fromkeys(["wte", "h.0.w", "h.1.w"], "x")}
    path = write(tmp_path, "2.json", json.dumps(index))
    code, answer = parse("set", "big", path, first, second)

    assert (code, answer["parameter_count"], answer["name"]) == (0, 72, "big")
    assert parse("set", "big", second, first)[1]["parameter_count"] == 72
    assert "not among the headers" in parse("set", "big", path, first)[1]["detail"]


@pytest.mark.parametrize(
    ("kind", "content", "words"),
    [
        ("json", b"PK\x03\x04" + b"\0" * 100, "ZIP"),
        ("onnx", b"\x1f\x8b\x08" + b"\0" * 100, "gzip"),
        ("safetensors", b"\x80\x02}q", "pickle"),
        ("safetensors", b"GGUF" + b"\0" * 100, "GGUF"),
    ],
)
def test_archives_are_never_unpacked(tmp_path, kind, content, words):
    code, answer = parse(kind, write(tmp_path, "x", content))

    assert (code, answer["error"]) == (2, "archive")
    assert words in answer["detail"]


def test_gigabytes_of_json_are_refused_unread(tmp_path):
    path = write(tmp_path, "x.json", "{")
    os.truncate(path, 2 * 2**30)

    for kind in ("json", "config", "header"):
        assert parse(kind, path)[1]["error"] == "too-large"


def test_a_header_full_of_objects_stays_within_memory(tmp_path):
    path = write(tmp_path, "x", b'{"a":[' + b"{}," * 3_000_000 + b"{}]}")
    code, answer = parse("safetensors", path)

    assert code == 2
    assert answer["error"] in ("too-large", "spec-invalid")


def test_a_name_given_twice_is_refused(tmp_path):
    path = write(tmp_path, "c.json", '{"model_type": "gpt2", "model_type": "llama"}')

    assert "appears twice" in parse("config", path)[1]["detail"]
