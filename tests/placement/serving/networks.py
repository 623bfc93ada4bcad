"""Tiny ONNX models made by code, for tests and benchmarks; no Django."""

from typing import Any


def mlp_bytes(
    *, inputs: int = 4, outputs: int = 3, batch: object = "batch", hidden: int = 8
) -> bytes:
    """A tiny network of two layers, made by code; the same for the same sizes."""
    import numpy as np
    from onnx import TensorProto, helper

    noise = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> Any:
        values = noise.standard_normal(shape).astype("float32").ravel().tolist()
        return helper.make_tensor(name, TensorProto.FLOAT, shape, values)

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, inputs])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, outputs])
    steps = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"]),
    ]
    weights = [weight("w1", inputs, hidden), weight("w2", hidden, outputs)]
    graph = helper.make_graph(steps, "mlp", [x], [y], weights)
    sets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=9)
    return bytes(model.SerializeToString())


def expected(data: bytes, rows: Any) -> Any:
    """What the network gives, by ONNX Runtime itself."""
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.asarray(rows, dtype=np.float32)})[0]


def outside_files(data: bytes, location: str = "weights/w.data") -> dict[str, bytes]:
    """The same network with its weights in another file: name -> bytes, model first."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load_from_string(data)
    beside = b""
    for weight in model.graph.initializer:
        raw = numpy_helper.to_array(weight).tobytes()
        weight.ClearField("float_data")
        weight.ClearField("raw_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (
            ("location", location),
            ("offset", str(len(beside))),
            ("length", str(len(raw))),
        ):
            weight.external_data.add(key=key, value=value)
        beside += raw
    return {"net.onnx": model.SerializeToString(), location: beside}
