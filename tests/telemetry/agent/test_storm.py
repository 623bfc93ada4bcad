"""A minute of driver faults over one node: what is well stays well."""

import logging
import time

import pytest

from bench.rig.storm_load import EVERY, Storm, rss_kib
from telemetry.agent.child_supervisor import SamplerSupervisor
from telemetry.protocol.hardware import NodeInfo
from telemetry.protocol.sample import NodeSample, read_message
from tests.telemetry.agent.children import PATIENCE_SECONDS
from tests.telemetry.agent.test_child_supervisor import Facts

pytestmark = pytest.mark.pure

SETTLE_SECONDS = 8.0
MOST_GAP_SECONDS = 2.0
MOST_RECOVERY_SECONDS = 16.0
MOST_LINES_A_MINUTE = 100
MEMORY_RATIO = 1.05


class Reader:
    """Reads the node's stream as the portal does, and tells the storm."""

    def __init__(self, client, storm: Storm) -> None:
        self._client, self._storm = client, storm
        self._last_id = "0"
        self._slots: dict[str, int] = {}
        self._looked_at = time.monotonic()
        self.kept_waiting_seconds = 0.0
        """Longest time this process itself was not let run."""
        self.samples = 0

    def look(self) -> None:
        now = time.monotonic()
        late = now - self._looked_at - 0.2
        self.kept_waiting_seconds = max(self.kept_waiting_seconds, late)
        self._looked_at = now
        answer = self._client.xread({"raw.storm": self._last_id}) or []
        for entry_id, fields in (entry for _, part in answer for entry in part):
            self._last_id = entry_id
            message = read_message(fields[b"m"], node="storm")  # garbage would raise
            if isinstance(message, NodeInfo):
                for gpu in message.gpus:
                    self._slots.setdefault(gpu.uuid, len(self._slots))
            elif isinstance(message, NodeSample):
                self.samples += 1
                for gpu in message.gpus:
                    good = gpu.answers and gpu.util_pct is not None
                    self._storm.healthy.saw(self._slots[gpu.uuid], now, good=good)


def test_a_minute_of_driver_faults_leaves_the_healthy_gpus_alone(
    make_sim, tmp_path, valkey_url, redis_client, monkeypatch, capfd, caplog
) -> None:
    sim = make_sim(8, model="a100")
    for key, value in sim.env().items():
        monkeypatch.setenv(key, value)
    caplog.set_level(logging.INFO)
    storm = Storm(sim.rewrite)
    reader = Reader(redis_client, storm)
    facts = Facts(tmp_path, name="storm", backend="nvml", redis_url=valkey_url)
    supervisor = SamplerSupervisor(facts, back_off_seconds=(0.3, 1.0, 2.0))
    thread = supervisor.start()
    grown: list[tuple[int, int]] = []
    try:
        storm.settle(4.0, reader.look)
        for fault in storm.round(reader.look):
            # From the largest node on: what it needed once is kept for good.
            if fault.name == "64 Gpus" or grown:
                pid = supervisor.status.pid or 0
                grown.append((pid, rss_kib(pid)))
        storm.settle(SETTLE_SECONDS, reader.look)
        storm.wait_until_all_are_well(PATIENCE_SECONDS, reader.look)
        _come_through(storm, reader)
        assert thread.is_alive()
        same = [kib for pid, kib in grown if pid == supervisor.status.pid]
        assert len(same) > 3, "one child through the most of it"
        assert rss_kib(supervisor.status.pid) <= MEMORY_RATIO * max(same[0], 1)
    finally:
        supervisor.stop()
        storm.close()
    said = [*capfd.readouterr().err.splitlines(), *caplog.messages]
    assert len(said) <= MOST_LINES_A_MINUTE, said


def _come_through(storm: Storm, reader: Reader) -> None:
    """Whatever came, the healthy were read, and all are well in the end."""
    healthy = storm.healthy
    late = reader.kept_waiting_seconds
    assert reader.samples > 35
    assert healthy.worst_gap[0] <= MOST_GAP_SECONDS + late, healthy.worst_gap
    most = MOST_RECOVERY_SECONDS + late
    assert healthy.worst_recovery[0] <= most, healthy.worst_recovery
    assert healthy.recovering.keys() & EVERY == set(), "every Gpu is read again"
    newest = max(healthy.seen_at.values())
    assert all(newest - healthy.seen_at[slot] <= 2.0 for slot in EVERY)
