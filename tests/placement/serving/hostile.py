"""ONNX models that a person could send to hold up a server."""

from onnx import TensorProto, helper

ROUND = TensorProto.INT64


def value(name, kind=TensorProto.FLOAT, shape=(1,)):
    return helper.make_tensor_value_info(name, kind, list(shape))


def model_bytes(nodes, inputs, constants):
    graph = helper.make_graph(nodes, "g", inputs, [value("y")], constants)
    sets = [helper.make_opsetid("", 17)]
    return helper.make_model(
        graph, opset_imports=sets, ir_version=9
    ).SerializeToString()


def loop_bytes(*, rounds=None):
    """Adds 1 so often; ``rounds`` None: as often as the input ``n`` says."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["a", "one"], ["b"]),
        ],
        "body",
        [value("i", ROUND, ()), value("go", TensorProto.BOOL, ()), value("a")],
        [value("on", TensorProto.BOOL, ()), value("b")],
        [helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])],
    )
    constants = [helper.make_tensor("true", TensorProto.BOOL, [], [True])]
    inputs = [value("x")]
    if rounds is None:
        inputs.append(value("n", ROUND, ()))
    else:
        constants.append(helper.make_tensor("n", ROUND, [], [rounds]))
    loop = helper.make_node("Loop", ["n", "true", "x"], ["y"], body=body)
    return model_bytes([loop], inputs, constants)


def greedy_bytes(count):
    """Makes so many zeros and sums them: 4 bytes each."""
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
        helper.make_node("ReduceSum", ["zeros"], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    size = helper.make_tensor("size", ROUND, [1], [count])
    return model_bytes(nodes, [value("x")], [size])
