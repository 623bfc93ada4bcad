"""A node checks again before it acts, and never acts on another process."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from placement.agent.command_handler import OrderDesk
from placement.agent.process.enforcement import Enforcer, pids_on
from placement.agent.process.terminals import terminals_of, write_to_user
from placement.protocol import signing
from placement.protocol.node_refusals import FactRefused, OrderRefused
from placement.protocol.process_commands import (
    ProcessOrder,
    ProcessOrderKind,
    ResponseOutcome,
    parse_process_fact,
    parse_process_order,
    terminal_text,
)
from telemetry.agent.process_owners import boot_at
from telemetry.agent.simulated_probe import write_claim
from telemetry.proc_stat import read_stat
from tests.placement.nodes import until
from tests.telemetry.agent.test_simulated_probe import scripted_gpu

IS_ROOT = os.geteuid() == 0
SPARE_UID = 50_001 + os.getpid() % 10_000 if IS_ROOT else os.geteuid()
"""An account that exists on no machine and that no other run of the suite uses. Without
root, only the present user is possible.
"""
TICKS = os.sysconf("SC_CLK_TCK")
ROOT = pytest.mark.skipif(not IS_ROOT, reason="becoming another user needs root")
# A shell, because the tests' Python may be in a folder that other users cannot enter.
SLEEP = "echo ready; exec sleep 600"
STUBBORN = "trap '' TERM; echo ready; exec sleep 600"


@pytest.fixture
def intruder() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start processes of another user; they are gone after the test."""
    made: list[subprocess.Popen[bytes]] = []

    def start(code: str = SLEEP, uid: int = SPARE_UID) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            ["/bin/sh", "-c", code],
            user=uid if IS_ROOT else None,
            stdout=subprocess.PIPE,
            cwd="/",
        )
        made.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        return child

    yield start
    for child in made:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def order_for(pid: int, **changes: object) -> ProcessOrder:
    stat, now = read_stat(pid), time.time()
    known = ProcessOrder(
        kind=ProcessOrderKind.STOP,
        node="node1",
        nonce=os.urandom(8).hex(),
        issued_at=now,
        expires_at=now + 30,
        pid=pid,
        uid=SPARE_UID,
        started_at=boot_at() + (stat.start_ticks if stat else 0) / TICKS,
        gpu_uuid="GPU-0",
        grace_seconds=5.0,
    )
    return replace(known, **changes)


class Told(list):
    def __call__(self, fact: dict) -> bool:
        self.append(fact)
        return True


def enforcer_of(node, pids: set[int], **parts) -> Enforcer:
    return Enforcer(node, look=lambda _node, _uuid: pids, **parts)


def outcome_of(enforcer: Enforcer, order: ProcessOrder, at: float) -> dict:
    told = Told()
    enforcer.accept(order, order.payload())
    enforcer.step(at, told)
    (fact,) = told
    assert not list(enforcer.folder.iterdir())
    return fact


def test_a_process_ends_by_term_and_the_web_hears_of_it(node, intruder):
    child = intruder()
    enforcer, told, now = enforcer_of(node, {child.pid}), Told(), time.time()
    order = order_for(child.pid)
    enforcer.accept(order, order.payload())
    enforcer.step(now, told)
    assert child.wait(60) == -signal.SIGTERM
    enforcer.step(now + 1, told)
    fact = parse_process_fact(told[0])
    assert (fact.nonce, fact.outcome) == (order.nonce, ResponseOutcome.STOPPED)


def test_one_that_ignores_term_is_killed_after_the_grace_by_a_restarted_worker(
    node, intruder
):
    child = intruder(STUBBORN)
    told, now, order = Told(), time.time(), order_for(child.pid)
    first = enforcer_of(node, {child.pid})
    first.accept(order, order.payload())
    first.step(now, told)
    again = enforcer_of(node, {child.pid})
    again.step(now + 4.9, told)
    assert child.poll() is None
    again.step(now + 5.0, told)
    assert child.wait(60) == -signal.SIGKILL
    again.step(now + 6, told)
    assert [fact["outcome"] for fact in told] == ["killed"]


