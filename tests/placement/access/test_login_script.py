"""deploy/pam/gpuportal-login: called by the machine's PAM, and with its convention."""

import json
import os
import pwd
import subprocess
import sys
import time
from pathlib import Path

import pytest

from placement.agent.gate.grant_file import keep_order
from placement.protocol.device_grants import GateMode, GateOrder, HolderGrant
from tests.placement.access.pam_stack import SUCCESS, account_step

pytestmark = pytest.mark.pure
SCRIPT = Path(__file__).resolve().parents[3] / "deploy" / "pam" / "gpuportal-login"
STUDENT = "nobody"
"""An ordinary user, with a uid above 1000, that every machine has."""
SENTENCE = (
    "You have no running reservation on node-a: "
    "book one at https://gpu.lab and log in when it begins."
)


@pytest.fixture
def grants(tmp_path):
    """Return a function that stores grants as the node's worker does."""

    def store(*users, until=3600.0, mode=GateMode.GATED):
        now = time.time()
        order = GateOrder(
            kind="gate",
            node="node-a",
            sequence=time.time_ns() // 1000,
            mode=mode,
            issued_at=now,
            expires_at=now + 60,
            grace_seconds=1,
            grants=(HolderGrant(users, ("GPU-1",), now + until),) if users else (),
        )
        keep_order(tmp_path, order, order.payload())
        return tmp_path / "gate.json"

    return store


def said_in_syslog(tmp_path):
    return (tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""


def login(tmp_path, user, *more, step="account", folder=None):
    """Call it as pam_exec does; syslog goes into a file."""
    # Some builds of Python have syslog built in, so that no path hides it.
    (tmp_path / "call.py").write_text(
        "import runpy, sys, types\n"
        "fake = sys.modules['syslog'] = types.ModuleType('syslog')\n"
        "exec(open(sys.argv[1]).read(), fake.__dict__)\n"
        "sys.argv[:] = sys.argv[2:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    (tmp_path / "fake_syslog").write_text(
        "LOG_PID = LOG_AUTHPRIV = 0\n"
        "LOG_WARNING, LOG_NOTICE, LOG_ERR = 'warning', 'notice', 'error'\n"
        "def openlog(*_): pass\n"
        "def syslog(level, text):\n"
        f"    print(level, text, file=open({str(tmp_path / 'log')!r}, 'a'))\n"
    )
    (tmp_path / "log").unlink(missing_ok=True)
    words = ["--portal", "https://gpu.lab", "--folder", folder or tmp_path, *more]
    done = subprocess.run(
        [
            *(sys.executable, "-S", tmp_path / "call.py", tmp_path / "fake_syslog"),
            *(SCRIPT, *map(str, words)),
        ],
        env={"PAM_USER": user, "PAM_TYPE": step},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == "", done.stderr
    return done.returncode, done.stdout


def test_a_holder_passes_and_others_read_how_to_book(grants, tmp_path):
    grants(STUDENT, "ada")
    assert login(tmp_path, STUDENT) == (0, "")
    grants("ada")
    assert login(tmp_path, STUDENT) == (1, SENTENCE + "\n")
    assert "notice nobody was refused" in said_in_syslog(tmp_path)
    grants(STUDENT, until=-1.0)
    assert login(tmp_path, STUDENT)[0] == 1, "the reservation has ended"
    grants(mode=GateMode.WATCH)
    assert login(tmp_path, STUDENT) == (1, SENTENCE + "\n")


def test_root_system_users_admins_and_other_steps_always_pass(grants, tmp_path):
    grants("ada")
    system = next(one.pw_name for one in pwd.getpwall() if 0 < one.pw_uid < 1000)
    for user in ("root", system, "no such user", ""):
        assert login(tmp_path, user) == (0, ""), user
    assert login(tmp_path, STUDENT, "--admins", f"ada,{STUDENT}") == (0, "")
    assert login(tmp_path, STUDENT, "--admins", "ada,nobodyelse")[0] == 1
    for step in ("auth", "open_session", "close_session", "password", ""):
        assert login(tmp_path, STUDENT, step=step) == (0, ""), step


def test_without_grants_that_count_everybody_passes_and_syslog_says_why(
    grants, tmp_path
):
    def passes(why):
        assert login(tmp_path, STUDENT) == (0, "")
        said = said_in_syslog(tmp_path)
        assert said.startswith("warning everybody may log in, nobody too: "), said
        assert why in said and said.count("\n") == 1, said

    passes("No such file")
    path = grants("ada")
    os.utime(path, (time.time() - 121,) * 2)
    passes(" seconds old")
    os.utime(path, (time.time() + 3600,) * 2)
    passes(" seconds old")
    grants(mode=GateMode.OPEN)
    passes("the device gate of node-a is open")
    for text in (
        *("", "[]", "{}", "null", '{"payload": 5}', '{"payload": "{}"}'),
        json.dumps({"payload": json.dumps({"mode": "gated", "grants": [5]})}),
    ):
        path.write_text(text)
        passes("is not valid")
    path.write_bytes(b"\xff\xfe")
    passes("is not valid")
    path.write_text("[" * 100_000)
    assert login(tmp_path, STUDENT) == (0, "")
    assert "everybody may log in" in said_in_syslog(tmp_path)
    path.unlink()
    path.mkdir()
    passes("directory")
    path.rmdir()
    grants("ada")
    for wrong in ("--folder", "--admin=ada", "extra"):
        assert login(tmp_path, STUDENT, wrong) == (0, ""), wrong
        assert "everybody may log in" in said_in_syslog(tmp_path)
    assert login(tmp_path, STUDENT)[0] == 1


def test_the_machines_own_pam_calls_it(grants, tmp_path):
    """With the lines of docs/access.md: the shortcut for root, then pam_exec."""
    interpreter = tmp_path / "gpuportal-login"
    interpreter.write_text(f"#!{sys.executable} -IS\n{SCRIPT.read_text()}")
    interpreter.chmod(0o755)
    lines = (
        "account [success=1 default=ignore] pam_succeed_if.so quiet uid < 1000\n"
        f"account required pam_exec.so stdout quiet {interpreter} "
        f"--portal https://gpu.lab --folder {tmp_path}\n"
        "account required pam_permit.so\n"
    )
    grants("ada")
    status, said = account_step(tmp_path, lines, STUDENT)
    assert status != SUCCESS and said == SENTENCE
    assert account_step(tmp_path, lines, "root") == (SUCCESS, "")
    grants("ada", STUDENT)
    assert account_step(tmp_path, lines, STUDENT) == (SUCCESS, "")
    # A script that cannot start locks out students, and never root.
    interpreter.write_text("#!/nonexistent\n")
    assert account_step(tmp_path, lines, "root") == (SUCCESS, "")


def test_the_documented_lines_are_those_that_are_tested():
    text = (SCRIPT.parents[2] / "docs" / "access.md").read_text()
    first = "account [success=1 default=ignore] pam_succeed_if.so quiet uid < 1000"
    second = "account required pam_exec.so stdout quiet /usr/local/sbin/gpuportal-login"
    assert f"\n{first}\n{second}" in text
    assert os.access(SCRIPT, os.X_OK)
