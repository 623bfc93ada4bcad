"""The sampling child over the real pynvml, with drivers that misbehave."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from telemetry.agent import sampling_loop
from telemetry.agent.sampler import EXIT_RESTART
from telemetry.agent.sampling_loop import RestartNeeded, Sampler
from telemetry.agent.stream_sender import Sender
from telemetry.protocol.hardware import Backend, NodeInfo
from telemetry.protocol.sample import GpuReading, NodeSample, XidEvent, read_message
from tests.telemetry.agent.children import (
    NODE,
    PATIENCE_SECONDS,
    samples,
    simulated,
    stream,
    troubles,
    wait_for,
)

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
    wait_for(lambda: _states(redis_client) == ["ok", "ok", "hung", "ok"])
    # No sample was missing for the healthy ones but while the hang was found out.
    seen = samples(redis_client)
    assert [s.seq for s in seen] == list(range(1, len(seen) + 1))
    assert all(len(s.gpus) >= 3 for s in seen)


def test_a_driver_that_hides_processes_is_told(start, make_sim, redis_client) -> None:
    sim = make_sim(2)
    child = start("--backend", "nvml", env=sim.env())
    child.beat_until(lambda beat: beat["state"] == "ok")
    sim.set("gpu 1", fail__procs="NO_PERMISSION")
    wait_for(lambda: _told(redis_client, "no_rights"))
    why = "the driver does not let it see the processes on GPU 1"
    assert troubles(redis_client)[-1] == ("no_rights", why)
    sim.unset("gpu 1", "fail.procs")
    wait_for(lambda: troubles(redis_client)[-1] == ("ok", ""))


def test_it_leaves_at_once_although_a_gpu_hangs(start, make_sim) -> None:
    sim = make_sim(2)
    child = start("--backend", "nvml", env=sim.env())
    child.beat_until(lambda beat: beat["state"] == "ok")
    sim.set("gpu 0", delay__util="forever")
    child.beat_until(lambda beat: beat["state"] == "hung")
    child.process.terminate()
    assert child.process.wait(PATIENCE_SECONDS) == 0


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
    child.beat_until(lambda beat: beat["state"] == "ok")
    last = wait_for(lambda: _newest_good(redis_client))
    assert len(last.gpus) == 2
    wait_for(lambda: troubles(redis_client)[-1] == ("ok", ""))


def _states(client: redis.Redis) -> list[str]:
    """Return the Gpus' states in the newest Sample."""
    return [gpu.state.value for gpu in samples(client)[-1].gpus]


def _told(client: redis.Redis, state: str) -> tuple[str, str] | None:
    return next((x for x in troubles(client) if x[0] == state), None)


def _newest_good(client: redis.Redis) -> NodeSample | None:
    last = samples(client)[-1]
    return last if all(gpu.answers for gpu in last.gpus) else None


@pytest.mark.parametrize("stale_error", ["UNINITIALIZED", "UNKNOWN"])
def test_a_reload_with_a_thread_stuck_in_it_asks_for_a_new_process(
    start, make_sim, stale_error
) -> None:
    sim = make_sim(2)
    child = start("--backend", "nvml", env=sim.env())
    child.beat_until(lambda beat: beat["state"] == "ok")
    sim.set("gpu 0", delay__util="forever")
    child.beat_until(lambda beat: beat["state"] == "hung")
    sim.set("", driver_generation="1", stale_error=stale_error)
    assert child.process.wait(PATIENCE_SECONDS) == EXIT_RESTART
    assert "reloaded while a GPU hung" in child.process.stderr.read()


def test_a_gpu_that_comes_back_while_another_hangs_stops_nothing(
    start, make_sim
) -> None:
    sim = make_sim(3)
    sim.set("", hotplug="yes")
    child = start("--backend", "nvml", env=sim.env())
    child.beat_until(lambda beat: beat["state"] == "ok")
    sim.set("gpu 0", delay__util="forever")
    seq = child.beat_until(lambda beat: beat["state"] == "hung")["seq"]
    sim.set("", gpus="4")  # noticed within ten seconds
    beat = child.beat_until(lambda beat: beat["seq"] >= seq + 12)
    assert (beat["state"], beat["gpus"], len(beat["hung"])) == ("hung", 3, 1)
    assert child.process.poll() is None


class HangingProbe:
    """A probe whose Gpus, or whose start, never answer."""

    backend = Backend.NVML
    stale = urgent = stuck = False
    refused = ""
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

    def answered_at(self, uuid: str) -> float:
        """Never."""
        return float("-inf")

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


def test_a_driver_that_takes_its_time_to_start_is_waited_for(start, make_sim) -> None:
    sim = make_sim(1)
    sim.set("", delay__init="2500ms")
    child = start("--backend", "nvml", env=sim.env())
    beat = child.beat()
    assert (beat["state"], beat["waiting"]) == ("opening", True)
    assert child.beat_until(lambda beat: beat["state"] == "ok")["seq"] == 1


