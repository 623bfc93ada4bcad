"""Jobs as the student's own Unix user, for real: needs root.

The account exists only in the shim's own process, so that the machine that runs the
tests gets no new user.
"""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from placement.agent.local_runner import LocalRunner
from placement.agent.process import job_process, unix_user
from placement.protocol.commands import SlurmPlace
from placement.protocol.node_refusals import OrderRefused
from tests.placement import nodes
from tests.placement.nodes import ended, living, script_order, until

UID = 20_000 + os.getpid() % 30_000
"""Of this run alone: what a user's other processes do counts for their Jobs."""
SHIM = """
import os, pwd, sys
uid = int(sys.argv[1])
entry = pwd.struct_passwd(("student", "x", uid, uid, "", sys.argv[3], "/bin/sh"))
pwd.getpwnam = lambda name: entry
os.getgrouplist = lambda name, gid: [gid, 777]
from placement.agent.process import shim
sys.exit(shim.main(["shim", sys.argv[2]]))
"""
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becoming a user needs root")


@pytest.fixture
def node(valkey_url: str) -> Iterator[nodes.NodeSettings]:
    """A node under a folder that other users may enter."""
    folder = Path(tempfile.mkdtemp(prefix="gpn-"))
    folder.chmod(0o711)
    settings = nodes.make_settings(folder, redis_url=valkey_url, allow_scripts=False)
    yield settings
    nodes.end_all_jobs(settings.node_dir)
    shutil.rmtree(folder)


def run(node, web, uid=UID, env=None, **changes):
    """Run one Job as a user of that uid; ``env``: more of the shim's environment."""
    settings = replace(node, web_url=web.url)
    order = script_order(web, unix_user="student", **changes)
    folder = LocalRunner(settings).accept(order, order.payload())
    subprocess.run(
        [sys.executable, "-c", SHIM, str(uid), str(folder.path), "/nonexistent"],
        env={
            "GPUPORTAL_WEB_URL": web.url,
            "GPUPORTAL_NODE_TOKEN_FILE": str(node.token_file),
            "PATH": os.environ["PATH"],
            **(env or {}),
        },
        check=True,
        timeout=20,
    )
    return folder


def test_a_script_runs_as_the_students_own_user(node, serve):
    web = serve(
        "id -u; id -g; id -G; echo $HOME; stat -c '%u %a' . $HOME\n"
        "cat ~/.cache/model; mkdir -p ~/.cache; echo kept > ~/.cache/model\n"
    )
    folder = run(node, web)
    ended(folder)
    uid, gid, groups, home, *modes, last = folder.log.read_text().splitlines()
    assert uid == gid == str(UID)
    assert set(groups.split()) == {str(UID), "777"}
    assert home == str(node.node_dir / "homes" / f"uid-{UID}")
    assert modes == [f"{UID} 700"] * 2 and "No such file" in last
    # The next job of the person has the same home, within the limit of its own folder.
    web = serve("cat ~/.cache/model; head -c 3000000 /dev/urandom > ~/large; sleep 30")
    limits = replace(nodes.make_order().limits, disk_bytes=2**21)
    folder = run(node, web, job=8, limits=limits)
    assert "its folder holds 2.9 MiB, and may hold 2 MiB" in ended(folder)["reason"]
    assert folder.log.read_text().startswith("kept\n")


def test_a_student_without_an_account_gets_an_id_of_its_own(node, serve):
    """As on the node of `make run` if root started the portal."""
    web = serve("id -u; id -G; echo $USER $HOME; stat -c '%u %a' .\n")
    settings = replace(node, web_url=web.url, own_ids=True)
    found = []
    for login in ("ada", "grace"):
        order = script_order(web, user=login, job=len(found) + 1)
        folder = LocalRunner(settings).accept(order, order.payload())
        LocalRunner(settings).start(folder)
        assert ended(folder)["exit_code"] == 0, folder.log.read_text()
        uid, groups, told, work = folder.log.read_text().splitlines()
        assert uid == groups == str(unix_user.own_identity(login).uid)
        assert told == f"{login} {node.node_dir}/homes/uid-{uid}"
        assert work == f"{uid} 700"
        found.append(uid)
    assert len(set(found)) == 2
    assert min(map(int, found)) >= 2**30


def made_wheel(folder):
    """Write the smallest package that pip installs. Return its file."""
    place = folder / "tiny_need-1.0-py3-none-any.whl"
    named = "tiny_need-1.0.dist-info"
    with zipfile.ZipFile(place, "w") as wheel:
        wheel.writestr("tiny_need.py", "WORD = 'installed'\n")
        wheel.writestr(
            f"{named}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-need\nVersion: 1.0\n",
        )
        wheel.writestr(
            f"{named}/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{named}/RECORD", "")
    place.chmod(0o644)
    return place


