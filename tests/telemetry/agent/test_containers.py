"""Login slices and containers: from a cgroup's path to the name of an account."""

import json
import pwd
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from telemetry.agent import containers
from telemetry.agent.containers import (
    CgroupPlace,
    ContainerUsers,
    labels_of,
    login_of,
    place_of,
)
from telemetry.agent.process_owners import ProcessOwners
from telemetry.agent.slow_answers import SlowAnswers

pytestmark = pytest.mark.pure

ID = "0123456789abcdef" * 4
OTHER = "f" * 64
DOCKER = f"0::/system.slice/docker-{ID}.scope"


@pytest.fixture
def accounts(monkeypatch) -> None:
    """Alice and Bob have accounts here, and so has the system's `daemon`."""
    uids = {"alice": 1001, "bob": 1002, "daemon": 2, "nobody": 65_534}

    def entry(name: str, uid: int):
        return type("Entry", (), {"pw_name": name, "pw_uid": uid})

    def by_name(name: str):
        if name not in uids:
            raise KeyError(name)
        return entry(name, uids[name])

    def by_uid(uid: int):
        found = [name for name, x in uids.items() if x == uid]
        if not found:
            raise KeyError(uid)
        return entry(found[0], uid)

    monkeypatch.setattr(pwd, "getpwnam", by_name)
    monkeypatch.setattr(pwd, "getpwuid", by_uid)


class Engine:
    """A container engine's socket that answers every request with one reply."""

    def __init__(self, path: Path, reply: bytes, *, pause_seconds: float = 0) -> None:
        self.path = str(path)
        self.asked: list[bytes] = []
        self._reply, self._pause_seconds = reply, pause_seconds
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen()
        self._over = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self.asked.append(connection.recv(4096).split(b"\r\n")[0])
                self._over.wait(self._pause_seconds)
                try:
                    connection.sendall(self._reply)
                except OSError:
                    continue

    def close(self) -> None:
        self._over.set()
        self._socket.close()


def reply(labels: object, status: str = "200 OK") -> bytes:
    body = json.dumps({"Id": ID, "Config": {"Labels": labels}}).encode()
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (
        status.encode(),
        len(body),
        body,
    )


@pytest.fixture
def engine(tmp_path) -> Iterator[Callable[..., Engine]]:
    """Start engines; their sockets end with the test."""
    made: list[Engine] = []

    def make(answer: bytes, **more: float) -> Engine:
        made.append(Engine(tmp_path / f"e{len(made)}.sock", answer, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def user_of(users: ContainerUsers, container: str = ID) -> str | None:
    deadline = time.monotonic() + 60
    while not (answer := users.user(container)).known:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return answer.value


@pytest.mark.parametrize(
    ("cgroup", "place"),
    [
        ("0::/user.slice/user-1001.slice/session-3.scope", CgroupPlace(slice_uid=1001)),
        (
            "0::/user.slice/user-1001.slice/user@1001.service/user.slice/"
            f"libpod-{ID}.scope/container",
            CgroupPlace(slice_uid=1001),
        ),
        (DOCKER, CgroupPlace(container=ID)),
        (f"12:devices:/docker/{ID}\n0::/", CgroupPlace(container=ID)),
        (f"0::/machine.slice/libpod-{ID}.scope", CgroupPlace(container=ID)),
        (f"0::/docker/{OTHER}/docker/{ID}", CgroupPlace(container=ID)),
        (f"0::/kubepods/pod1/cri-containerd-{ID}.scope", CgroupPlace(container=ID)),
        ("0::/user.slice/user-0.slice/session-1.scope", CgroupPlace()),
        ("0::/system.slice/ssh.service", CgroupPlace()),
        ("0::/system.slice/user-1001.slice", CgroupPlace()),
        (f"0::/system.slice/x{ID}", CgroupPlace()),
        (f"0::/system.slice/{ID[:60]}", CgroupPlace()),
        ("nonsense\n\n:", CgroupPlace()),
        ("", CgroupPlace()),
    ],
)
def test_a_cgroup_tells_the_login_or_the_container(
    cgroup: str, place: CgroupPlace
) -> None:
    assert place_of(cgroup) == place


@pytest.mark.parametrize(
    "name",
    ["daemon", "nobody", "mallory", "", "a\nb", "x" * 65, "a\0b", None, 7, ["alice"]],
)
def test_only_an_account_of_a_person_counts_as_a_label(accounts, name) -> None:
    assert login_of(name) is None


def test_the_label_of_a_container_names_its_owner(accounts, engine) -> None:
    docker = engine(reply({"gpuportal.user": "alice", "other": "bob"}))
    users = ContainerUsers(sockets=[docker.path])
    assert user_of(users) == "alice"
    assert user_of(users) == "alice"
    assert docker.asked == [f"GET /containers/{ID}/json HTTP/1.1".encode()]


def test_podman_is_asked_where_docker_does_not_know_it(accounts, engine) -> None:
    docker = engine(reply(None, "404 Not Found"))
    podman = engine(reply({"gpuportal.user": "bob"}))
    assert user_of(ContainerUsers(sockets=[docker.path, podman.path])) == "bob"


def test_a_site_may_have_a_label_of_its_own(accounts, engine, monkeypatch) -> None:
    monkeypatch.setenv("GPUPORTAL_OWNER_LABELS", "lab.owner, gpuportal.user")
    docker = engine(reply({"lab.owner": "bob", "gpuportal.user": "alice"}))
    assert user_of(ContainerUsers(sockets=[docker.path])) == "bob"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"not HTTP at all",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 90_000,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2_000_000,
        reply("alice"),
        reply({"gpuportal.user": {"alice": 1}}),
        reply({"gpuportal.user": "root"}),
        reply(None),
    ],
)
def test_an_engine_that_talks_nonsense_names_nobody(accounts, engine, answer) -> None:
    assert user_of(ContainerUsers(sockets=[engine(answer).path])) is None


