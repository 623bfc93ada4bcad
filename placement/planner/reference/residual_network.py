"""The net of the distributed reference cases as layer costs.

Embedding, blocks of LayerNorm, Linear, GELU, Linear and a residual sum, Linear without
bias and a cross entropy: small enough to run with two processes on CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from placement.planner.memory.autograd_replay import LayerReplay, replay
from placement.planner.memory.layer_costs import LayerCost, new_tape
from placement.planner.memory.parameter_states import optimizer_bytes, widths
from placement.planner.memory.tape import Value
from placement.planner.model.spec import LayerSpec, part
from placement.planner.values.workload import Workload

Shapes = Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ResidualNet:
    """The sizes of the net."""

    vocab: int = 4000
    hidden: int = 512
    inner: int = 2048
    blocks: int = 8
    sequence_length: int = 64


def residual_costs(
    net: ResidualNet, workload: Workload, sequences: int
) -> list[LayerCost]:
    """Return layer costs on one rank that runs so many sequences at once."""
    tokens = sequences * net.sequence_length
    block: Shapes = [
        (net.hidden,),
        (net.hidden,),
        (net.inner, net.hidden),
        (net.inner,),
        (net.hidden, net.inner),
        (net.hidden,),
    ]
    table: Shapes = [(net.vocab, net.hidden)]
    costs = [net_cost("embedding", table, _look_up(net, workload, tokens), workload)]
    one = net_cost("block", block, _block(net, workload, tokens), workload)
    last = net_cost("head", table, _head(net, workload, tokens), workload)
    return [*costs, *[one] * net.blocks, last]


def _look_up(net: ResidualNet, workload: Workload, tokens: int) -> LayerReplay:
    tape = new_tape(workload)
    ids = Value(tokens, 8, constant=True, foreign=True)
    grads = tape.grad_width * net.vocab * net.hidden
    out = tape.simple(
        [ids], tokens * net.hidden, tape.residual_width, weight_grad_bytes=grads
    )
    return replay(tape.ops, ids, out, accumulates=workload.accumulation > 1)


def _block(net: ResidualNet, workload: Workload, tokens: int) -> LayerReplay:
    tape = new_tape(workload)
    x = Value(tokens * net.hidden, tape.residual_width)
    read = tape.simple(
        [x],
        x.elements,
        x.width,
        kept=[x],
        kept_bytes=8 * tokens,
        weight_grad_bytes=2 * net.hidden * tape.grad_width,
    )
    up = tape.linear(read, net.hidden, net.inner, bias=True)
    bent = tape.simple([up], up.elements, up.width, kept=[up])
    down = tape.linear(bent, net.inner, net.hidden, bias=True)
    out = tape.add(x, down)
    return replay(tape.ops, x, out, accumulates=workload.accumulation > 1)


def _head(net: ResidualNet, workload: Workload, tokens: int) -> LayerReplay:
    tape = new_tape(workload)
    x = Value(tokens * net.hidden, tape.residual_width)
    logits = tape.linear(x, net.hidden, net.vocab, bias=False)
    held = logits.size_bytes if logits.width != 4.0 else 0.0
    wide = tape.cast(logits, 4.0)
    logs = tape.simple(
        [wide], wide.elements, 4.0, keep_output=True, forward_temp_bytes=held
    )
    loss = tape.simple([logs], 1, 4.0)
    return replay(tape.ops, x, loss, accumulates=workload.accumulation > 1)


def net_cost(
    kind: str, shapes: Shapes, made: LayerReplay, workload: Workload
) -> LayerCost:
    """Return one layer (or a whole plain net) from its tensors and its replay."""
    width = widths(workload)
    tensors = part("other", shapes, element_bytes=4)
    elements = tensors.parameters
    return LayerCost(
        kind=kind,
        elements=elements,
        tied_elements=0,
        largest=tensors.largest,
        parameter_bytes=int(width.parameter * elements),
        gradient_bytes=int(width.gradient * elements),
        optimizer_bytes=optimizer_bytes(LayerSpec(kind, "other", (tensors,)), workload),
        kept_bytes=int(made.kept_bytes),
        forward_peak_bytes=int(made.forward_peak_bytes),
        backward_peak_bytes=int(made.backward_peak_bytes),
        weight_copy_bytes=0,
        output_bytes=int(made.output_bytes),
        cache_bytes=0,
        gathered_bytes=int(width.compute * elements),
        forward_flops=0.0,
        recompute_flops=0.0,
        trained_elements=elements,
        moment_width=width.moment,
    )
