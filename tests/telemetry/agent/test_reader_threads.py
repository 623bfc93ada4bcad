"""Reading Gpus of which any may never answer."""

import threading
import time

import pytest

from telemetry.agent.reader_threads import Lanes
from telemetry.protocol.sample import GpuAnswer, GpuReading

pytestmark = pytest.mark.pure

EIGHT = [f"GPU-{n}" for n in range(8)]


class Cards:
    """Gpus of which some hang until they are let go."""

    def __init__(self) -> None:
        self.hanging: dict[str, threading.Event] = {}
        self.slow: dict[str, float] = {}
        self.read_count = self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()

    def hang(self, uuid: str) -> None:
        self.hanging[uuid] = threading.Event()

    def let_go(self, uuid: str) -> None:
        self.hanging.pop(uuid).set()

    def read(self, uuid: str) -> GpuReading:
        with self.lock:
            self.read_count += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        if uuid in self.hanging:
            self.hanging[uuid].wait(60)
        time.sleep(self.slow.get(uuid, 0.0))
        with self.lock:
            self.at_once -= 1
        return GpuReading(uuid=uuid, util_pct=50)


@pytest.fixture
def cards():
    cards = Cards()
    yield cards
    for uuid in list(cards.hanging):
        cards.let_go(uuid)


def states(found: dict[str, GpuReading]) -> dict[str, str]:
    return {uuid: reading.state.value for uuid, reading in found.items()}


def test_all_gpus_are_read_in_their_order(cards) -> None:
    lanes = Lanes(cards.read)
    for _ in range(3):
        found = lanes.read(EIGHT, within_seconds=60)
        assert list(found) == EIGHT
        assert set(states(found).values()) == {"ok"}
    assert cards.read_count == 24
    assert not lanes.stuck


def test_one_hung_gpu_never_stops_the_others(cards) -> None:
    lanes = Lanes(cards.read, hung_seconds=0.6)
    cards.hang("GPU-3")
    others = set(EIGHT) - {"GPU-3"}
    first = lanes.read(EIGHT, within_seconds=20)
    assert set(first) - {"GPU-3"} == others
    time.sleep(0.3)
    started = time.monotonic()
    for _ in range(5):
        found = lanes.read(EIGHT, within_seconds=60)
        assert found["GPU-3"].state is GpuAnswer.HUNG
        assert {uuid for uuid, x in found.items() if x.answers} == others
    assert time.monotonic() - started < 60, "to wait for it once would take as long"
    assert lanes.stuck
    assert lanes.hung() == {"GPU-3"}


def test_a_hung_gpu_that_comes_back_is_read_again(cards) -> None:
    lanes = Lanes(cards.read, hung_seconds=0.3)
    cards.hang("GPU-3")
    lanes.read(EIGHT, within_seconds=0.5)
    assert lanes.read(EIGHT, within_seconds=0.5)["GPU-3"].state is GpuAnswer.HUNG
    cards.let_go("GPU-3")
    deadline = time.monotonic() + 60
    while set(states(lanes.read(EIGHT, within_seconds=0.5)).values()) != {"ok"}:
        assert time.monotonic() < deadline
    assert not lanes.stuck


def test_when_all_gpus_hang_each_costs_one_thread_and_no_more(cards) -> None:
    # Earlier tests' threads may be there still.
    before = set(threading.enumerate())
    lanes = Lanes(cards.read, hung_seconds=0.4)
    for uuid in EIGHT:
        cards.hang(uuid)
    deadline = time.monotonic() + 60
    while states(lanes.read(EIGHT, within_seconds=0.5)) != dict.fromkeys(EIGHT, "hung"):
        assert time.monotonic() < deadline
    for _ in range(5):
        assert len(lanes.read(EIGHT, within_seconds=0.1)) == 8
    assert cards.read_count == 8
    mine = [t for t in set(threading.enumerate()) - before if t.name == "lane"]
    assert len(mine) <= 8 + 1


def test_a_gpu_that_is_merely_late_is_left_out_and_told_the_next_time(cards) -> None:
    lanes = Lanes(cards.read, hung_seconds=60.0)
    cards.hang("GPU-5")
    first = lanes.read(EIGHT, within_seconds=2)
    assert "GPU-5" not in first
    assert len(first) == 7
    cards.let_go("GPU-5")
    deadline = time.monotonic() + 60
    while not (later := lanes.read(["GPU-5"], within_seconds=0.4)):
        assert time.monotonic() < deadline
    assert later["GPU-5"].state is GpuAnswer.OK
    assert cards.read_count == 8, "that one reading, and no second"


def test_a_late_reading_is_used_however_soon_its_gpu_is_asked_for_again() -> None:
    for _ in range(100):
        cards = Cards()
        lanes = Lanes(cards.read, hung_seconds=60.0)
        cards.hang("GPU-5")
        assert lanes.read(["GPU-5"], within_seconds=0.01) == {}
        # It answers while the next Sample is being taken.
        threading.Timer(0.002, cards.let_go, ["GPU-5"]).start()
        while not lanes.read(["GPU-5"], within_seconds=20):
            pass
        lanes.close()
        assert cards.read_count == 1


def test_a_probe_that_raises_costs_its_own_gpu_only(capfd) -> None:
    def read(uuid: str) -> GpuReading:
        if uuid == "GPU-1":
            raise RuntimeError("a bug")
        return GpuReading(uuid=uuid)

    lanes = Lanes(read)
    for _ in range(2):
        found = lanes.read(EIGHT[:3], within_seconds=60)
        assert states(found) == {"GPU-0": "ok", "GPU-1": "error", "GPU-2": "ok"}
    assert "a bug" in capfd.readouterr().err


def test_sixty_four_gpus_are_read_by_a_few_threads_side_by_side(cards) -> None:
    many = [f"GPU-{n}" for n in range(64)]
    cards.slow = dict.fromkeys(many, 0.02)  # a real driver takes 8 ms
    lanes = Lanes(cards.read)
    assert len(lanes.read(many, within_seconds=60)) == 64
    assert cards.most_at_once == 8


def test_closed_lanes_leave_no_thread_behind(cards) -> None:
    before = set(threading.enumerate())
    lanes = Lanes(cards.read)
    lanes.read(EIGHT, within_seconds=60)
    assert set(threading.enumerate()) - before
    lanes.close()
    deadline = time.monotonic() + 60
    while set(threading.enumerate()) - before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
