"""A portal, a node's tunnel and the server of a job that serves, each in a process.

For `bench/tunnel/served_load.py`. The web process is that of production, and the job's
server is the program that the shim starts, on the socket that the shim opens. An ONNX
model takes its whole way: the portal stores the upload, the node downloads it, and the
server loads it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.rig.cluster import ROOT, process, valkey
from placement.agent.process.program_lookup import SYSTEM_PATH

if TYPE_CHECKING:
    from placement.models import Job

READY_SECONDS = 120.0
NODE = "node1"
MODEL = "net"
LANGUAGE_MODEL = "tiny-llama"
ROOM_BYTES = 2**30
SERVER = ("-m", "placement.agent.serving.server")
HOST = ("-m", "placement.agent.serving.language_model_host")
AS_DESCRIPTOR_3 = ("bash", "-c", 'fd=$1; shift; exec "$@" 3<&"$fd"', "bash")
"""Starts a program with a descriptor as its descriptor 3, as a shim does."""


@dataclass(frozen=True)
class ServedSite:
    """Addresses and processes of the site."""

    port: int
    token: str
    session: str
    """The key of a signed-in session, for pages."""
    job: int
    socket: Path
    """Of the job's server."""
    pids: Mapping[str, int]
    """Name of each process -> its number."""


@contextmanager
def served_site(
    var: Path, *, model: bytes | None, most_batch: int = 1
) -> Iterator[ServedSite]:
    """Start everything on the loopback address.

    Args:
        var: an empty folder for which Django is set up.
        model: the ONNX model that is served. None: a tiny language model.
        most_batch: rows of one run.
    """
    import redis
    from django.conf import settings
    from django.core.management import call_command

    from placement.agent.job_folder import JobFolder
    from placement.agent.process import serving_socket
    from telemetry import paths
    from tests.factories import make_node
    from tests.placement.nodes import make_order

    with ExitStack() as stack:
        stack.enter_context(valkey(paths.embedded_socket()))
        call_command("migrate", verbosity=0, interactive=False)
        row = make_node(NODE)
        node_token = row.new_token()
        row.save()
        job, token, session = _made_job(model, most_batch)
        place = var / "node" / "node" / "jobs" / f"{job.pk}-{job.attempt}-{job.key}"
        (place / "models").mkdir(parents=True)
        folder = JobFolder.at(place)
        order = make_order(job=job.pk, attempt=1, key=job.key)
        folder.write("order", {"payload": order.payload()})
        folder.write("status", {"event": "started"})
        name = serving_socket.TEXT if model is None else serving_socket.SERVE
        words = _text_words(var) if model is None else _serve_words()
        with serving_socket.listen(folder, name) as listener:
            server = stack.enter_context(_on_descriptor_3(listener, words, var))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            fd = listener.fileno()
            web_words = ("-m", "gpuportal.supervisor.web_process", "--fd", str(fd))
            web = stack.enter_context(process(*web_words, pass_fds=[fd]))
        url = f"http://127.0.0.1:{port}"
        rig = ("-m", "bench.rig.tunnel_node", str(var), url, node_token, "0")
        node = stack.enter_context(process(*rig))
        broker = redis.Redis.from_url(settings.REDIS_URL)
        pids = {
            "web": web.pid,
            "node": node.pid,
            "server": server.pid,
            "broker": int(broker.info("server")["process_id"]),
        }
        yield ServedSite(
            port, token, session, job.pk, serving_socket.path_of(folder, name), pids
        )


def _made_job(model: bytes | None, most_batch: int) -> tuple[Job, str, str]:
    """Make a running job that serves. Return it, a token and a session's key."""
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.sessions.backends.db import SessionStore
    from django.core.files.uploadedfile import SimpleUploadedFile
    from django.utils import timezone

    from placement.models import Endpoint, Job, LanguageModelEndpoint, ServedModel
    from placement.serving.model_store import store_file
    from reservations.accounts.api_tokens import create_token
    from reservations.models import User
    from reservations.rules.lifecycle import State
    from telemetry.models import Node
    from tests.factories import make_gpus, make_membership, make_reservation

    now = timezone.now()
    user = User.objects.create_user("bench")
    make_membership(user, "bench")
    node = Node.objects.get(name=NODE)
    gpus = make_gpus(1, node)
    kind = Job.Kind.TEXT if model is None else Job.Kind.SERVE
    job = Job.objects.create(
        reservation=make_reservation(user, gpus, state=State.ACTIVE),
        owner=user,
        name="bench",
        kind=kind,
        recipe=str(kind),
        node=node,
        state=Job.State.RUNNING,
        attempt=1,
        started_at=now,
    )
    if model is None:
        LanguageModelEndpoint.objects.create(
            job=job,
            name=LANGUAGE_MODEL,
            gpu_uuids=[gpus[0].uuid],
            weight_bytes=0,
            cache_bytes=0,
            total_bytes=0,
        )
    else:
        upload = SimpleUploadedFile(f"{MODEL}.onnx", model)
        file = store_file(user=user, upload=upload, now=now)
        ServedModel.objects.create(
            endpoint=Endpoint.objects.create(
                job=job, gpu=gpus[0], memory_bytes=ROOM_BYTES
            ),
            file=file,
            name=MODEL,
            added_by=user,
            memory_bytes=2**28,
            most_batch=most_batch,
        )
    shown = create_token(user=user, label="b", scopes=["serve"], days=1, now=now)[1]
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    return job, shown, str(session.session_key)


def _serve_words() -> list[str]:
    settings = {"room_bytes": ROOM_BYTES, "threads": 1}
    return [sys.executable, *SERVER, json.dumps(settings), "{}"]


def _text_words(var: Path) -> list[str]:
    # In another process, because PyTorch would stay in this one.
    folder = var / LANGUAGE_MODEL
    code = (
        "import pathlib, sys\n"
        "from tests.placement.language_models.tiny_models import write_tiny_llama\n"
        "write_tiny_llama(pathlib.Path(sys.argv[1]))\n"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, check=True)
    settings = {
        "of_job": "",
        "model": str(folder),
        "name": LANGUAGE_MODEL,
        "server": "transformers",
        "context_tokens": 128,
        "sequences": 2,
        "precision": "fp32",
    }
    return [sys.executable, *HOST, json.dumps(settings)]


@contextmanager
def _on_descriptor_3(
    listener: socket.socket, words: list[str], var: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the program of a job, which ends with the block."""
    fd = listener.fileno()
    environ = os.environ | {"OMP_NUM_THREADS": "1", "GPUPORTAL_SIMULATED": "1"}
    # PyTorch would wait on all cores. A program of a student gets this one only.
    environ["MKL_NUM_THREADS"] = "1"
    environ["PATH"] = f"{Path(sys.executable).parent}:{SYSTEM_PATH}"
    with (var / "server.log").open("wb") as log:
        child = subprocess.Popen(
            [*AS_DESCRIPTOR_3, str(fd), *words],
            cwd=ROOT,
            env=environ,
            pass_fds=[fd],
            stdout=log,
            stderr=log,
        )
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
