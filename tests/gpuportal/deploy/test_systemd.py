"""A process's notification to systemd when it can work."""

import os
import socket
import subprocess
import sys

import pytest

from gpuportal import systemd
from tests.house.walk import ROOT

pytestmark = pytest.mark.pure


@pytest.fixture(params=["file", "abstract"])
def notices(request, tmp_path, monkeypatch):
    address = str(tmp_path / "notify")
    if request.param == "abstract":
        address = f"@gpuportal-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(address.replace("@", "\0"))
        server.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        yield server


def test_ready_is_one_datagram(notices):
    systemd.ready()
    assert notices.recv(100) == b"READY=1"


def test_elsewhere_nothing_happens(monkeypatch, tmp_path, caplog):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    systemd.ready()
    assert not caplog.records
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    systemd.ready()
    assert "does not hear" in caplog.text


def test_the_web_is_ready_when_its_application_is_there(notices):
    subprocess.run(
        [sys.executable, "-c", "import gpuportal.asgi"], cwd=ROOT, check=True
    )
    assert notices.recv(100) == b"READY=1"
