"""``manage.py doctor`` and ``gpuportal-node doctor`` as an operator types them."""

import json
import os
import subprocess

import pytest
from django.core.management import call_command

from gpuportal.doctor import node_facts
from placement.agent.gate.bpf_system_call import GateUnavailable
from reservations.accounts.identities.provider_settings import LoginSettings, Provider
from tests.house.walk import ROOT


@pytest.mark.django_db
def test_the_portal_is_checked_by_the_probes_that_pages_use(capsys, settings):
    settings.REDIS_URL = "unix:///nowhere/else.sock?db=0"
    # Nothing listens on port 1.
    away = Provider("uni", "Uni", "http://127.0.0.1:1", "portal", "secret")
    settings.LOGIN_SETTINGS = LoginSettings(("password", "oidc"), (away,), ())
    with pytest.raises(SystemExit) as ended:
        call_command("doctor", "--json")
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    assert ended.value.code == 1
    assert rows["database"]["state"] == rows["migrations"]["state"] == "ok"
    assert rows["broker"]["state"] == "problem"
    assert rows["mail"]["state"] == "note"
    assert "does not answer" in rows["login Uni"]["fact"]


def doctor(file, *arguments):
    return subprocess.run(
        [str(ROOT / "deploy" / "gpuportal-node"), *arguments],
        cwd="/",
        env={"PATH": os.environ["PATH"], "GPUPORTAL_NODE_ENV_FILE": str(file)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_node_checks_itself_with_the_settings_of_its_unit(tmp_path):
    token = tmp_path / "node.token"
    token.write_text("a token")
    token.chmod(0o644)
    file = tmp_path / "node.env"
    file.write_text(
        "# a comment\n"
        "GPUPORTAL_NODE=atlas\n"
        "GPUPORTAL_NODE_REDIS_URL=redis://node-atlas:a&b$c@127.0.0.1:1/0\n"
        "GPUPORTAL_WEB_URL=http://127.0.0.1:1\n"
        f"GPUPORTAL_NODE_TOKEN_FILE={token}\n"
        f"GPUPORTAL_ORDER_KEY_FILE={tmp_path}/order_key.pub\n"
        f"GPUPORTAL_NODE_DIR={tmp_path}\n"
    )
    file.chmod(0o644)
    done = doctor(file, "doctor", "--json")
    assert done.returncode == 1, done.stderr
    rows = {row["check"]: row for row in json.loads(done.stdout)}
    assert "refused" in rows["broker"]["fact"]
    assert rows["channel"]["state"] == "problem"
    assert rows["secrets"]["fix"] == f"chmod 600 {file} {token}"


def test_a_machine_without_a_whole_tree_of_control_groups_is_checked(monkeypatch):
    """As in a container, or without control groups of version 2."""

    def refuse():
        raise GateUnavailable("no control groups of version 2 are mounted")

    monkeypatch.setattr(node_facts, "root_cgroup", refuse)
    loaded, why = node_facts._gate()
    assert not loaded
    assert why.endswith("no control groups of version 2 are mounted")


def test_no_program_gets_the_settings_as_arguments(tmp_path):
    """Every user of the machine can read the arguments of a process (proc(5))."""
    top, programs = tmp_path / "top", tmp_path / "programs"
    for folder in (top / "deploy", top / ".venv" / "bin", programs):
        folder.mkdir(parents=True)
    script = top / "deploy" / "gpuportal-node"
    script.write_text((ROOT / "deploy" / "gpuportal-node").read_text())
    python = top / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$GPUPORTAL_NODE_REDIS_URL"\n')
    # Stands for every program that the script could start on the way.
    env = programs / "env"
    env.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/arguments\nexec /usr/bin/env "$@"\n'
    )
    for file in (script, python, env):
        file.chmod(0o755)
    address = "rediss://node-atlas:a&b$c@broker/0"
    (tmp_path / "node.env").write_text(f"GPUPORTAL_NODE_REDIS_URL={address}\n")
    done = subprocess.run(
        [str(script), "doctor"],
        env={
            "PATH": f"{programs}:{os.environ['PATH']}",
            "GPUPORTAL_NODE_ENV_FILE": f"{tmp_path}/node.env",
        },
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{address}\n", done.stderr
    assert not (tmp_path / "arguments").exists()


def test_a_node_that_has_not_joined_says_so_in_one_line(tmp_path):
    (tmp_path / "empty.env").write_text("\n")
    for file, arguments, said in (
        (tmp_path / "no.env", ["doctor"], "cannot read"),
        (tmp_path / "empty.env", ["doctor"], "GPUPORTAL_NODE is not set"),
        (tmp_path / "empty.env", ["dance"], "usage"),
    ):
        done = doctor(file, *arguments)
        assert done.returncode == 2
        (line,) = done.stderr.strip().splitlines()
        assert said in line
