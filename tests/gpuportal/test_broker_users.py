"""The broker's users, as ``deploy/acl.sh`` prints them, on the real servers."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery

from placement.protocol import signing
from tests import brokers
from tests.brokers import Broker
from tests.house.walk import ROOT


@pytest.fixture(scope="module", params=brokers.KINDS)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("acl")
    with brokers.running(request.param, folder, nodes=["atlas"]) as running:
        yield running


def refused(*calls: Callable[[], object]) -> None:
    """Expect that the broker refuses each of these calls."""
    for call in calls:
        with pytest.raises(redis.exceptions.NoPermissionError):
            call()


def test_a_node_may_append_to_its_own_streams_only(broker: Broker):
    node = broker.node("atlas")
    for stream in ("raw.atlas", "facts.atlas", "log.atlas"):
        node.xadd(stream, {"m": "{}"}, maxlen=10, approximate=True)
    refused(
        lambda: node.xadd("raw.borea", {"m": "{}"}),
        lambda: node.xadd("raw.atlas2", {"m": "{}"}),
        lambda: node.xadd("node.atlas", {"m": "{}"}),
        lambda: node.xadd("telemetry.watched.GPU-1", {"m": "{}"}),
        lambda: node.xrange("raw.atlas"),
        lambda: node.xtrim("raw.atlas", maxlen=0),
        lambda: node.lpush("control", "x"),
        lambda: node.lpush("node.borea", "x"),
        lambda: node.brpop("node.atlas-13", 0.1),
        lambda: node.publish("telemetry.frame", b"x"),
        lambda: node.get("telemetry.frame.latest"),
        lambda: node.keys(),
        lambda: node.flushall(),
        lambda: node.client_list(),
        lambda: node.acl_list(),
        lambda: node.info(),
    )


def test_a_node_cannot_change_what_its_streams_are(broker: Broker):
    """Each of these once stopped the telemetry of every other node."""
    node = broker.node("atlas")
    for key in ("raw.atlas", "facts.atlas", "log.atlas", "node.atlas"):
        refused(
            lambda key=key: node.delete(key),
            lambda key=key: node.set(key, "x"),
            lambda key=key: node.hset(key, "x", "y"),
            lambda key=key: node.sadd(key, "x"),
            lambda key=key: node.zadd(key, {"x": 1}),
            lambda key=key: node.lpush(key, "x"),
            lambda key=key: node.rename(key, "raw.other"),
            lambda key=key: node.expire(key, 1),
        )
    refused(lambda: node.hset("unacked.atlas", "x", "y" * 1000))


def test_a_node_cannot_run_a_script(broker: Broker):
    node = broker.node("atlas")
    endless = "while true do end"
    refused(
        lambda: node.eval(endless, 0),
        lambda: node.eval(endless, 1, "raw.atlas"),
        lambda: node.evalsha("0" * 40, 0),
        lambda: node.script_load(endless),
        lambda: node.execute_command("FUNCTION", "LOAD", "x"),
        lambda: node.execute_command("MULTI"),
    )
    assert broker.portal.ping()


def test_a_node_sees_which_pages_are_open_and_opens_none(broker: Broker):
    portal, node = broker.portal, broker.node("atlas")
    portal.set("telemetry.watched.GPU-1", "1", ex=10)
    keys = ["telemetry.watched.GPU-1", "telemetry.watched.GPU-2"]
    assert node.mget(keys) == [b"1", None]
    refused(
        lambda: node.set(keys[1], "1"),
        lambda: node.delete(keys[0]),
        lambda: node.mget(["telemetry.frame.latest"]),
        lambda: node.mget(["raw.atlas"]),
    )


def test_the_admin_changes_users_and_reads_nothing(broker: Broker):
    admin = broker.admin
    line = brokers.acl("--setuser", "node", "borea", password="borea-pw")
    admin.execute_command(*shlex.split(line))
    assert admin.acl_save()
    borea = broker.client("node-borea", "borea-pw")
    borea.xadd("raw.borea", {"m": "{}"})
    refused(lambda: borea.xadd("raw.atlas", {"m": "{}"}))
    assert "user node-borea on " in broker.users_file.read_text()
    refused(
        lambda: admin.get("telemetry.frame.latest"),
        lambda: admin.xrange("raw.borea"),
        lambda: admin.flushall(),
        lambda: admin.config_get("*"),
    )
    # The same user again, with another password: the old one is invalid.
    line = brokers.acl("--setuser", "node", "borea", password="renewed")
    admin.execute_command(*shlex.split(line))
    with pytest.raises(redis.AuthenticationError):
        broker.client("node-borea", "borea-pw").ping()
    assert broker.client("node-borea", "renewed").ping()


def test_the_portal_may_neither_change_users_nor_empty_the_broker(broker: Broker):
    portal = broker.portal
    refused(
        lambda: portal.acl_list(),
        lambda: portal.config_get("*"),
        lambda: portal.flushall(),
        lambda: portal.keys(),
    )


@pytest.mark.parametrize(
    ("arguments", "password", "why"),
    [
        (("node",), "x", "usage"),
        (("node", "at las"), "x", "a node's name"),
        (("node", "-atlas"), "x", "a node's name"),
        (("node", "a" * 64), "x", "63 characters"),
        (("node", "atlas", "secret"), "x", "usage"),
        (("nobody",), "x", "usage"),
        ((), "x", "usage"),
        (("portal",), "", "password is empty"),
    ],
)
def test_the_script_says_what_is_wrong_in_one_line(arguments, password, why):
    done = subprocess.run(
        ["sh", "deploy/acl.sh", *arguments],
        cwd=ROOT,
        input=password + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


# --- a real worker with these rights -------------------------------------------------


def node_environ(broker: Broker, folder: Path) -> dict[str, str]:
    """The environment of the node atlas."""
    (folder / "token").write_text("token")
    (folder / "order_key.pub").write_text(signing.public_key_pem())
    return {
        "PATH": os.environ["PATH"],
        "GPUPORTAL_NODE": "atlas",
        "GPUPORTAL_NODE_REDIS_URL": broker.url("node-atlas", brokers.NODE_PASSWORD),
        "GPUPORTAL_WEB_URL": "http://127.0.0.1:1",
        "GPUPORTAL_NODE_TOKEN_FILE": str(folder / "token"),
        "GPUPORTAL_ORDER_KEY_FILE": str(folder / "order_key.pub"),
        "GPUPORTAL_NODE_DIR": str(folder / "node"),
        "GPUPORTAL_BACKEND": "simulated",
        "GPUPORTAL_SIM_DIR": str(folder / "sim"),
        "GPUPORTAL_SUPERVISOR_PID": str(os.getpid()),
    }


def refusals(broker: Broker) -> int:
    """How many orders the node atlas has refused so far."""
    entries = broker.portal.xrange("facts.atlas")
    facts = [json.loads(fields[b"m"]) for _, fields in entries]
    return sum(fact.get("event") == "refused" for fact in facts if "kind" in fact)


def wait_for_refusals(
    broker: Broker, wanted: int, worker: subprocess.Popen, log: Path
) -> None:
    deadline = time.monotonic() + 60
    while refusals(broker) < wanted:
        assert worker.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def test_a_node_worker_takes_orders_with_the_rights_of_its_user(
    broker: Broker, tmp_path: Path
):
    broker.portal.delete("facts.atlas", "raw.atlas", "log.atlas")
    log = tmp_path / "log"
    with log.open("w") as out:
        worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "gpuportal.node", "worker"),
                *("-Q", "node.atlas", "--pool", "prefork", "-c", "1", "-l", "WARNING"),
            ],
            cwd=ROOT,
            env=node_environ(broker, tmp_path),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        with Celery(broker=broker.portal_url, set_as_current=False) as sender:
            for number in range(1, 4):
                sender.send_task(
                    "node.order",
                    args=[f"[{number}]", "no signature"],
                    queue="node.atlas",
                    ignore_result=True,
                )
                wait_for_refusals(broker, number, worker, log)
        # Its sampling child appends too: here that it has no GPUs to read.
        deadline = time.monotonic() + 30
        while not broker.portal.exists("raw.atlas"):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        worker.terminate()
        assert worker.wait(30) == 0, log.read_text()
        said = log.read_text()
        assert "NOPERM" not in said
        assert "No permission" not in said
        assert "Traceback" not in said
        # It writes no keys of its own on the broker.
        assert not broker.portal.exists("unacked.atlas", "unacked_index.atlas")
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.wait(10)
