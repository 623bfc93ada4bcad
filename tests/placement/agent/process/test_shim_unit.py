"""Isolated Jobs, for real: own user, own unit, own folders, no secret. Needs root.

systemd does not run here. A program of its name records its arguments and runs the
rest, so that everything but the kernel's device filter is tested.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from placement.agent.local_runner import ask as ask_to_stop
from placement.agent.process import unix_user
from placement.agent.serving.model_sync import ModelSync
from placement.agent.serving.server_client import NoAnswer, ask
from placement.agent.storage import folder_size
from placement.protocol.node_refusals import OrderRefused
from tests.placement import nodes
from tests.placement.agent.process import test_shim_user
from tests.placement.agent.process.test_shim_user import UID, run
from tests.placement.nodes import ended, until
from tests.placement.serving.networks import mlp_bytes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becoming a user needs root")
RUN = """#!/bin/sh
printf '%s\\n' "$@" > "$(dirname "$0")/asked"
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""
OPEN = """
import ctypes, pathlib, subprocess, sys
place = pathlib.Path(sys.base_prefix)
closed = [one for one in reversed(place.parents) if not one.stat().st_mode & 1]
if closed:
    ctypes.CDLL(None).unshare(0x20000)
    def mount(*words):
        subprocess.run(["mount", *map(str, words)], check=True)
    mount("--make-rprivate", "/")
    mount("--bind", place, "/mnt")
    mount("-t", "tmpfs", "-o", "mode=711", "tmpfs", closed[0])
    place.mkdir(parents=True)
    mount("--bind", "/mnt", place)
"""
"""A view of this machine in which every user may run the tests' own Python."""
CTL = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/controlled"
"""
BOB = UID + 1


@pytest.fixture
def node(valkey_url: str) -> Iterator[nodes.NodeSettings]:
    """A node outside /tmp, which is private to a Job in a unit."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-portal-", dir="/var/lib"))
    folder.chmod(0o711)
    settings = nodes.make_settings(folder, redis_url=valkey_url, allow_scripts=False)
    yield settings
    nodes.end_all_jobs(settings.node_dir)
    shutil.rmtree(folder)


