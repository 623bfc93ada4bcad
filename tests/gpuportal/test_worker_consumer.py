"""A worker with unacknowledged messages survives restarts of the broker."""

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from django.conf import settings

from tests import brokers
from tests.house.walk import ROOT

pytestmark = pytest.mark.pure
ANSWER_SECONDS = 60.0
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")


@contextmanager
def broker(kind, port, folder):
    """Run a broker that keeps nothing."""
    server = subprocess.Popen(
        [brokers.binary(kind), "--port", f"{port}", "--save", "", "--dir", folder],
        stdout=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        server.kill()
        server.wait()


def until(come, worker, log):
    deadline = time.monotonic() + ANSWER_SECONDS
    while not come():
        assert worker.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.05)


@pytest.mark.parametrize("kind", brokers.KINDS)
def test_a_worker_with_unacknowledged_tasks_connects_again(kind, tmp_path, monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"redis://127.0.0.1:{port}/0"
    monkeypatch.setenv("BROKER", address)
    monkeypatch.setenv("CONSUMER", settings.CELERY_WORKER_CONSUMER)
    from tests.gpuportal import slow_worker

    def send(seconds, name):
        with slow_worker.app.connection_for_write(address) as connection:
            slow_worker.wait.apply_async(
                (seconds, str(tmp_path / name)), connection=connection
            )

    log = tmp_path / "worker.log"
    with broker(kind, port, tmp_path), log.open("w") as output:
        worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "tests.gpuportal.slow_worker"),
                *("worker", "-c", "1", "-l", "INFO", *QUIET),
            ],
            cwd=ROOT,
            env=os.environ,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            until(lambda: "ready." in log.read_text(), worker, log)
            # One runs, three more were received and wait for it.
            for number in range(4):
                send(3.0, f"{number}")
            until(lambda: log.read_text().count("received") == 4, worker, log)
        except BaseException:
            worker.kill()
            raise
    try:
        # The broker is gone and returns some time later.
        until(lambda: "Cannot connect" in log.read_text(), worker, log)
        with broker(kind, port, tmp_path):
            until(lambda: connects(port), worker, log)
            send(0.0, "after")
            until((tmp_path / "after").exists, worker, log)
    finally:
        worker.kill()
        worker.wait()


def connects(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
