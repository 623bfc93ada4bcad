"""The selected turns include the fullest of all turns."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.planner.memory.estimate import estimate
from placement.planner.memory.pipeline_schedule import Turn, turns_of
from placement.planner.model.sharding import Sharding
from placement.planner.model.well_known import well_known_spec
from placement.planner.values.workload import Workload

pytestmark = pytest.mark.pure


def every_turn(kept, microbatches, degree, virtual):
    """Walk the interleaved schedule operation by operation."""
    total = virtual * microbatches
    order = [number // degree % virtual for number in range(total)]
    forward, backward = [0] * virtual, [0] * virtual
    todo = iter(order)
    for _ in range(min(kept, total) - 1):
        forward[next(todo)] += 1
    for number in range(total):
        if (piece := next(todo, None)) is not None:
            forward[piece] += 1
        running = virtual - 1 - order[number]
        flights = [f - b for f, b in zip(forward, backward, strict=True)]
        learnt = [count > 0 for count in backward]
        yield Turn(
            running, tuple(flights), tuple(forward), tuple(backward), tuple(learnt)
        )
        backward[running] += 1


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(2, 4), st.integers(1, 5), st.integers(2, 4))
def test_the_fullest_turn_of_all_is_looked_at(data, degree, rounds, virtual):
    microbatches = degree * rounds
    rank = data.draw(st.integers(0, degree - 1))
    warm = 2 * (degree - rank - 1) + (virtual - 1) * degree + 1
    kept = min(warm, virtual * microbatches)
    sizes = st.lists(st.integers(1, 9), min_size=virtual, max_size=virtual)
    activations, passed, own = (data.draw(sizes) for _ in range(3))

    def alive(turn):
        # The kept tensors of a piece include its input.
        whole = own[turn.piece]
        for n in range(virtual):
            whole += turn.flights[n] * (activations[n] + passed[n])
            whole += (turn.outputs[n] + turn.sent[n]) * passed[n]
        return whole

    every = list(every_turn(kept, microbatches, degree, virtual))
    found = turns_of("interleaved", kept, microbatches, degree, virtual, False)

    assert set(found) <= set(every)
    assert max(map(alive, found)) == max(map(alive, every))


def test_receive_buffers_are_of_the_whole_batch_and_megatron_has_none():
    spec = well_known_spec("gpt2")
    workload = Workload(
        batch=16, sequence_length=512, precision="bf16", optimizer_loop="fused"
    )
    between = Sharding(
        strategy="pipeline",
        pipeline_degree=3,
        first_layer=5,
        last_layer=9,
        microbatches=8,
        in_flight=2,
    )
    theirs = replace(between, engine="megatron")
    border = 2 * 512 * 768 * 2

    torch = estimate(spec, workload, between)
    held = torch.components["between_stages"]
    # Gradients' buffers, forward ones that are not in flight, two outputs, a gradient
    # that is sent. The last layer's own peak has one of the buffers.
    assert held in (17 * border, 16 * border)
    assert torch.phase_bytes["optimizer"] == torch.state_bytes + 16 * border
    assert "between_stages" not in estimate(spec, workload, theirs).components
