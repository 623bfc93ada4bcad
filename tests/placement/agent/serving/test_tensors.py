"""The protocol's tensors: what is read, and the named faults."""

import json
import struct

import numpy as np
import pytest

from placement.agent.serving.inference_answer import write_answer
from placement.agent.serving.tensors import (
    InferenceRequest,
    TensorInvalid,
    deadline_of,
    read_request,
)
from placement.planner.values.tensor_signature import Tensor
from placement.protocol.serving_frames import (
    FrameInvalid,
    allowed_path,
    checked_answer,
    checked_call,
    pack,
    unpack,
)

X = Tensor("x", "FP32", (-1, 2))
WORDS = Tensor("w", "BYTES", (1,))
FLAG = Tensor("f", "BOOL", ())
SMALL = Tensor("s", "UINT8", (2,))
HALF = Tensor("h", "FP16", (1,))


def one(info, **changes):
    """One good input, changed."""
    shape = [1 if size == -1 else size for size in info.shape]
    data = {"FP32": [1.5, 2], "BYTES": ["é"], "BOOL": [True], "UINT8": [0, 255]}
    good = {
        "name": info.name,
        "shape": shape,
        "datatype": info.datatype,
        "data": data.get(info.datatype, [1.0]),
    }
    return {**good, **changes}


def read(*inputs, infos=(X,), **more):
    body = json.dumps({"inputs": list(inputs), **more}).encode()
    return read_request(body, None, infos, (Tensor("y", "FP32", (-1,)),))


def test_flat_and_nested_data_and_every_kind_of_element_are_read():
    assert read(one(X)).inputs["x"].tolist() == [[1.5, 2.0]]
    nested = one(X, shape=[2, 2], data=[[1, 2], [3, 4]])
    assert read(nested).inputs["x"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    infos = (WORDS, FLAG, SMALL, HALF)
    found = read(*(one(info) for info in infos), infos=infos).inputs
    assert found["w"].tolist() == ["é"]
    assert found["f"].shape == () and bool(found["f"])
    assert found["s"].dtype == np.uint8
    assert found["h"].dtype == np.float16


def test_texts_have_their_length_before_them_in_the_binary_form():
    text = "naïve".encode()
    raw = struct.pack("<I", len(text)) + text
    item = one(WORDS, parameters={"binary_data_size": len(raw)})
    del item["data"]
    head = json.dumps({"inputs": [item]}).encode()
    found = read_request(head + raw, len(head), (WORDS,), ())
    assert found.inputs["w"].tolist() == ["naïve"]
    for broken in (raw[:-1], raw + b"x", struct.pack("<I", 2**31) + text):
        item["parameters"]["binary_data_size"] = len(broken)
        head = json.dumps({"inputs": [item]}).encode()
        with pytest.raises(TensorInvalid, match="binary_data_size"):
            read_request(head + broken, len(head), (WORDS,), ())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "z"}, "inputs[0].name"),
        ({"name": ["x"]}, "inputs[0].name"),
        ({"datatype": "FP64"}, "inputs[0].datatype"),
        ({"datatype": None}, "inputs[0].datatype"),
        ({"shape": [1, 3]}, "inputs[0].shape"),
        ({"shape": [2]}, "inputs[0].shape"),
        ({"shape": [-1, 2]}, "inputs[0].shape"),
        ({"shape": [True, 2]}, "inputs[0].shape"),
        ({"shape": "1,2"}, "inputs[0].shape"),
        ({"shape": [2**40, 2]}, "inputs[0].shape"),
        ({"shape": [1] * 40}, "inputs[0].shape"),
        ({"data": [1.0]}, "inputs[0].data"),
        ({"data": [1.0, 2.0, 3.0]}, "inputs[0].data"),
        ({"data": [1.0, "2"]}, "inputs[0].data"),
        ({"data": [1.0, True]}, "inputs[0].data"),
        ({"data": [1.0, None]}, "inputs[0].data"),
        ({"data": [1.0, 1e39]}, "inputs[0].data"),
        ({"data": {"0": 1}}, "inputs[0].data"),
        ({"data": [[[[[[[[[[[[[[[[[[1, 2]]]]]]]]]]]]]]]]]]}, "inputs[0].data"),
        ({"parameters": 3}, "inputs[0].parameters"),
        ({"parameters": {"binary_data_size": 8}}, "inputs[0].data"),
    ],
)
def test_what_is_wrong_with_an_input_is_named(changes, field):
    with pytest.raises(TensorInvalid) as caught:
        read(one(X, **changes))
    assert list(caught.value.fields) == [field]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"outputs": [{"name": "q"}]}, "outputs[0].name"),
        ({"outputs": [{"name": "y"}, {"name": "y"}]}, "outputs[1].name"),
        ({"outputs": {"name": "y"}}, "outputs"),
        ({"parameters": []}, "parameters"),
        ({"parameters": {"deadline_ms": -1}}, "parameters.deadline_ms"),
        ({"parameters": {"deadline_ms": "soon"}}, "parameters.deadline_ms"),
        ({"parameters": {"binary_data_output": 1}}, "parameters.binary_data_output"),
        ({"id": 7}, "id"),
    ],
)
def test_what_is_wrong_beside_the_inputs_is_named(more, field):
    with pytest.raises(TensorInvalid) as caught:
        read(one(X), **more)
    assert list(caught.value.fields) == [field]