@ROOT
@pytest.mark.parametrize(
    ("changes", "outcome", "words"),
    [
        ({"uid": SPARE_UID + 1}, "refused", "another user"),
        ({"started_at": 1_000.0}, "gone", "another process"),
        ({"gpu_uuid": "GPU-1"}, "gone", "no longer uses"),
        ({"expires_at": 1_000.0}, "refused", "expired"),
    ],
)
def test_where_anything_differs_nothing_is_done(
    node, intruder, changes, outcome, words
):
    child = intruder()
    enforcer = Enforcer(
        node, look=lambda _node, uuid: {child.pid} if uuid == "GPU-0" else set()
    )
    fact = outcome_of(enforcer, order_for(child.pid, **changes), time.time())
    assert (fact["outcome"], words in fact["reason"]) == (outcome, True)
    assert child.poll() is None


@ROOT
def test_root_is_never_touched_whatever_the_order_says(node, intruder):
    child = intruder(uid=0)
    fact = outcome_of(enforcer_of(node, {child.pid}), order_for(child.pid), time.time())
    assert (fact["outcome"], fact["reason"]) == ("refused", "it belongs to root")
    assert child.poll() is None
    for uid in (0, 33, 65_534):
        with pytest.raises(OrderRefused):
            order_for(child.pid, uid=uid)


def test_a_job_of_the_portal_is_none_of_its_business(node, intruder):
    child = intruder()
    stat = read_stat(child.pid)
    folder = node.node_dir / "jobs" / "7-1"
    folder.mkdir(parents=True)
    shim = {"pid": child.pid, "start_ticks": stat.start_ticks}
    (folder / "shim.json").write_text(json.dumps(shim))
    fact = outcome_of(enforcer_of(node, {child.pid}), order_for(child.pid), time.time())
    (folder / "shim.json").unlink()
    assert (fact["outcome"], fact["reason"]) == ("refused", "it is a job of the portal")
    assert child.poll() is None


def test_a_process_that_is_gone_is_told_as_gone(node):
    child = subprocess.Popen([sys.executable, "-c", ""])
    order = order_for(child.pid)
    child.wait()
    assert outcome_of(enforcer_of(node, set()), order, time.time())["outcome"] == "gone"


def test_a_kept_order_of_another_version_does_not_block_the_others(node):
    child = subprocess.Popen([sys.executable, "-c", ""])
    order = order_for(child.pid)
    child.wait()
    enforcer, told = enforcer_of(node, set()), Told()
    other = replace(order, nonce="0" * 16)
    enforcer.accept(other, other.payload().replace('"v":3', '"v":2'))
    enforcer.accept(order, order.payload())
    enforcer.step(time.time(), told)
    assert [fact["nonce"] for fact in told] == [order.nonce]
    assert not list(enforcer.folder.iterdir())


def test_a_driver_that_does_not_answer_is_no_reason_to_act(node):
    # The node of the fixture has no simulated Gpu and no driver.
    child = subprocess.Popen(["/bin/sh", "-c", SLEEP])
    try:
        order = order_for(child.pid)
        enforcer = Enforcer(node)
        enforcer._check_identity = lambda _order: None
        fact = outcome_of(enforcer, order, time.time())
        assert fact["outcome"] == "refused"
        assert "cannot be read" in fact["reason"]
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_the_driver_is_asked_in_a_process_of_its_own(node, intruder):
    child = intruder()
    node.sim_dir.mkdir()
    script = {"epoch": 0, "gpus": [scripted_gpu(0), scripted_gpu(1)], "actors": []}
    (node.sim_dir / "node1.json").write_text(json.dumps(script))
    write_claim(
        node.sim_dir,
        "node1",
        pid=child.pid,
        gpu="GPU-0",
        memory_bytes=2**30,
        util_pct=50,
    )
    assert pids_on(node, "GPU-0") == {child.pid}
    assert pids_on(node, "GPU-1") == set()


@ROOT
def test_a_warning_reaches_the_users_terminals_and_nobody_elses(tmp_path):
    mine, theirs = pty.openpty(), pty.openpty()
    try:
        for (_master, slave), uid in ((mine, SPARE_UID), (theirs, SPARE_UID + 1)):
            os.fchown(slave, uid, -1)
        assert len(list(terminals_of(SPARE_UID))) == 1
        assert write_to_user(SPARE_UID, "End it.\nNow.") == 1
        shown = os.read(mine[0], 1000).replace(b"\r\r", b"\r")
        assert shown == b"\r\nEnd it.\r\nNow.\r\n"
        os.set_blocking(theirs[0], False)
        with pytest.raises(BlockingIOError):
            os.read(theirs[0], 1000)
    finally:
        for handle in (*mine, *theirs):
            os.close(handle)


