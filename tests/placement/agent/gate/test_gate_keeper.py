"""The gate of a node with stand-in devices: commands, grants, processes that stay."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuportal.node_settings import NodeSettings
from placement.agent.gate import gate_keeper
from placement.agent.gate.cgroup_gate import DeviceGate
from placement.agent.gate.gate_keeper import GateKeeper
from placement.agent.gate.gate_self_test import Verdict, try_card
from placement.agent.gate.grant_file import keep_order, read_order
from placement.agent.job_folder import NodeView
from placement.agent.process.device_holders import find_holders, holders_of
from placement.agent.process.enforcement import Enforcer, read_gpus
from placement.protocol.device_grants import (
    GateMode,
    GateOrder,
    GateState,
    HolderGrant,
    parse_gate_fact,
)
from placement.protocol.node_refusals import OrderRefused
from telemetry.agent.simulated_probe import SimulatedProbe
from tests.placement.agent.gate.own_cgroup import (
    CARD,
    CARD_MINOR,
    CONTROL,
    MEMORY_MAJOR,
    OTHER_CARD,
    OTHER_MINOR,
    OTHER_STUDENT,
    STAND_INS,
    STUDENT,
    Student,
    own_cgroup,
)

pytestmark = pytest.mark.pure
UIDS = {"ada": STUDENT, "bob": OTHER_STUDENT}
WITHIN_SECONDS = 60.0


@pytest.fixture(scope="module")
def cgroup() -> Iterator[Path]:
    with own_cgroup() as path:
        yield path


def stand_in_node(folder: Path) -> NodeSettings:
    """Return a simulated node whose two GPUs are /dev/full and /dev/zero."""
    gpus = [
        {
            "uuid": uuid,
            "index": index,
            "name": "NVIDIA A100",
            "gpu_class": "A100",
            "memory_total_bytes": 2**36,
            "device_numbers": [[MEMORY_MAJOR, minor]],
        }
        for index, (uuid, minor) in enumerate(
            {"GPU-full": CARD_MINOR, "GPU-zero": OTHER_MINOR}.items()
        )
    ]
    (folder / "atlas.json").write_text(json.dumps({"gpus": gpus}))
    return NodeSettings(
        name="atlas",
        redis_url="redis://127.0.0.1:1",
        web_url="http://127.0.0.1:1",
        token_file=folder / "token",
        order_key_file=folder / "key",
        node_dir=folder / "node",
        backend="simulated",
        sim_dir=folder,
    )


def roster_of(node: NodeView) -> list[bytes]:
    """Return the roster that the sampling child prints, without a separate process."""
    assert node.sim_dir is not None
    probe = SimulatedProbe(node.sim_dir, node.name)
    try:
        return [probe.open().to_message(at=time.time())]
    finally:
        probe.close()


class GatedNode:
    """A node's gate at the test's control group, with the commands that it gets."""

    def __init__(self, folder: Path, cgroup: Path) -> None:
        self.node = stand_in_node(folder)
        self.cgroup = cgroup
        self.sequence = 0
        self.told: list[dict[str, Any]] = []
        self.start()

    def start(self) -> None:
        """Start the worker's part, as after a restart."""
        self.enforcer = Enforcer(self.node)
        self.keeper = GateKeeper(
            self.node,
            self.enforcer,
            find_cgroup=lambda: self.cgroup,
            uid_of=UIDS.get,
            look=roster_of,
        )

    def order(
        self, mode: GateMode, *grants: tuple[tuple[str, ...], str, float]
    ) -> None:
        """Send a command with grants (users, UUID, seconds from now), and look once."""
        self.sequence += 1
        now = time.time()
        order = GateOrder(
            kind="gate",
            node=self.node.name,
            sequence=self.sequence,
            mode=mode,
            issued_at=now,
            expires_at=now + 60,
            grace_seconds=0.0,
            grants=tuple(
                HolderGrant(users, (uuid,), now + seconds)
                for users, uuid, seconds in grants
            ),
        )
        keep_order(self.node.node_dir, order, order.payload())
        self.look()

    def look(self) -> None:
        self.keeper.step(time.time(), self._tell)

    def _tell(self, fact: dict[str, Any]) -> bool:
        self.told.append(fact)
        return True

    def ordered(self) -> list[Path]:
        """Look once more. Return the gate's commands to end processes."""
        self.look()
        return list(self.enforcer.folder.glob("gate*.json"))

    @property
    def state(self) -> GateState:
        return parse_gate_fact(self.told[-1]).state


