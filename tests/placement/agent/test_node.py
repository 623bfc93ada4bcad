"""The node's Celery application as a real process, without anything of the web."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from celery import Celery

from placement.agent.job_folder import JobFolder
from placement.planner.launch.recipes import checked_settings
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan as make_plans
from placement.planner.values.gpu_list import offers_from_list
from placement.planner.values.workload import Workload
from placement.protocol import signing
from placement.protocol.commands import OrderKind
from placement.rules.log_text import numbers_of
from telemetry import paths
from tests.placement import nodes
from tests.placement.nodes import make_order, until

CODE = Path(__file__).resolve().parents[3]


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="gpn-"))
    yield path
    nodes.end_all_jobs(path / "node")
    shutil.rmtree(path)


@pytest.fixture
def environment(folder, valkey_url):
    """Return the environment of a node worker: no DATABASE_URL, no SECRET_KEY."""
    settings = nodes.make_settings(folder)
    nodes.write_simulation(settings, ("GPU-node1-0", "GPU-node1-1"))
    return {
        "PATH": os.environ["PATH"],
        "GPUPORTAL_NODE": "node1",
        "GPUPORTAL_NODE_REDIS_URL": valkey_url,
        "GPUPORTAL_WEB_URL": "http://127.0.0.1:1",
        "GPUPORTAL_NODE_TOKEN_FILE": str(settings.token_file),
        "GPUPORTAL_ORDER_KEY_FILE": str(settings.order_key_file),
        "GPUPORTAL_NODE_DIR": str(settings.node_dir),
        "GPUPORTAL_BACKEND": "simulated",
        "GPUPORTAL_SIM_DIR": str(settings.sim_dir),
    }


@pytest.fixture
def worker(environment, folder):
    """Start node workers; they are stopped afterwards."""
    started = []

    def start(**extra):
        diary = (folder / "worker.log").open("ab")
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "gpuportal.node", "worker"),
                *(
                    "-Q",
                    "node.node1",
                    "-n",
                    "node-node1@%h",
                    "-P",
                    "prefork",
                    "-c",
                    "1",
                ),
            ],
            cwd=CODE,
            env={**environment, **extra},
            stdout=diary,
            stderr=diary,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if os.environ.get("GPT_SHOW"):
        print((folder / "worker.log").read_text())


@pytest.fixture
def send(valkey_url):
    """Send a command as the web does."""
    app = Celery("web", broker=paths.celery_url(valkey_url), set_as_current=False)

    def give(order, signature=None):
        payload = order.payload()
        app.send_task(
            "node.order",
            kwargs={
                "payload": payload,
                "signature": signature or signing.sign(payload),
            },
            queue="node.node1",
            ignore_result=True,
        )

    yield give
    app.close()


def facts(client):
    return [json.loads(f[b"m"]) for _, f in client.xrange("facts.node1")]


def events(client):
    return [fact["event"] for fact in facts(client) if fact["kind"] == "job"]


def test_the_node_app_needs_no_django_no_database_and_no_secret(environment):
    code = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 10_000))\n"
        "import gpuportal.node as node\n"
        "loaded = [m for m in sys.modules if m.split('.')[0] in "
        "('django', 'channels', 'ninja', 'sqlite3', 'psycopg')]\n"
        "assert not loaded, loaded\n"
        "conf = node.app.conf\n"
        "assert conf.accept_content == ['json']\n"
        "assert not conf.worker_enable_remote_control\n"
        "assert [q.name for q in conf.task_queues] == ['node.node1']\n"
        "assert conf.result_backend is None\n"
        "print('clean')\n"
    )
    # Even where the shell of the supervisor names Django's settings.
    env = {**environment, "DJANGO_SETTINGS_MODULE": "gpuportal.settings"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CODE, env=env, capture_output=True, text=True
    )
    assert done.stdout == "clean\nTrue\n", done.stderr


def test_without_its_settings_the_node_app_names_the_missing_one(environment):
    del environment["GPUPORTAL_NODE_TOKEN_FILE"]
    done = subprocess.run(
        [sys.executable, "-c", "import gpuportal.node"],
        cwd=CODE,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "GPUPORTAL_NODE_TOKEN_FILE is not set" in done.stderr


def test_order_to_job_to_stop_over_the_broker(worker, send, redis_client, folder):
    worker()
    send(make_order(simulated=True, claim_bytes_per_gpu=2**30, claim_util_pct=80.0))
    until(lambda: "started" in events(redis_client))
    until(lambda: redis_client.xlen("log.node1"))
    send(make_order(kind=OrderKind.STOP, reason="enough"))
    until(lambda: "exited" in events(redis_client))
    exited = next(f for f in facts(redis_client) if f.get("event") == "exited")
    assert (exited["stopped"], exited["reason"], exited["exit_code"]) == (
        True,
        "enough",
        0,
    )
    # The sampler runs beside it and shows the Job's memory.
    until(lambda: redis_client.xlen("raw.node1"))


def pipeline_plan():
    """Return the planner's own Plan of two stages, the node's second Gpu first."""
    rows = [
        {
            "name": "NVIDIA A100 80GB",
            "free_bytes": 80 * 10**9,
            "node": "node1",
            "uuid": f"GPU-node1-{1 - place}",
            "index": place,
        }
        for place in (0, 1)
    ]
    found = make_plans(
        well_known_spec("gpt2"),
        Workload(batch=16),
        offers_from_list(rows),
        limits=PlanLimits(strategies=("pipeline",)),
    )
    return json.loads(json.dumps(found.plans[0].to_json()))


@pytest.mark.timeout(400)  # the launcher imports torch
def test_a_planned_pipeline_trains_on_two_gpus_in_the_plans_order(
    worker, send, redis_client, folder, fork_server
):
    worker()
    plan = pipeline_plan()
    settings = checked_settings(
        "tiny-transformer",
        {
            "steps": 12,
            "layers": 2,
            "hidden": 32,
            "seq": 16,
            "batch": 2,
            "strategy": "pipeline",
        },
    )
    uuids = tuple(shard["gpu_uuid"] for shard in plan["shards"])
    assert uuids == ("GPU-node1-1", "GPU-node1-0")
    send(
        make_order(
            recipe="tiny-transformer",
            settings=settings,
            plan=plan,
            env=fork_server.environ,
            gpu_uuids=uuids,
            gpu_indexes=(1, 0),
            simulated=True,
            claim_bytes_per_gpu=2**30,
            claim_util_pct=80.0,
            deadline_at=time.time() + 300,
        )
    )
    until(lambda: "exited" in events(redis_client), 300)
    job = JobFolder.of(folder / "node" / "jobs", 7, 1)
    log = job.log.read_text()
    assert job.read("status")["exit_code"] == 0, log
    assert json.loads((job.work / "plan.json").read_text()) == plan
    assert "the plan was made for 14 layers; this model has 4" in log
    rows = [row for row in map(numbers_of, log.splitlines()) if row]
    assert (rows[0]["step"], rows[-1]["step"], rows[-1]["steps"]) == (0, 11, 12)
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.1
    assert rows[-1]["step_seconds"] > 0 and rows[-1]["tokens_per_s"] > 0
    assert rows[-1]["state_bytes_0"] > 0 and rows[-1]["state_bytes_1"] > 0
    assert (job.work / "checkpoint" / ".metadata").is_file()
    about = json.loads((job.work / "checkpoint" / "about.json").read_text())
    assert about["step"] == 11


def test_a_forged_order_over_the_broker_is_refused_and_told(worker, send, redis_client):
    worker()
    order = make_order()
    send(order, signature=signing.sign("something else"))
    until(lambda: "refused" in events(redis_client))
    refused = next(f for f in facts(redis_client) if f.get("event") == "refused")
    assert (refused["code"], refused["nonce"]) == ("signature", order.nonce)


def test_a_killed_worker_leaves_the_job_and_finds_it_again(
    worker, send, redis_client, folder
):
    first = worker()
    send(make_order(settings={"seconds": 60, "lines_per_second": 5}))
    until(lambda: "started" in events(redis_client))
    job = JobFolder.of(folder / "node" / "jobs", 7, 1)
    until(lambda: job.read("reported").get("started"))
    leader = job.read("shim")["pgid"]
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    time.sleep(0.5)
    assert Path(f"/proc/{leader}").exists()
    size = job.log_bytes()
    redis_client.delete("facts.node1")
    worker()
    until(
        lambda: any(
            f["kind"] == "jobs"
            and [(r["job"], r["attempt"]) for r in f["running"]] == [(7, 1)]
            for f in facts(redis_client)
        )
    )
    assert job.log_bytes() > size
    assert events(redis_client) == []
    send(make_order(kind=OrderKind.STOP, reason="enough"))
    until(lambda: events(redis_client) == ["exited"])


def test_no_remote_control_no_gossip_and_keys_of_its_own(worker, send, redis_client):
    worker()
    send(make_order(settings={"seconds": 0, "lines_per_second": 1}))
    until(lambda: "exited" in events(redis_client))
    keys = {key.decode() for key in redis_client.keys("*")}
    assert not [key for key in keys if "pidbox" in key or "celeryev" in key], keys
    assert "unacked" not in keys
    allowed = {
        "facts.node1",
        "log.node1",
        "raw.node1",
        "node.node1",
        "unacked.node1",
        "unacked_index.node1",
        "unacked_mutex.node1",
    }
    assert {k for k in keys if not k.startswith("_kombu")} <= allowed
    channels = redis_client.pubsub_channels("*")
    assert not channels, channels


def test_the_worker_refuses_another_queue_than_its_own(environment):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "celery", "-A", "gpuportal.node", "worker"),
            *("-Q", "control", "-P", "solo"),
        ],
        cwd=CODE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "control" in done.stderr + done.stdout


def test_a_broker_user_limited_to_the_nodes_keys_is_enough(
    worker, send, redis_client, valkey_url
):
    redis_client.execute_command(
        "ACL",
        "SETUSER",
        "node1",
        "on",
        ">pw",
        "resetkeys",
        "resetchannels",
        "+@all",
        "-@admin",
        "-@dangerous",
        "+info",
        "~node.node1",
        "~node.node1\x06*",
        "~_kombu.binding.node.node1",
        "~_kombu.binding_permanent.node.node1",
        "~unacked.node1",
        "~unacked_index.node1",
        "~unacked_mutex.node1",
        "~facts.node1",
        "~log.node1",
        "~raw.node1",
    )
    path = valkey_url.removeprefix("unix://").partition("?")[0]
    worker(GPUPORTAL_NODE_REDIS_URL=f"unix://node1:pw@{path}?db=0")
    send(make_order(settings={"seconds": 0, "lines_per_second": 1}))
    until(lambda: "exited" in events(redis_client))
    redis_client.execute_command("ACL", "DELUSER", "node1")