def test_two_jobs_build_the_environment_of_a_requirements_file_once(node, serve):
    """As their own user, in a folder of that user, with the output in the log."""
    place = node.node_dir.parent / "my project"
    place.mkdir()
    made_wheel(place)
    needs = place / "my needs.txt"
    needs.write_text("--no-index\n--find-links .\ntiny-need\n")
    web = serve("import os, tiny_need\nprint(tiny_need.WORD, os.getuid())\n")
    limits = replace(nodes.make_order().limits, processes=200)
    how = {"launcher": "python", "environment_folder": str(needs), "limits": limits}
    both = [run(node, web, job=number, **how) for number in (1, 2)]
    assert [ended(folder)["exit_code"] for folder in both] == [0, 0], [
        folder.log.read_text() for folder in both
    ]
    logs = [folder.log.read_text() for folder in both]
    assert all(log.endswith(f"installed {UID}\n") for log in logs)
    assert sum("Successfully installed tiny-need-1.0" in log for log in logs) == 1
    own = node.node_dir / "environments" / f"uid-{UID}"
    (folder,) = own.glob("*/whole")
    assert {own.stat().st_uid, folder.stat().st_uid} == {UID}
    assert own.stat().st_mode & 0o777 == 0o700


def test_root_cannot_be_had_back(node, serve):
    web = serve("#!/bin/sh\ngrep -E '^(Uid|Gid|NoNewPrivs|CapEff)' /proc/self/status\n")
    folder = run(node, web)
    ended(folder)
    lines = dict(line.split(":", 1) for line in folder.log.read_text().splitlines())
    assert lines["Uid"].split() == [str(UID)] * 4
    assert lines["Gid"].split() == [str(UID)] * 4
    assert int(lines["CapEff"], 16) == 0


def test_the_log_cannot_be_opened_again_by_the_jobs_user(node, serve):
    web = serve(
        "echo first\n"
        "for path in /proc/$$/fd/1 /proc/$$/fd/2 ../log; do\n"
        "  (echo forged > $path) 2>/dev/null && echo broken $path\n"
        "  (: >> $path) 2>/dev/null && echo broken again $path\n"
        "done\n"
        "cat ../order.json ../shim.json ../log 2>/dev/null && echo could read\n"
        "touch ../mine 2>/dev/null && echo could write\n"
        "ls .. 2>/dev/null && echo could list\n"
        "echo last\n"
    )
    folder = run(node, web)
    ended(folder)
    assert folder.log.read_text() == "first\nlast\n"


def test_the_nodes_token_cannot_be_read(node, serve):
    node.token_file.chmod(0o600)
    folder = run(node, serve(f"cat {node.token_file} /proc/$PPID/environ\n"))
    ended(folder)
    assert "token-of" not in folder.log.read_text()
    assert "GPUPORTAL_NODE_TOKEN_FILE" not in folder.log.read_text()


def test_the_shim_cannot_be_killed_by_the_job(node, serve):
    folder = run(node, serve("kill -9 $PPID 2>/dev/null || echo alive\n"))
    assert ended(folder)["last_lines"] == ["alive"]


def test_strays_of_another_user_are_killed_too(node, serve, marker):
    web = serve("setsid sh -c 'sleep 300' $1 &\nsleep 0.3\n")
    folder = run(node, web, argv=(marker,))
    ended(folder)
    assert living(marker) == []


def test_temporary_files_lie_in_the_jobs_folder_and_count(node, serve):
    web = serve(
        'echo "$TMPDIR"; [ "$TMP" = "$TMPDIR" ] && [ "$TEMP" = "$TMP" ] && echo same\n'
        "stat -c '%u %a' \"$TMPDIR\"; mktemp\n"
        "python3 -c 'import tempfile; print(tempfile.gettempdir())'\n"
        'head -c 3000000 /dev/urandom > "$TMPDIR/large"; sleep 30\n'
    )
    limits = replace(nodes.make_order().limits, disk_bytes=2**21)
    folder = run(node, web, limits=limits)
    status = ended(folder)
    where = str(folder.path / "tmp")
    named, same, mode, made, python, *_ = folder.log.read_text().splitlines()
    assert (named, same, python) == (where, "same", where)
    assert mode == f"{UID} 700" and Path(made).parent == Path(where)
    assert "its folder holds 2.9 MiB, and may hold 2 MiB" in status["reason"]


def test_a_path_too_long_for_sockets_is_not_named():
    for characters, named in ((72, True), (73, False)):
        tmp = Path("/" + "x" * (characters - 1))
        known = job_process.environment(
            nodes.make_order(), work=Path("/w"), identity=None, tmp=tmp
        )
        assert [name in known for name in job_process.TMP_VARIABLES] == [named] * 3


