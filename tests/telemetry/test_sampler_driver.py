"""The sampling child over the real pynvml, with drivers that misbehave."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from telemetry import sampling
from telemetry.domain.hardware import Backend, NodeInfo
from telemetry.domain.sample import GpuReading, NodeSample
from telemetry.sampler import EXIT_RESTART
from telemetry.sampling import Restart, Sampler
from telemetry.sender import Sender
from tests.telemetry.children import NODE, samples, stream, troubles, wait_for

pytestmark = pytest.mark.pure


def test_auto_takes_the_driver_where_there_is_one(
    start, make_sim, redis_client
) -> None:
    sim = make_sim(3, model="a100")
    child = start("--backend", "auto", env=sim.env())
    beat = child.beat_until(lambda beat: beat["state"] == "ok")
    assert (beat["backend"], beat["gpus"]) == ("nvml", 3)
    wait_for(lambda: len(stream(redis_client)) >= 2)
    roster = stream(redis_client)[0]
    assert roster.backend == "nvml"
    assert roster.gpus[0].name == "NVIDIA A100-SXM4-80GB"


def test_one_hung_gpu_is_told_as_hung_and_the_others_go_on(
    start, make_sim, redis_client
) -> None:
    sim = make_sim(4)
    child = start("--backend", "nvml", env=sim.env())
    child.beat_until(lambda beat: beat["state"] == "ok")
    sim.set("gpu 2", delay__util="forever")
    beat = child.beat_until(lambda beat: beat["state"] == "hung")
    assert len(beat["hung"]) == 1
    child.beat_until(lambda later: later["seq"] >= beat["seq"] + 2)
    last = wait_for(lambda: samples(redis_client))[-1]
    assert [gpu.state.value for gpu in last.gpus] == ["ok", "ok", "hung", "ok"]
    # No sample was missing for the healthy ones but while the hang was found out.
    seen = samples(redis_client)
    assert [s.seq for s in seen] == list(range(1, len(seen) + 1))
    assert all(len(s.gpus) >= 3 for s in seen)


def test_it_leaves_at_once_although_a_gpu_hangs(start, make_sim) -> None:
    sim = make_sim(2)
    child = start("--backend", "nvml", env=sim.env())
    child.beat_until(lambda beat: beat["state"] == "ok")
    sim.set("gpu 0", delay__util="forever")
    child.beat_until(lambda beat: beat["state"] == "hung")
    child.process.terminate()
    assert child.process.wait(5) == 0


def test_a_driver_reload_is_survived_without_a_restart(
    start, make_sim, redis_client
) -> None:
    sim = make_sim(2)
    child = start("--backend", "nvml", env=sim.env())
    child.beat_until(lambda beat: beat["state"] == "ok")
    sim.set("", driver="unloaded", driver_generation="1")
    away = child.beat_until(lambda beat: beat["state"] == "unavailable")
    assert "not loaded" in away["why"]
    assert wait_for(lambda: _told(redis_client, "reloading"))[1] == away["why"]
    last = samples(redis_client)[-1]
    assert {gpu.state.value for gpu in last.gpus} == {"error"}
    sim.set("", driver="ok", driver_generation="2")
    child.beat_until(lambda beat: beat["state"] == "ok", seconds=20)
    last = wait_for(lambda: _newest_good(redis_client))
    assert len(last.gpus) == 2
    wait_for(lambda: troubles(redis_client)[-1] == ("ok", ""))


def _told(client: redis.Redis, state: str) -> tuple[str, str] | None:
    return next((x for x in troubles(client) if x[0] == state), None)


def _newest_good(client: redis.Redis) -> NodeSample | None:
    last = samples(client)[-1]
    return last if all(gpu.answers for gpu in last.gpus) else None


def test_a_reload_with_a_thread_stuck_in_it_asks_for_a_new_process(
    start, make_sim
) -> None:
    sim = make_sim(2)
    child = start("--backend", "nvml", env=sim.env())
    child.beat_until(lambda beat: beat["state"] == "ok")
    sim.set("gpu 0", delay__util="forever")
    child.beat_until(lambda beat: beat["state"] == "hung")
    sim.set("", driver_generation="1", stale_error="UNINITIALIZED")
    assert child.process.wait(10) == EXIT_RESTART
    assert "reloaded while a GPU hung" in child.process.stderr.read()


class HangingProbe:
    """A probe whose Gpus, or whose start, never answer."""

    backend = Backend.NVML
    stale = stuck = False
    uuids = ("GPU-1", "GPU-2")
    info = NodeInfo(node=NODE, backend=Backend.NVML, gpus=())

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def begin(self, at: float) -> None:
        """Nothing to prepare."""

    def watch(self, uuids: frozenset[str]) -> None:
        """Nobody does."""

    def take_xids(self, uuid: str) -> tuple:
        """None ever come."""
        return ()

    def read_gpu(self, uuid: str) -> GpuReading:
        self.let_go.wait(60)
        return GpuReading(uuid=uuid)

    def open(self) -> "HangingProbe":
        self.let_go.wait(60)
        return self


@pytest.fixture
def hanging() -> Iterator[HangingProbe]:
    """A probe that hangs until the test is over."""
    probe = HangingProbe()
    yield probe
    probe.let_go.set()


def sampler_of(open_probe: Callable[[], Any], url: str, beats: list[dict]) -> Sampler:
    return Sampler(
        open_probe,
        node=NODE,
        sender=Sender(url, NODE),
        heartbeat=beats.append,
        stop=threading.Event(),
    )


def test_when_every_gpu_hangs_only_a_new_process_can_help(
    hanging, valkey_url, monkeypatch
) -> None:
    monkeypatch.setattr(sampling, "ALL_HUNG_SECONDS", 1.0)
    beats: list[dict] = []
    with pytest.raises(Restart, match="all 2 GPUs hang"):
        sampler_of(lambda: hanging, valkey_url, beats).run()
    assert beats[-1]["hung"] == ["GPU-1", "GPU-2"]


def test_a_driver_whose_start_hangs_is_given_up_and_the_heart_beats_on(
    hanging, valkey_url, monkeypatch
) -> None:
    monkeypatch.setattr(sampling, "OPEN_WITHIN_SECONDS", 2.0)
    beats: list[dict] = []
    with pytest.raises(Restart, match="driver hangs"):
        sampler_of(hanging.open, valkey_url, beats).run()
    assert len(beats) >= 2
    assert {beat["state"] for beat in beats} == {"opening"}
