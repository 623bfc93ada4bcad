"""The files of ``deploy/`` for an operator work: units, examples, broker users."""

import configparser
import os
import pwd
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import redis

from gpuportal.node_settings import NodeSettings
from tests import brokers
from tests.archives import unpack
from tests.house.walk import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
BACKUP = "gpuportal-backup"
"""Started by its timer, not with the portal."""
UNIT_ONLY = {
    *("gpuportal", "gpuportal.node", "manage.py backup"),
    # In production only, where an upgrade replaces the web processes.
    "gpuportal.supervisor.web_generations",
}
BROKER_USER = "gpuportal-broker-user@"
"""Started by its socket, for each machine that joins."""


def example(name: str) -> dict[str, str]:
    """Read an example of an environment file as systemd would."""
    lines = (ROOT / "deploy" / name).read_text().splitlines()
    pairs = [line.split("=", 1) for line in lines if "=" in line and line[0] != "#"]
    return {key: "".join(shlex.split(value)) for key, value in pairs}


def unit(path: Path, section: str = "Service") -> configparser.SectionProxy:
    parser = configparser.ConfigParser(
        strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",)
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser[section]


def test_there_is_a_unit_for_every_process():
    names = {path.stem for path in UNITS}
    assert names == {
        f"gpuportal-{name}"
        for name in (
            *("backup", "check", "web", "worker", "refine", "beat", "ingest", "node"),
            "broker-user@",
        )
    }
    wanted = (ROOT / "deploy" / "systemd" / "gpuportal.target").read_text()
    for name in names - {"gpuportal-node", BACKUP, BROKER_USER}:
        assert f"{name}.service" in wanted
    timer = unit(ROOT / "deploy/systemd/gpuportal-backup.timer", "Timer")
    assert timer["Persistent"] == "true"


def test_only_the_node_runs_as_root_and_only_the_control_side_knows_its_secrets():
    for path in UNITS:
        service = unit(path)
        if path.stem == BROKER_USER:
            continue
        node = path.stem == "gpuportal-node"
        assert service["User"] == ("root" if node else "gpuportal")
        assert service["EnvironmentFile"].endswith("node.env" if node else "portal.env")
    # Jobs outlive the worker only if systemd does not kill its whole group.
    assert unit(ROOT / "deploy/systemd/gpuportal-node.service")["KillMode"] == (
        "process"
    )


def test_only_one_process_gets_the_password_of_the_brokers_admin():
    """And it has no secret of the portal, whose user cannot read its credential."""
    folder = ROOT / "deploy" / "systemd"
    service = unit(folder / f"{BROKER_USER}.service")
    assert service["DynamicUser"] == "yes"
    assert "User" not in service
    assert {"SECRET_KEY", "DATABASE_URL"} <= {*service["UnsetEnvironment"].split()}
    assert service["ExecStart"].endswith("deploy/broker-user")
    with_password = [path for path in UNITS if "broker-admin" in path.read_text()]
    assert [path.stem for path in with_password] == [BROKER_USER]
    socket = unit(folder / "gpuportal-broker-user.socket", "Socket")
    assert (socket["SocketUser"], socket["SocketMode"]) == ("gpuportal", "0600")
    assert socket["Accept"] == "yes"


def test_settings_and_database_are_checked_once_before_anything_starts():
    check = unit(ROOT / "deploy/systemd/gpuportal-check.service")
    assert check["ExecStart"].endswith("check --deploy --database default")
    assert (check["Type"], check["RemainAfterExit"]) == ("oneshot", "yes")
    for path in UNITS:
        # A backup is made also of a site that does not start.
        if path.stem in ("gpuportal-check", "gpuportal-node", BACKUP, BROKER_USER):
            continue
        assert "ExecStartPre" not in unit(path)
        for key in ("Requires", "After"):
            assert "gpuportal-check.service" in unit(path, "Unit")[key], path
        # Started: the process can work, and has reported it.
        assert unit(path)["Type"] == "notify"


def test_the_port_stays_open_while_the_web_is_restarted():
    socket = unit(ROOT / "deploy/systemd/gpuportal-web.socket", "Socket")
    assert socket["ListenStream"] in (ROOT / "deploy/nginx.conf.example").read_text()
    about = unit(ROOT / "deploy/systemd/gpuportal-web.socket", "Unit")
    assert "PartOf" not in about
    web = ROOT / "deploy/systemd/gpuportal-web.service"
    assert "gpuportal-web.socket" in unit(web, "Unit")["Requires"]
    assert "--fd 3 " in unit(web)["ExecStart"]
    for key in ("ExecStart", "ExecReload"):
        state = re.search(r"--state (\S+)", unit(web)[key])
        assert state and state[1].startswith(f"/run/{unit(web)['RuntimeDirectory']}/")


def test_the_portals_processes_are_confined():
    """The checks of systemd-analyze security. A node's jobs would inherit the
    settings.
    """
    for path in UNITS:
        service = unit(path)
        if path.stem == "gpuportal-node":
            assert "NoNewPrivileges" not in service
            continue
        assert service["CapabilityBoundingSet"] == ""
        assert service["SystemCallFilter"] == "@system-service"
        for key in ("NoNewPrivileges", "PrivateDevices", "ProtectKernelTunables"):
            assert service[key] == "yes"


def test_the_units_start_what_the_supervisor_starts():
    table = (ROOT / "gpuportal" / "supervisor" / "process_table.py").read_text()
    for path in UNITS:
        words = unit(path)["ExecStart"]
        for part in re.findall(r"gpuportal(?:\.\w+)*(?::\w+)?|manage\.py \w+", words):
            if part not in UNIT_ONLY:
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


def test_a_shell_reads_the_portals_example_as_systemd_does():
    """A person who types `. portal.env` gets the same values as the units."""
    text = "set -a; . deploy/portal.env.example; env"
    done = subprocess.run(
        ["sh", "-euc", text], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not done.stderr
    known = dict(line.split("=", 1) for line in done.stdout.splitlines())
    for name, value in example("portal.env.example").items():
        assert known[name] == value


@pytest.fixture
def manage(tmp_path):
    """deploy/gpuportal-manage with test settings, as the present user."""
    settings = tmp_path / "portal.env"
    values = example("portal.env.example") | {
        "SECRET_KEY": "a key with 'no' $meaning",
        "GPUPORTAL_VAR": str(tmp_path / "var"),
        "DATABASE_URL": f"sqlite:///{tmp_path}/db.sqlite3",
    }
    settings.write_text(
        "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    )
    environ = {
        "PATH": os.environ["PATH"],
        "GPUPORTAL_ENV_FILE": str(settings),
        "GPUPORTAL_USER": pwd.getpwuid(os.getuid()).pw_name,
    }

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(ROOT / "deploy" / "gpuportal-manage"), *arguments],
            cwd="/",
            env=environ | more,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_manage_runs_with_the_portals_settings_from_any_folder(manage):
    code = (
        "from django.conf import settings as s; "
        "print(s.PRODUCTION, s.SECRET_KEY, s.PORTAL_URL)"
    )
    done = manage("shell", "--no-imports", "-c", code)
    assert done.returncode == 0, done.stderr
    told = "True a key with 'no' $meaning https://gpu.example.org"
    assert done.stdout.strip() == told


def test_manage_says_in_one_line_what_is_wrong(manage, tmp_path):
    bad = tmp_path / "bad.env"
    bad.write_text("MAIL_FROM=GPU Portal <gpu@example.org>\n")
    for path, said in (
        ("/nowhere/portal.env", "cannot read /nowhere/portal.env"),
        (str(bad), "has a line that is not NAME='value'"),
    ):
        done = manage("check", GPUPORTAL_ENV_FILE=path)
        (line,) = done.stderr.strip().splitlines()
        assert done.returncode == 2
        assert line.startswith("gpuportal-manage: ")
        assert said in line


# --- a node's enrolment -------------------------------------------------------------


@pytest.fixture
def enroll(manage, tmp_path, make_database):
    """deploy/enroll on a portal with a separate broker."""
    with brokers.running("redis", tmp_path, nodes=[]) as broker:
        # Any name of this machine that is spelt differently.
        url = f"redis://portal:{brokers.PORTAL_PASSWORD}@0.0.0.0:{broker.port}/0"
        settings = tmp_path / "portal.env"
        text = re.sub(r"^REDIS_URL=.*$", "", settings.read_text(), flags=re.MULTILINE)
        settings.write_text(f"{text}REDIS_URL='{url}'\nGPUPORTAL_BROKER_PLAIN='1'\n")
        (tmp_path / "admin").write_text(brokers.ADMIN_PASSWORD + "\n")
        make_database(tmp_path / "db.sqlite3")
        done = manage("migrate", "-v0")
        assert done.returncode == 0, done.stderr
        environ = {
            "PATH": os.environ["PATH"],
            "GPUPORTAL_ENV_FILE": str(settings),
            "GPUPORTAL_USER": pwd.getpwuid(os.getuid()).pw_name,
            "GPUPORTAL_BROKER_ADMIN_FILE": str(tmp_path / "admin"),
            "GPUPORTAL_BUNDLE_DIR": str(tmp_path),
        }

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                ["sh", str(ROOT / "deploy" / "enroll"), *arguments],
                cwd="/",
                env=environ,
                capture_output=True,
                text=True,
                check=False,
            )

        yield run, broker


HASH = "0" * 64


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("", "two words"),
        ("atlas", "two words"),
        (f"atlas {HASH} more", "two words"),
        (f"atlas {HASH[1:]}", "64 digits"),
        (f"atlas {HASH[1:]}G", "64 digits"),
        (f"a~b {HASH}", "a node's name"),
        (f"--check {HASH}", "a node's name"),
        (f"{'a' * 64} {HASH}", "63 characters"),
        (f"atlas {HASH}", "does not answer admin"),
    ],
)
def test_what_is_no_user_of_a_node_is_refused_in_one_line(tmp_path, asked, said):
    """deploy/broker-user takes its words from the portal, which it does not trust."""
    (tmp_path / "broker-admin").write_text("wrong")
    done = subprocess.run(
        ["sh", str(ROOT / "deploy" / "broker-user")],
        input=asked,
        env={
            "PATH": os.environ["PATH"],
            "REDIS_URL": "redis://portal:x@127.0.0.1:1/0",
            "CREDENTIALS_DIRECTORY": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stdout.splitlines()
    assert line.startswith("no: ")
    assert said in line


def unpacked(bundle: Path, to: Path) -> NodeSettings:
    """Return the node's settings from a bundle at deploy/join's place."""
    to.mkdir()
    unpack(bundle, to)
    text = (to / "node.env").read_text().replace("/etc/gpuportal", str(to))
    (to / "node.env").write_text(text)
    lines = (line for line in text.splitlines() if line[:1].isupper())
    return NodeSettings.from_env(dict(line.split("=", 1) for line in lines))


def test_one_command_enrols_a_node_on_the_running_broker(enroll, tmp_path):
    """No restart, no file edited by hand, and the order key is there."""
    run, broker = enroll
    done = run("atlas")
    assert done.returncode == 0, done.stderr
    bundle = tmp_path / "gpuportal-atlas.tar"
    assert str(bundle) in done.stdout
    assert bundle.stat().st_mode & 0o077 == 0
    node = unpacked(bundle, tmp_path / "first")
    assert (node.name, node.web_url) == ("atlas", "https://gpu.example.org")
    assert node.token()
    assert b"BEGIN PUBLIC KEY" in node.order_key_pem()
    redis.Redis.from_url(node.redis_url).xadd("raw.atlas", {"m": "{}"})
    # The broker keeps the user over a restart.
    assert "user node-atlas on" in broker.users_file.read_text()

    again = run("atlas")
    assert again.returncode == 2
    assert "already" in again.stderr
    open_before = redis.Redis.from_url(node.redis_url, single_connection_client=True)
    open_before.xadd("raw.atlas", {"m": "{}"})

    assert run("--renew", "atlas").returncode == 0
    fresh = unpacked(bundle, tmp_path / "second")
    assert fresh.token() != node.token()
    redis.Redis.from_url(fresh.redis_url).xadd("raw.atlas", {"m": "{}"})
    with pytest.raises(redis.exceptions.AuthenticationError):
        redis.Redis.from_url(node.redis_url).ping()
    # A connection that was open already ended, too.
    with pytest.raises(redis.exceptions.ConnectionError):
        open_before.xadd("raw.atlas", {"m": "{}"})
    check_joining_again(bundle, tmp_path / "joined")


def check_joining_again(bundle: Path, to: Path) -> None:
    """The portal's facts are replaced, and what only the machine knows is kept."""
    own = {"GPUPORTAL_BACKEND=none", "GPUPORTAL_NODE_DIR=/shared", "LOG_FORMAT=json"}
    to.mkdir()
    (to / "node.env").write_text("\n".join([*own, "GPUPORTAL_NODE=old", ""]))
    subprocess.run(
        ["sh", str(ROOT / "deploy" / "join"), str(bundle)],
        env={"PATH": os.environ["PATH"], "GPUPORTAL_SETTINGS_DIR": str(to)},
        capture_output=True,
        check=True,
    )
    lines = (to / "node.env").read_text().splitlines()
    assert {*own, "GPUPORTAL_NODE=atlas"} <= set(lines)
    names = [line.partition("=")[0] for line in lines if line[:1].isupper()]
    assert len(set(names)) == len(names), "no line twice"


def test_enrolling_says_in_one_line_what_is_wrong(enroll, tmp_path):
    run, _broker = enroll
    (tmp_path / "admin").write_text("wrong\n")
    for name, said in (("atlas", "does not answer admin"), ("a/b", "a node's name")):
        done = run(name)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1
        assert said in done.stderr
    settings = tmp_path / "portal.env"
    settings.write_text(settings.read_text().replace("BROKER_PLAIN='1'", "BROKER='1'"))
    assert "use rediss://" in run("atlas").stderr