def test_bodies_that_are_none_are_refused():
    for body, length in (
        (b"", None),
        (b"[]", None),
        (b"{", None),
        (b"[" * 100_000, None),
        (b'{"inputs": NaN}', None),
        (b"{}", 9),
        (b"{}", 0),
        (b"\xff\xfe", None),
    ):
        with pytest.raises(TensorInvalid):
            read_request(body, length, (X,), ())
    with pytest.raises(TensorInvalid, match="missing"):
        read(one(X), infos=(X, WORDS))
    with pytest.raises(TensorInvalid, match="belong to no input"):
        head = json.dumps({"inputs": [one(X)]}).encode()
        read_request(head + b"rest", len(head), (X,), ())
    assert deadline_of(None, "d") is None
    assert deadline_of("12.5", "d") == 12.5


def test_an_answer_says_nan_as_null_in_json_and_as_it_is_in_the_binary_form():
    value = np.array([1.0, np.nan, np.inf], dtype=np.float32)
    asked = InferenceRequest(inputs={}, outputs=("y",))
    body, length = write_answer("m", asked, {"y": value}, {})
    assert length is None
    assert json.loads(body)["outputs"][0]["data"] == [1.0, None, None]
    asked.binary = frozenset({"y"})
    body, length = write_answer("m", asked, {"y": value}, {})
    assert np.array_equal(np.frombuffer(body[length:], "<f4"), value, equal_nan=True)


# --- the tunnel's frames ------------------------------------------------------------

CALL = "a" * 32


def test_a_frame_comes_back_as_it_was_and_broken_ones_do_not():
    head, body = unpack(pack({"kind": "answer", "call": CALL}, b"\0rest"))
    assert (head["call"], body) == (CALL, b"\0rest")
    for broken in (
        b"",
        b"\0\0",
        b"\xff\xff\xff\xff{}",
        pack({"kind": 1, "call": CALL}),
        pack({"kind": "answer", "call": "../x"}),
        b"\0\0\0\2[]",
        b"\0\0\0\1{",
    ):
        with pytest.raises(FrameInvalid):
            unpack(broken)


def test_an_answer_carries_no_redirect_no_cookie_and_no_header_of_its_own():
    said = {
        "content-type": "text/html",
        "set-cookie": "sessionid=x",
        "location": "//evil",
        "retry-after": "1\r\nX: y",
        "inference-header-content-length": "12",
        "x-served-ms": "1.250",
        "access-control-allow-origin": "*",
    }
    answer = checked_answer({"status": 200, "headers": said}, b"<script>")
    assert answer.headers == {
        "content-type": "application/octet-stream",
        "inference-header-content-length": "12",
        "x-served-ms": "1.250",
    }
    for status in (301, 302, 307, 101, 99, 600, "200", None, True):
        with pytest.raises(FrameInvalid):
            checked_answer({"status": status, "headers": {}}, b"")


@pytest.mark.parametrize(
    "path",
    [
        "v2/../stats",
        "v2/repository/models/m/load",
        "v2/repository/index/x",
        "v2/models/../x",
        "stats",
        "",
        "v2/models/m/infer/x",
        "v2/models//infer",
        "v2/models/m/versions/2/infer",
        "v2/models/" + "m" * 64,
        "v2/health/other",
        "//v2",
        "v2/models/a b/infer",
        "v2/models/m\n/infer",
        "v2/models/m/infer\r\nX: y",
        "v2/models/.m/infer",
    ],
)
def test_only_the_protocols_own_addresses_reach_a_node(path):
    assert allowed_path(path) is None


def test_a_call_is_read_with_its_four_headers_only():
    head = {
        "kind": "call",
        "call": CALL,
        "job": 1,
        "attempt": 1,
        "method": "POST",
        "path": "/v2",
        "within_seconds": 1,
        "expires_at": 0,
        "headers": {"content-type": "application/json", "cookie": "x", "te": "y"},
    }
    assert checked_call(head, b"").headers == {"content-type": "application/json"}
    for wrong in (
        {"method": "CONNECT"},
        {"path": "http://evil/"},
        {"within_seconds": 0},
        {"job": "x"},
        {"headers": {"x-way-ms": "1\r\nA: b"}},
        {"headers": None},
    ):
        with pytest.raises(FrameInvalid):
            checked_call({**head, **wrong}, b"")