def test_when_every_gpu_hangs_only_a_new_process_can_help(
    hanging, valkey_url, redis_client, monkeypatch
) -> None:
    monkeypatch.setattr(sampling_loop, "ALL_HUNG_SECONDS", 1.0)
    beats: list[dict] = []
    with pytest.raises(RestartNeeded, match="all 2 GPUs hang"):
        sampler_of(lambda: hanging, valkey_url, beats).run()
    assert beats[-1]["hung"] == ["GPU-1", "GPU-2"]
    assert wait_for(lambda: _told(redis_client, "hung"))[1] == "all 2 GPUs hang"
    assert _told(redis_client, "ok") is None


def test_a_driver_whose_start_hangs_is_given_up_and_the_heart_beats_on(
    hanging, valkey_url, monkeypatch
) -> None:
    monkeypatch.setattr(sampling_loop, "OPEN_WITHIN_SECONDS", 2.0)
    beats: list[dict] = []
    with pytest.raises(RestartNeeded, match="driver hangs"):
        sampler_of(hanging.open, valkey_url, beats).run()
    assert len(beats) >= 2
    assert {beat["state"] for beat in beats} == {"opening"}


def test_link_rates_reach_the_stream_while_a_page_of_the_gpu_is_open(
    start, make_sim, redis_client
) -> None:
    sim = make_sim(2, model="a100", pcie_tx="1GiB")
    child = start("--backend", "nvml", env=sim.env())
    child.beat_until(lambda beat: beat["sent"] >= 2)
    first, second = (gpu.uuid for gpu in samples(redis_client)[0].gpus)
    redis_client.set(f"telemetry.watched.{first}", 1, ex=3)
    gpus = wait_for(lambda: _with_rates(redis_client))
    assert gpus[first].pcie_tx_bytes_per_second == 2**30
    assert gpus[second].pcie_tx_bytes_per_second is None
    wait_for(lambda: not redis_client.exists(f"telemetry.watched.{first}"))
    sent = len(samples(redis_client))
    wait_for(lambda: len(samples(redis_client)) >= sent + 3)
    assert samples(redis_client)[-1].gpus[0].pcie_tx_bytes_per_second is None


def _with_rates(client: redis.Redis) -> dict[str, GpuReading] | None:
    gpus = samples(client)[-1].gpus
    told = any(gpu.pcie_tx_bytes_per_second for gpu in gpus)
    return {gpu.uuid: gpu for gpu in gpus} if told else None


def test_an_xid_reaches_the_stream_once(start, make_sim, redis_client) -> None:
    sim = make_sim(2, model="a100")
    child = start("--backend", "nvml", env=sim.env())
    child.beat_until(lambda beat: beat["sent"] >= 2)
    sim.add("gpu 1", "xid", "79")
    sim.set("gpu 1", lost="yes")
    wait_for(lambda: _xids(redis_client))
    seq = samples(redis_client)[-1].seq
    child.beat_until(lambda beat: beat["seq"] >= seq + 2)
    ((gpu, event),) = _xids(redis_client)
    assert (gpu.state.value, event.code) == ("lost", 79)


def _xids(client: redis.Redis) -> list[tuple[GpuReading, Any]]:
    gpus = [gpu for sample in samples(client) for gpu in sample.gpus]
    return [(gpu, event) for gpu in gpus for event in gpu.xids]


class OneXid(HangingProbe):
    """A probe that answers at once and has one event to tell."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go.set()
        self.events = [XidEvent(48, 5.0)]

    def take_xids(self, uuid: str) -> tuple[XidEvent, ...]:
        found, self.events = tuple(self.events), []
        return found

    def close(self) -> None:
        """Nothing is open."""


def test_an_xid_of_a_sample_that_was_not_sent_comes_with_the_next(tmp_path) -> None:
    beats: list[dict] = []
    loop = sampler_of(lambda: OneXid(), f"unix://{tmp_path}/none.sock", beats)
    told: list[tuple] = []
    put = loop._sender.put

    def remember(message: bytes, **more: Any) -> None:
        parsed = read_message(message)
        if isinstance(parsed, NodeSample):
            told.append(tuple(x.code for gpu in parsed.gpus for x in gpu.xids))
        put(message, **more)

    loop._sender.put = remember
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        wait_for(lambda: [codes for codes in told if codes] == [(48,), (48,)])
    finally:
        loop._stop.set()
        thread.join()


def test_without_its_supervisors_pulse_it_sends_nothing_and_then_again(
    start, tmp_path, redis_client
) -> None:
    child = start("--supervised", *simulated(tmp_path), stdin=subprocess.PIPE)
    while child.beat()["sent"] < 2:
        child.process.stdin.write(".")
        child.process.stdin.flush()
    child.beat_until(lambda beat: beat["state"] == "unsupervised")
    sent = len(samples(redis_client))
    for _ in range(2):
        assert child.beat()["state"] == "unsupervised"
    assert len(samples(redis_client)) == sent
    child.process.stdin.write(".")
    child.process.stdin.flush()
    child.beat_until(lambda beat: beat["state"] == "ok")
    wait_for(lambda: len(samples(redis_client)) > sent)


def test_a_driver_that_is_not_there_is_told_to_the_portal(start, redis_client) -> None:
    child = start("--backend", "simulated", "--state-dir", "/nonexistent")
    child.beat_until(lambda beat: beat["state"] == "unavailable")
    state, reason = wait_for(lambda: troubles(redis_client))[0]
    assert state == "no_driver"
    assert "no file" in reason
