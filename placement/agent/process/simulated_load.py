"""Register a Job's load on simulated Gpus with the simulator.

The shim registers the Job's first process before that process runs. The simulator then
reports it as a driver would, so the rules for check-in, intruders and idle Gpus see a
real process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from placement.protocol.commands import Order
from telemetry.agent import simulated_probe


@contextmanager
def claimed(
    order: Order, *, sim_dir: Path | None, pid: int, command: str
) -> Iterator[None]:
    """Claim the order's load on every reserved Gpu.

    Raises:
        telemetry.protocol.errors.CodedError: a Gpu has not enough free memory, or the
            simulator does not run.
    """
    if not order.simulated or order.claim_bytes_per_gpu == 0 or sim_dir is None:
        yield
        return
    simulated_probe.write_claim(
        sim_dir,
        order.node,
        pid=pid,
        gpu=order.gpu_uuids,
        memory_bytes=order.claim_bytes_per_gpu,
        util_pct=order.claim_util_pct,
        user=order.unix_user or order.user or None,
        command=command,
        job=order.job,
    )
    try:
        yield
    finally:
        simulated_probe.drop_claim(sim_dir, order.node, pid=pid)