@ROOT
def test_a_full_or_strange_terminal_is_passed_over(tmp_path):
    (tmp_path / "pts").mkdir()
    (tmp_path / "pts" / "3").write_text("a file")
    (tmp_path / "pts" / "4").symlink_to("/dev/null")
    for name in ("3", "4"):
        os.chown(tmp_path / "pts" / name, SPARE_UID, -1, follow_symlinks=False)
    assert write_to_user(SPARE_UID, "hello", dev=tmp_path) == 0


def test_a_warning_is_written_clean_and_its_outcome_told(node, intruder):
    child, shown = intruder(), []
    enforcer = enforcer_of(
        node,
        {child.pid},
        write=lambda uid, text: shown.append((uid, text)) or 2,
    )
    order = order_for(child.pid, kind=ProcessOrderKind.WARN, text="stop\x1b]0;x\x07 it")
    fact = outcome_of(enforcer, order, time.time())
    assert (fact["outcome"], fact["reason"]) == ("warned", "2 terminals")
    assert shown == [(SPARE_UID, "stop ]0;x  it")]
    assert child.poll() is None


def test_what_a_terminal_is_shown_has_lines_it_can_show():
    text = terminal_text("word " * 200)
    assert max(len(line) for line in text.splitlines()) <= 76
    assert len(text) <= 610


class TestTheDoor:
    def give(self, desk: OrderDesk, order: ProcessOrder, **kwargs: object) -> bool:
        payload = order.payload()
        return desk.take(payload, signing.sign(payload), **kwargs)

    def test_a_signed_order_is_kept_once(self, node):
        told: list[dict] = []
        desk, order = OrderDesk(node, publish=told.append), order_for(os.getpid())
        assert self.give(desk, order)
        assert (node.node_dir / "responses" / f"{order.nonce}.json").exists()
        assert not self.give(desk, order)
        # A replay is not reported, because it must not end the result of the first one.
        assert told == []

    def test_a_forged_and_a_stale_one_leave_nothing(self, node):
        told: list[dict] = []
        desk, order = OrderDesk(node, publish=told.append), order_for(os.getpid())
        signature = signing.sign(order.payload())
        assert not desk.take(replace(order, pid=7).payload(), signature)
        assert told == []
        assert not self.give(desk, order, now=order.expires_at + 1)
        assert [fact["outcome"] for fact in told] == ["refused"]
        assert not (node.node_dir / "responses").exists()

    @pytest.mark.parametrize(
        "change",
        [
            {"pid": 1},
            {"pid": "7"},
            {"uid": 0},
            {"uid": None},
            {"started_at": float("inf")},
            {"text": "\0"},
            {"kind": "kill_all"},
            {"extra": 1},
        ],
    )
    def test_a_malformed_one_is_refused(self, change):
        body = json.loads(order_for(os.getpid()).payload()) | change
        with pytest.raises(OrderRefused):
            parse_process_order(json.dumps(body))

    def test_an_order_is_read_back_as_it_was_written(self):
        order = order_for(os.getpid(), text="End it.")
        assert parse_process_order(order.payload()) == order

    @pytest.mark.parametrize(
        "change",
        [{"v": 2}, {"nonce": "a b"}, {"outcome": "fine"}, {"at": "now"}, {"reason": 7}],
    )
    def test_a_fact_that_is_none_is_refused(self, change):
        good = {
            "v": 1,
            "kind": "response",
            "nonce": "a1",
            "outcome": "gone",
            "at": 1.0,
            "reason": "",
        }
        assert parse_process_fact(good).outcome is ResponseOutcome.GONE
        with pytest.raises(FactRefused):
            parse_process_fact(good | change)


def test_the_thread_works_orders_off_and_tells_again_until_it_is_taken(node):
    import threading

    order, told, stop = (
        order_for(os.getpid(), started_at=1_000.0),
        [],
        threading.Event(),
    )
    enforcer = enforcer_of(node, set())
    enforcer.accept(order, order.payload())
    (enforcer.folder / "broken.json").write_text("{")

    def tell(fact: dict) -> bool:
        told.append(fact)
        return len(told) > 1

    thread = threading.Thread(target=enforcer.run, args=(stop, tell))
    thread.start()
    try:
        until(lambda: len(told) == 2 and not list(enforcer.folder.iterdir()))
    finally:
        stop.set()
        thread.join(60)
    assert told[0] == told[1]