@pytest.fixture
def atlas(tmp_path: Path, cgroup: Path) -> Iterator[GatedNode]:
    node = GatedNode(tmp_path, cgroup)
    try:
        yield node
    finally:
        DeviceGate(cgroup).detach()


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, for as long as a loaded machine may need."""
    give_up = time.monotonic() + WITHIN_SECONDS
    while not condition():
        assert time.monotonic() < give_up, "it did not come true"
        time.sleep(0.02)


def test_grants_follow_the_orders(atlas: GatedNode, cgroup: Path) -> None:
    with Student(cgroup) as ada, Student(cgroup, OTHER_STUDENT) as bob:
        assert ada.opens(CARD), "without an order there is no gate"
        atlas.look()
        assert atlas.told == [] and not DeviceGate(cgroup).find()
        atlas.order(GateMode.GATED)
        assert atlas.state is GateState.GATED
        assert not ada.opens(CARD) and ada.opens(CONTROL)
        atlas.order(GateMode.GATED, (("ada",), "GPU-full", 600))
        assert ada.opens(CARD) and not ada.opens(OTHER_CARD) and not bob.opens(CARD)
        # A co-user, and a second reservation: a union.
        both = (("ada", "bob"), "GPU-full", 600.0)
        atlas.order(GateMode.GATED, both, (("ada",), "GPU-zero", 600))
        assert bob.opens(CARD) and ada.opens(OTHER_CARD)
        # The card was swapped.
        atlas.order(GateMode.GATED, (("ada",), "GPU-zero", 600))
        assert not ada.opens(CARD) and not bob.opens(CARD) and ada.opens(OTHER_CARD)
        atlas.order(GateMode.WATCH)
        assert bob.opens(CARD) and atlas.state is GateState.WATCH
        atlas.order(GateMode.OPEN)
        assert atlas.state is GateState.OPEN and not DeviceGate(cgroup).find()


def test_a_restarted_worker_opens_no_gap(atlas: GatedNode, cgroup: Path) -> None:
    atlas.order(GateMode.GATED, (("ada",), "GPU-full", 600))
    with Student(cgroup) as ada:
        atlas.start()
        assert ada.opens(CARD) and not ada.opens(OTHER_CARD)
        atlas.look()
        assert atlas.state is GateState.GATED
        assert ada.opens(CARD) and not ada.opens(OTHER_CARD)


def test_after_a_reboot_the_node_gates_by_itself(
    atlas: GatedNode, cgroup: Path
) -> None:
    """The kernel has forgotten program and grants. The portal may be away."""
    grants = [(("ada",), "GPU-full", 600.0), (("bob",), "GPU-zero", 600.0)]
    atlas.order(GateMode.GATED, *grants)
    DeviceGate(cgroup).detach()
    with Student(cgroup) as ada, Student(cgroup, OTHER_STUDENT) as bob:
        atlas.start()
        atlas.look()
        assert atlas.state is GateState.GATED
        assert ada.opens(CARD) and not ada.opens(OTHER_CARD)
        assert bob.opens(OTHER_CARD) and not bob.opens(CARD)


def test_a_session_or_a_process_from_before_opens_nothing(
    atlas: GatedNode, cgroup: Path, tmp_path: Path
) -> None:
    """A tmux server and a daemon that outlive their logins, as the same user."""
    tmux = shutil.which("tmux")
    assert tmux, "apt-get install tmux"
    tmp_path.chmod(0o711)
    place = tmp_path / "student"
    place.mkdir(mode=0o700)
    os.chown(place, STUDENT, STUDENT)
    begin = (
        'import os, sys, pathlib; pathlib.Path(sys.argv[1], "cgroup.procs").write_text('
        "str(os.getpid())); os.setgroups([]); uid = int(sys.argv[2]); "
        "os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid); "
        "os.execvp(sys.argv[3], sys.argv[3:])"
    )

    def as_student(*words: str) -> None:
        line = [sys.executable, "-I", "-S", "-c", begin, str(cgroup), str(STUDENT)]
        env = {"PATH": os.environ["PATH"], "TERM": "xterm", "HOME": str(place)}
        subprocess.run([*line, *words], cwd=place, env=env, check=True, timeout=60)

    def told(name: str, *, by: str) -> str:
        """Return the words of a try to open the card: from tmux, or by the daemon."""
        line = f"(: > {CARD}) 2>{name}.err && echo yes >{name} || echo no >{name}"
        if by == "tmux":
            as_student(tmux, "-S", "s", "send-keys", "-t", "gp", line, "Enter")
        else:
            (place / "next").write_text(line)
            (place / "next").rename(place / "go")
        until(lambda: (place / name).exists() and (place / name).read_text() != "")
        return (place / name).read_text().strip()

    daemon = "while :; do [ -e go ] && { mv go now; . ./now; }; sleep 0.05; done"
    as_student(tmux, "-S", "s", "-f", "/dev/null", "new", "-d", "-s", "gp", "sh")
    as_student("sh", "-c", f"setsid sh -c '{daemon}' </dev/null >/dev/null 2>&1 &")
    assert told("open-t", by="tmux") == told("open-d", by="daemon") == "yes"
    atlas.order(GateMode.GATED)
    assert told("shut-t", by="tmux") == told("shut-d", by="daemon") == "no"
    assert "Operation not permitted" in (place / "shut-d.err").read_text()
    atlas.order(GateMode.GATED, (("ada",), "GPU-full", 600))
    assert told("held-t", by="tmux") == told("held-d", by="daemon") == "yes"


def test_the_kernel_ends_the_grant_while_the_worker_is_dead(
    atlas: GatedNode, cgroup: Path
) -> None:
    with Student(cgroup) as ada:
        atlas.order(GateMode.GATED, (("ada",), "GPU-full", 600))
        assert ada.opens(CARD)
        atlas.order(GateMode.GATED, (("ada",), "GPU-full", 0.3))
        # Nothing controls the gate from here on.
        until(lambda: not ada.opens(CARD))


def test_a_process_that_holds_the_card_is_ended(atlas: GatedNode, cgroup: Path) -> None:
    """Withdrawn first, then TERM and KILL. Another card's process is left alone."""
    grants = [(("ada",), "GPU-full", 600.0), (("ada",), "GPU-zero", 600.0)]
    atlas.order(GateMode.GATED, *grants)
    with Student(cgroup) as stays, Student(cgroup) as leaves:
        assert leaves.holds(CARD) and stays.holds(OTHER_CARD)
        device = MEMORY_MAJOR << 20 | CARD_MINOR
        assert holders_of(STUDENT, device) == {leaves.process.pid}
        assert find_holders(OTHER_STUDENT, device) == set()
        atlas.order(GateMode.GATED, grants[1])
        assert not stays.opens(CARD)
        until(atlas.ordered)
        files = atlas.ordered()
        assert [json.loads(one.read_text())["device"] for one in files] == [device]
        told: list[dict[str, Any]] = []

        def ended() -> bool:
            atlas.enforcer.step(time.time(), lambda fact: not told.append(fact))
            return leaves.process.poll() is not None

        until(ended)
        assert stays.process.poll() is None and stays.opens(OTHER_CARD)
        until(lambda: not (ended() and list(atlas.enforcer.folder.iterdir())))
        assert told == [], "the web did not order it"
    atlas.look()
    gate = DeviceGate(cgroup)
    gate.attach(STAND_INS, refuse=True)
    assert {grant.device for grant in gate.grants()} == {
        MEMORY_MAJOR << 20 | OTHER_MINOR
    }