def test_shared_memory_goes_with_the_last_process_of_its_user(node, serve, marker):
    left = Path("/dev/shm") / marker
    web = serve(f"mkdir {left}; echo x > {left}/part; echo x > {left}.flat\n")
    other = subprocess.Popen(["sleep", "60"], user=UID, group=UID, extra_groups=[])
    try:
        ended(run(node, web))
        assert (left / "part").exists(), "another process of the user may want it"
    finally:
        other.kill()
        other.wait()
    ended(run(node, serve("true\n"), job=8))
    assert list(left.parent.glob(f"{marker}*")) == []


FORK_BOMB = """
cat /proc/self/oom_score_adj
exec python3 -c '
import os, time
try:
    for made in range(1000):
        if os.fork() == 0:
            time.sleep(300)
            os._exit(0)
except BlockingIOError:
    print("refused after", made, flush=True)
'
"""


def _owned_by(uid):
    """Return the processes of a Unix user."""
    found = []
    for pid in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError):
            found += [pid] if pid.stat().st_uid == uid else []
    return found


def test_a_fork_bomb_stops_at_the_limit_and_goes_with_its_job(node, serve):
    limits = nodes.make_order().limits
    uid = UID + 1  # the other tests' processes do not count
    folder = run(node, serve(FORK_BOMB), uid, limits=replace(limits, processes=50))
    assert ended(folder)["exit_code"] == 0, folder.log.read_text()
    score, *words, made = folder.log.read_text().split()
    assert words == ["refused", "after"] and 40 <= int(made) < 50
    assert int(score) >= unix_user.JOB_OOM_SCORE, (
        "the kernel ends it before the node worker"
    )
    until(lambda: not _owned_by(uid), what="the end of its processes")


def test_a_closed_folder_above_is_explained(node, serve):
    node.node_dir.parent.chmod(0o700)
    folder = run(node, serve("echo no\n"))
    status = ended(folder)
    assert status["exit_code"] == 126
    assert "cannot reach" in folder.log.read_text()


@pytest.mark.parametrize("uid", [0, 33, 999, 65_534])
def test_system_accounts_are_refused(node, serve, uid):
    folder = run(node, serve("id -u\n"), uid=uid)
    status = ended(folder)
    assert status["event"] == "refused"
    assert "never as a system account" in status["reason"]


def test_an_unknown_user_is_refused():
    order = nodes.make_order(unix_user="no-such-user-here")
    with pytest.raises(OrderRefused, match="no Unix user no-such-user-here") as refusal:
        unix_user.identity_of(order, allow_scripts=True)
    assert refusal.value.code == "unix-user"


def test_an_account_of_another_uid_is_refused():
    """On this node the name may be another person's."""
    with pytest.MonkeyPatch.context() as patch:
        entry = pwd.struct_passwd(("ada", "x", 1815, 1815, "", "/nowhere", "/bin/sh"))
        patch.setattr(unix_user.pwd, "getpwnam", lambda name: entry)
        patch.setattr(unix_user.os, "getgrouplist", lambda *_: [1815])
        for uid in (0, 1815):
            order = nodes.make_order(unix_user="ada", unix_uid=uid)
            assert unix_user.identity_of(order, allow_scripts=True).uid == 1815
        order = nodes.make_order(unix_user="ada", unix_uid=1816)
        with pytest.raises(OrderRefused, match="uid 1815 on this node, not 1816"):
            unix_user.identity_of(order, allow_scripts=True)


def test_a_script_without_a_user_of_its_own_is_refused(node, serve):
    order = nodes.make_order(recipe=None, argv=())
    with pytest.raises(OrderRefused, match="only ready recipes") as refusal:
        unix_user.identity_of(order, allow_scripts=False)
    assert refusal.value.code == "isolation"
    assert unix_user.identity_of(order, allow_scripts=True) is None
    assert unix_user.identity_of(nodes.make_order(), allow_scripts=False) is None


def test_nothing_runs_in_slurm_as_root(monkeypatch):
    monkeypatch.setenv("GPUPORTAL_OWN_IDS", "1")
    order = nodes.make_order(slurm=SlurmPlace("gp1", "gp_lab1_17"))
    with pytest.raises(OrderRefused, match="no job in Slurm runs as root"):
        unix_user.identity_of(order, allow_scripts=False)


def test_a_shim_that_was_killed_leaves_strays_that_are_found(node, serve, marker):
    web = serve("setsid sh -c 'sleep 300' $1 &\necho up\nsleep 300\n")
    folder = run(node, web, argv=(marker,))
    until(lambda: living(marker))
    until(folder.log_bytes)
    os.kill(folder.read("shim")["pid"], 9)
    runner = LocalRunner(node)
    until(lambda: not runner.alive(folder))
    until(lambda: runner.end_strays(folder) == 0)
    until(lambda: living(marker) == [])