@pytest.fixture
def enforced(node) -> dict[str, str]:
    """Return the environment of a shim on a node with enforcement."""
    programs = node.node_dir.parent / "programs"
    programs.mkdir()
    for name, text in (("systemd-run", RUN), ("systemctl", CTL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    return {"GPUPORTAL_ISOLATION": "enforced", "PATH": path}


def test_a_job_begins_inside_its_unit_with_folders_of_its_own(node, serve, enforced):
    web = serve(
        'id -u; pwd; echo "$1"; grep NoNewPrivs /proc/self/status\n'
        "echo mine > /tmp/note; cat /tmp/note; stat -c '%u %a' /tmp /var/tmp\n"
        "ls /tmp; touch /etc/mine 2>&1 | grep -o 'Read-only'\n"
        "grep -c ' /etc .*ro[, ]' /proc/self/mountinfo\n"
        "sed -nE '/core/d; s/^Max .*(file size|processes|files) +([0-9]+) .*/\\1 \\2/p'"
        " /proc/self/limits\n"
        "readlink /proc/self/fd/0; [ -e /proc/self/fd/3 ] || echo closed\n"
    )
    limits = replace(nodes.make_order().limits, processes=50, open_files=99)
    odd = "--uid=0 $HOME %n ü;"
    folder = run(node, web, env=enforced, limits=limits, simulated=True, argv=(odd,))
    status = ended(folder)
    assert status["exit_code"] == 0, folder.log.read_text()
    assert folder.log.read_text().split("\n")[:-1] == [
        str(UID),
        str(folder.work),
        odd,
        "NoNewPrivs:\t1",
        "mine",
        f"{UID} 700",
        f"{UID} 700",
        "note",
        "Read-only",
        "1",
        f"file size {limits.file_bytes}",
        "processes 50",
        "files 99",
        "/dev/null",
        "closed",
    ]
    assert (folder.path / "tmp/tmp/note").read_text() == "mine\n"
    assert not Path("/tmp/note").exists()
    programs = node.node_dir.parent / "programs"
    asked = (programs / "asked").read_text()
    assert f"--unit=gpuportal-job-{folder.job}-{folder.attempt}.scope" in asked
    assert "--property=DevicePolicy=closed" in asked
    assert "--property=TasksMax=50" in asked
    assert "HOME" not in asked, "nothing of the student is in a unit's words"
    killed = (programs / "controlled").read_text().split()
    assert killed[-1] == f"gpuportal-job-{folder.job}-{folder.attempt}.scope"


def test_without_its_unit_a_job_does_not_begin(node, serve, enforced):
    web = serve("echo ran\n")
    real = run(node, web, env=enforced, gpu_uuids=("GPU-not-here",))
    status = ended(real)
    assert status["event"] == "refused"
    assert "knows no GPU GPU-not-here" in status["reason"]
    (node.node_dir.parent / "programs/systemd-run").write_text(
        "#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n"
    )
    folder = run(node, web, env=enforced, job=8, simulated=True)
    assert ended(folder)["exit_code"] == 1
    assert folder.log.read_text() == "Failed to connect to bus\n"


@pytest.mark.parametrize("level", ["watched", "enforced"])
def test_models_are_served_by_a_process_of_their_owners_unix_user(
    node, serve, enforced, level, monkeypatch
):
    data, web = mlp_bytes(), serve()
    digest = hashlib.sha256(data).hexdigest()
    model = {
        "id": 3,
        "name": "mlp",
        "sha256": digest,
        "memory_bytes": 2**20,
        "most_batch": 1,
        "deadline_ms": 5000,
    }
    listed = json.dumps({"models": [model]}).encode()
    web.pages = {"/node/v1/jobs/7/models": listed, "/node/v1/jobs/7/models/3": data}
    settings = {"threads": 1, "room_bytes": 2**30}
    order = nodes.make_order(recipe="serve-onnx", settings=settings)
    with pytest.raises(OrderRefused, match="no model of theirs is served here"):
        unix_user.identity_of(order, allow_scripts=False)
    monkeypatch.setattr(test_shim_user, "SHIM", OPEN + test_shim_user.SHIM)
    folder = run(
        node,
        web,
        env=enforced if level == "enforced" else {},
        recipe="serve-onnx",
        settings=settings,
        simulated=True,
    )
    attendant = ModelSync(replace(node, web_url=web.url), folder)
    me = unix_user.UnixIdentity("student", UID, UID, (UID,), Path("/nonexistent"))
    monkeypatch.setattr(unix_user, "identity_of", lambda *_, **__: me)

    async def ready() -> bool:
        attendant.identity = me
        await attendant.look()
        said = await ask(folder, "GET", "/v2/models/mlp/ready", within_seconds=5)
        return said.status == 200

    def asked() -> bool:
        with contextlib.suppress(NoAnswer):
            return asyncio.run(ready())
        return False

    until(asked)
    file = next(folder.models.iterdir())
    assert (file.stat().st_uid, file.stat().st_mode & 0o777) == (UID, 0o400)
    status = Path(f"/proc/{folder.read('status')['pid']}/status").read_text()
    assert (
        re.findall(r"^[UG]id:\s+(\d+)\s+(\d+)", status, re.M) == [(str(UID),) * 2] * 2
    )
    assert "NoNewPrivs:\t1" in status
    ask_to_stop(folder, {"reason": "enough", "grace_seconds": 3.0})
    assert ended(folder)["reason"] == "enough"


SEARCH = """#!/bin/sh
env
pid=$$
while [ "$pid" -gt 0 ]; do
  cat /proc/$pid/environ /proc/$pid/cmdline /proc/$pid/fd/* /proc/$pid/mem
  ls /proc/$pid/cwd/ /proc/$pid/root/root
  pid=$(awk '/^PPid:/ {print $2}' /proc/$pid/status)
done 2>/dev/null
for place in .. ../.. ../../.. ../../.. "$@"; do
  cat $place $place/* $place/*/* $place/*/*/* $place/.[a-z]*
  find $place -type f -exec cat {} +
done 2>/dev/null
echo searched
"""


@pytest.mark.parametrize("level", ["watched", "enforced"])
def test_a_job_that_looks_everywhere_finds_no_secret(node, serve, enforced, level):
    home = node.node_dir.parent
    node.token_file.chmod(0o600)
    secrets = home / "secret"
    secrets.mkdir(mode=0o700)
    (secrets / "secret_key").write_text("the-portals-key")
    (secrets / "secret_key").chmod(0o600)
    bobs = run(
        node,
        serve("echo bobs-words; echo bobs-words > made; sleep 30\n"),
        uid=BOB,
        job=5,
        argv=("bobs-argument",),
    )
    until(lambda: (bobs.work / "made").exists())
    (bobs.models).mkdir(mode=0o711)
    (bobs.models / "a.onnx").write_text("bobs-model")
    (bobs.models / "a.onnx").chmod(0o400)
    os.chown(bobs.models / "a.onnx", BOB, BOB)
    broker = {"GPUPORTAL_NODE_REDIS_URL": "redis://node:broker-word@broker/0"}
    env = broker | (enforced if level == "enforced" else {})
    places = (secrets, node.token_file, bobs.path, bobs.work, bobs.models / "a.onnx")
    folder = run(
        node, serve(SEARCH), env=env, simulated=True, argv=tuple(map(str, places))
    )
    ended(folder)
    found = folder.log.read_bytes().decode(errors="replace")
    assert found.rstrip().endswith("searched")
    assert f"GPUPORTAL_JOB={folder.job}" in found, "its own environment it sees"
    for secret in (
        "token-of-node1",
        "the-portals-key",
        "bobs-words",
        "bobs-model",
        "broker-word",
        "nonce",
        "payload",
    ):
        assert secret not in found, secret


def test_a_job_that_fills_its_folder_is_stopped_with_the_reason(node, serve):
    limits = replace(nodes.make_order().limits, disk_bytes=2**20)
    web = serve(
        "trap 'echo leaves; exit 3' TERM\n"
        "mkdir a; head -c 3000000 /dev/zero > a/big; ln a/big a/again\n"
        "ln -s /usr a/link\nwhile true; do sleep 0.1; done\n"
    )
    folder = run(node, web, limits=limits)
    status = ended(folder)
    assert (status["exit_code"], status["stopped"]) == (3, False)
    assert "its folder holds 2.9 MiB, and may hold 1 MiB" in status["reason"]
    assert "SIGTERM now" in folder.log.read_text()


def test_a_folder_is_measured_once_for_each_file_and_not_beyond_its_links(tmp_path):
    (tmp_path / "big").write_bytes(bytes(2**20))
    os.link(tmp_path / "big", tmp_path / "again")
    (tmp_path / "link").symlink_to("/usr")
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 2**40)
    size = folder_size.size_bytes(tmp_path)
    assert 2**20 <= size < 2**20 + 65_536
    assert folder_size.size_bytes(tmp_path / "none") == 0
    deep = os.open(tmp_path, os.O_RDONLY)
    for _ in range(folder_size.MOST_DEPTH + 2):
        os.mkdir("d", dir_fd=deep)
        inner = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = inner
    os.close(deep)
    watch = folder_size.FolderWatch((tmp_path,), 2**30)
    assert "nested deeper" in watch.measure()
    subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)
    assert watch.measure() == ""
