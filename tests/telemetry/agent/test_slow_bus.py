"""A bus on which each call takes a tenth of a second: slow is not hung."""

import time

from telemetry.protocol.hardware import NodeInfo
from telemetry.protocol.sample import GpuAnswer, NodeSample
from tests.telemetry.agent.children import stream, wait_for

GPUS = 16
UP_WITHIN_SECONDS = 20.0
EACH_WITHIN_SECONDS = 10.0


def test_a_slow_bus_comes_up_and_shows_every_gpu(
    start, make_sim, redis_client, tmp_path
):
    sim = make_sim(GPUS)
    for alias in SLOW:
        sim.set(**{f"delay__{alias}": "100ms"})
    trace = tmp_path / "trace"
    start("--backend", "nvml", env={**sim.env(), "NVML_SIM_TRACE": str(trace)})
    # A busy machine may take long to start a process.
    wait_for(trace.exists)
    began = time.time()
    seen: dict[str, list[float]] = {}
    ends_at = time.monotonic() + UP_WITHIN_SECONDS + 2 * EACH_WITHIN_SECONDS
    up = False
    while time.monotonic() < ends_at:
        time.sleep(0.5)
        seen = read(redis_client)
        if not up and len(seen) == GPUS:
            up = True
            ends_at = time.monotonic() + 2 * EACH_WITHIN_SECONDS
    assert up, f"{len(seen)} of {GPUS} GPUs came"
    assert max(times[0] for times in seen.values()) - began < UP_WITHIN_SECONDS
    for uuid, times in seen.items():
        gaps = [b - a for a, b in zip(times, [*times[1:], time.time()], strict=True)]
        assert max(gaps) < EACH_WITHIN_SECONDS, (uuid, gaps)
    told = [x for x in stream(redis_client) if isinstance(x, NodeSample)]
    assert {gpu.state for one in told for gpu in one.gpus} == {GpuAnswer.OK}
    rosters = [x for x in stream(redis_client) if isinstance(x, NodeInfo)]
    # How they are joined follows when the driver has said it of all 120 pairs.
    assert len(rosters[0].gpus) == GPUS
    assert not rosters[0].links_known


def read(client) -> dict[str, list[float]]:
    """When each Gpu had been read and was well, by UUID."""
    found: dict[str, list[float]] = {}
    for one in stream(client):
        for gpu in one.gpus if isinstance(one, NodeSample) else ():
            if gpu.state is GpuAnswer.OK:
                found.setdefault(gpu.uuid, []).append(one.at + one.took_seconds)
    return found


SLOW = (
    "util",
    "mem",
    "temp",
    "power",
    "fan",
    "clocks",
    "throttle",
    "procs",
    "procutil",
    "ecc",
    "pcie",
    "name",
    "uuid",
    "pci",
    "mig",
    "fields",
    "energy",
    "pstate",
    "handle",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetP2PStatus",
    "nvmlDeviceGetNvLinkState",
    "power_limit",
    "serial",
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetDecoderUtilization",
)