def test_an_order_waits_while_nobody_can_tell_who_holds_the_card(
    atlas: GatedNode, cgroup: Path
) -> None:
    def unknown(_uid: int, _device: int) -> set[int]:
        raise TimeoutError("a file server is away")

    atlas.order(GateMode.GATED, (("ada",), "GPU-full", 600))
    with Student(cgroup) as ada:
        assert ada.holds(CARD)
        atlas.order(GateMode.GATED)
        until(atlas.ordered)
        Enforcer(atlas.node, holders=unknown).step(time.time(), lambda _: True)
        (kept,) = atlas.enforcer.folder.glob("gate*.json")
        assert json.loads(kept.read_text())["phase"] == "new"
        atlas.enforcer.withdraw(STUDENT, MEMORY_MAJOR << 20 | CARD_MINOR)


def test_a_process_is_spared_when_its_user_gets_the_card_again(
    atlas: GatedNode, cgroup: Path
) -> None:
    atlas.order(GateMode.GATED, (("ada",), "GPU-full", 600))
    with Student(cgroup) as ada:
        assert ada.holds(CARD)
        atlas.order(GateMode.GATED)
        until(atlas.ordered)
        atlas.order(GateMode.GATED, (("ada",), "GPU-full", 600))
        assert not atlas.ordered()
        atlas.enforcer.step(time.time(), lambda _: True)
        assert ada.opens(CARD)


def test_an_ended_grant_waits_a_moment_for_its_extension(
    atlas: GatedNode, cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_keeper, "SETTLE_NS", 3_600 * 10**9)
    atlas.order(GateMode.GATED, (("ada",), "GPU-full", 0.1))
    with Student(cgroup) as ada:
        until(lambda: not ada.opens(CARD))
        atlas.look()
        assert not atlas.enforcer.folder.exists()
        atlas.order(GateMode.GATED, (("ada",), "GPU-full", 600))
        assert ada.opens(CARD)