def test_an_engine_that_hangs_costs_no_sample_more_than_a_moment(
    accounts, engine, monkeypatch
) -> None:
    monkeypatch.setattr(containers, "ASK_WITHIN_SECONDS", 0.4)
    slow = engine(reply({"gpuportal.user": "alice"}), pause_seconds=30)
    users = ContainerUsers(sockets=[slow.path])
    started = time.monotonic()
    for number in range(100):
        assert not users.user(f"{number:064x}").known
    assert time.monotonic() - started < 20, "to wait for each would take 40 s"
    assert user_of(users, f"{0:064x}") is None


def test_an_engine_that_was_away_is_asked_again_later(
    accounts, engine, tmp_path
) -> None:
    now = [0.0]
    docker = engine(reply({"gpuportal.user": "alice"}))
    real, link = docker.path, tmp_path / "docker.sock"
    users = ContainerUsers(sockets=[str(link)], clock=lambda: now[0])
    assert user_of(users) is None
    link.symlink_to(real)
    assert user_of(users) is None
    now[0] = containers.ASK_AGAIN_SECONDS + 1
    assert user_of(users) == "alice"


def test_a_missing_engine_has_no_labels(tmp_path) -> None:
    assert labels_of(ID, str(tmp_path / "nothing.sock")) is None


def draw(proc: Path, cgroup: str, uid: int = 0, pid: int = 77) -> None:
    """A process in a drawn /proc."""
    (proc / "stat").write_text("cpu 1\nbtime 1700000000\n")
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    values = ["S", "1", "77", "77", *["0"] * 15, "500", "0"]
    (folder / "stat").write_text(f"{pid} (train) {' '.join(values)}\n")
    (folder / "status").write_text(f"Name:\ttrain\nUid:\t{uid}\t0\t0\t0\n")
    (folder / "cmdline").write_text("/bin/train\0")
    (folder / "cgroup").write_text(cgroup + "\n")


@pytest.mark.parametrize(
    ("cgroup", "uid", "user"),
    [
        ("0::/user.slice/user-1001.slice/session-3.scope", 0, "alice"),
        ("0::/user.slice/user-1001.slice/session-3.scope", 1002, "alice"),
        ("0::/system.slice/cron.service", 1002, "bob"),
        (DOCKER, 0, "bob"),
        (f"0::/docker/{OTHER}", 1001, None),
    ],
)
def test_an_owner_is_the_slice_then_the_label_then_the_uid(
    tmp_path, accounts, engine, monkeypatch, cgroup, uid, user
) -> None:
    docker = engine(reply({"gpuportal.user": "bob"}))
    real = labels_of
    monkeypatch.setattr(
        containers, "labels_of", lambda c, path: real(c, path) if c == ID else {}
    )
    monkeypatch.setenv("GPUPORTAL_CONTAINER_SOCKETS", docker.path)
    draw(tmp_path, cgroup, uid)
    book = ProcessOwners(proc=tmp_path)
    deadline = time.monotonic() + 60
    while (owner := book.owner(77)).user != user:
        assert time.monotonic() < deadline
    assert (owner.uid, owner.user, owner.command) == (uid, user, "train")


def test_a_node_in_a_container_goes_by_uid_within_it(
    tmp_path, accounts, monkeypatch
) -> None:
    monkeypatch.setattr("telemetry.agent.process_owners.os.getpid", lambda: 78)
    draw(tmp_path, f"0::/docker/{ID}", pid=78)
    draw(tmp_path, f"0::/docker/{ID}", 1002)
    assert ProcessOwners(proc=tmp_path).owner(77).user == "bob"


def test_an_answer_that_fails_is_no_answer_and_the_next_is_one(capfd) -> None:
    def ask(key: str) -> str:
        if key == "bad":
            raise RuntimeError("a bug")
        return key.upper()

    answers = SlowAnswers[str](ask, name="test", wait_seconds=60.0)
    assert answers.get("bad") == (True, None)
    assert answers.get("good") == (True, "GOOD")
    assert "a bug" in capfd.readouterr().err