def test_no_job_starts_before_the_newest_order_is_carried_out(
    atlas: GatedNode, cgroup: Path
) -> None:
    assert atlas.keeper.follows(), "a node without a gate starts jobs at once"
    atlas.order(GateMode.WATCH)
    assert atlas.keeper.follows()
    atlas.start()
    assert not atlas.keeper.follows()
    atlas.look()
    assert atlas.keeper.follows()
    known = read_order(atlas.node.node_dir)
    assert known is not None
    newer = replace(known, sequence=known.sequence + 1)
    keep_order(atlas.node.node_dir, newer, newer.payload())
    assert not atlas.keeper.follows()


def test_an_order_that_is_not_newer_is_refused(tmp_path: Path, cgroup: Path) -> None:
    atlas = GatedNode(tmp_path, cgroup)
    known = None
    try:
        atlas.order(GateMode.WATCH)
        known = read_order(atlas.node.node_dir)
        assert known is not None
        with pytest.raises(OrderRefused, match="not newer"):
            keep_order(atlas.node.node_dir, known, known.payload())
    finally:
        DeviceGate(cgroup).detach()


def test_unknown_holders_and_would_be_refusals_are_named(
    atlas: GatedNode, cgroup: Path
) -> None:
    atlas.order(GateMode.WATCH, (("eve", "ada"), "GPU-full", 600))
    with Student(cgroup, OTHER_STUDENT) as bob:
        assert bob.opens(CARD) and bob.opens(OTHER_CARD)
    atlas.order(GateMode.GATED, (("eve", "ada"), "GPU-full", 600))
    assert atlas.keeper.fact is not None
    assert atlas.keeper.fact.unknown == ("eve",)
    counts = {one.uid: one.count for one in atlas.keeper.fact.refusals}
    assert counts == {OTHER_STUDENT: 2}, "without the gate's own test"


def test_a_gate_that_lets_everybody_in_is_taken_away(
    atlas: GatedNode, cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program was loaded, but an ordinary user can still open the card."""
    monkeypatch.setattr(
        gate_keeper.DeviceGate,
        "attach",
        _attach_that_refuses_nobody(gate_keeper.DeviceGate.attach),
    )
    atlas.order(GateMode.GATED)
    assert atlas.state is GateState.FAILED
    assert "could open /dev/zero" in atlas.told[-1]["reason"]
    assert not DeviceGate(cgroup).find()


def _attach_that_refuses_nobody(attach: Callable[..., bool]) -> Callable[..., bool]:
    return lambda gate, majors, *, refuse: attach(gate, majors, refuse=False)


def test_the_self_test_opens_a_card_as_an_ordinary_user(
    atlas: GatedNode, cgroup: Path, tmp_path: Path
) -> None:
    assert try_card(CARD, cgroup) == (
        Verdict.OPENED,
        "an ordinary user could open /dev/full",
    )
    verdict, why = try_card(tmp_path / "none", cgroup)
    assert verdict is Verdict.UNKNOWN and "E" in why
    atlas.order(GateMode.GATED)
    assert try_card(CARD, cgroup) == (Verdict.REFUSED, "")


def test_the_self_test_goes_past_the_permissions_of_the_file(
    atlas: GatedNode, cgroup: Path, tmp_path: Path
) -> None:
    """Root's rights, and the real uid of an ordinary user."""
    if os.statvfs(tmp_path).f_flag & os.ST_NODEV:
        pytest.skip("no device files can be opened in the temporary folder")
    atlas.order(GateMode.GATED)
    closed = tmp_path / "card"
    os.mknod(closed, 0o20600, os.makedev(MEMORY_MAJOR, CARD_MINOR))
    assert try_card(closed, cgroup)[0] is Verdict.REFUSED


def test_a_node_without_device_files_is_as_without_a_gate(
    tmp_path: Path, cgroup: Path
) -> None:
    atlas = GatedNode(tmp_path, cgroup)
    script = tmp_path / "atlas.json"
    known = json.loads(script.read_text())
    for gpu in known["gpus"]:
        del gpu["device_numbers"]
    script.write_text(json.dumps(known))
    # As in the worker, the sampling child is queried.
    atlas.keeper = GateKeeper(
        atlas.node, atlas.enforcer, find_cgroup=lambda: cgroup, look=read_gpus
    )
    atlas.order(GateMode.GATED)
    assert atlas.state is GateState.UNAVAILABLE
    assert atlas.told[-1]["reason"] == "the driver tells no device file of any GPU"
    assert not DeviceGate(cgroup).find()
