"""The image and the compose file: compared with the code, and their scripts run.

No base image is fetched here, so neither is built in the tests (docs/packages.md).
"""

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import yaml

from gpuportal.supervisor import web_process
from gpuportal.supervisor.web_generations import open_socket
from placement.protocol.node_http import UNSENT_BYTES
from tests.gpuportal.test_deploy import unit
from tests.house.walk import ROOT

pytestmark = pytest.mark.pure
FOLDER = ROOT / "deploy" / "container"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict] = COMPOSE["services"]
OURS = {name for name, service in SERVICES.items() if service["image"] == "gpuportal"}
NAMED = ("web", "worker", "beat", "ingest", "broker-user", "migrate")
SECRETS = {"secret_key": "k" * 50, "database_password": "db", "broker_password": "br"}
ADMIN = {"broker_admin_password": "ad"}


def text(name: str) -> str:
    return (FOLDER / name).read_text()


def run(*words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words],
        env={"PATH": os.environ["PATH"]} | environ,
        capture_output=True,
        text=True,
        check=False,
    )


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stdout
    (line,) = done.stderr.splitlines()
    return line


@pytest.fixture
def container(tmp_path):
    """The entrypoint in a folder whose Python prints how it was started."""
    script = tmp_path / "deploy" / "container" / "entrypoint"
    script.parent.mkdir(parents=True)
    shutil.copy(FOLDER / "entrypoint", script)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$*"\nenv\n')
    python.chmod(0o755)
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    for name, value in (SECRETS | ADMIN).items():
        (secrets / name).write_text(value + "\n")

    def start(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        given = {"GPUPORTAL_SECRETS": str(secrets), "PORTAL_NAME": "gpu.example.org"}
        given |= {"GPUPORTAL_SOCKET": str(tmp_path / "web.sock")}
        return run(script, *words, **given | environ)

    return start, secrets


def test_the_web_process_is_that_of_the_unit_on_a_socket(
    container, monkeypatch, tmp_path
):
    start, _ = container
    passed: dict[str, object] = {}
    monkeypatch.setattr(web_process.uvicorn, "Config", lambda _, **m: passed.update(m))
    monkeypatch.setattr(web_process, "PatientServer", MagicMock())
    listener = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr("sys.argv", ["web_process", "--fd", str(listener.fileno())])
    web_process.main()
    assert passed["forwarded_allow_ips"] == "127.0.0.1"
    with listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        option = (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
        with accepted:
            assert accepted.getsockopt(*option) == UNSENT_BYTES
    unix = open_socket(tmp_path / "unix.sock")
    monkeypatch.setattr("sys.argv", ["web_process", "--fd", str(unix)])
    done = start("web")
    assert done.returncode == 0, done.stderr
    line, *environ = done.stdout.splitlines()
    wanted = unit(ROOT / "deploy" / "systemd" / "gpuportal-web.service")["ExecStart"]
    module = wanted.split()[1:3]
    assert line.split()[:2] == module
    # A socket in place of a port, which nobody but the proxy reaches.
    assert f"--uds {tmp_path}/web.sock" in line and "FORWARDED_ALLOW_IPS=*" in environ
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    web_process.main()
    os.close(unix)
    assert passed["forwarded_allow_ips"] == "*"
    # Requests that were begun have their time before the container is killed.
    grace = int(SERVICES["web"]["stop_grace_period"].removesuffix("s"))
    assert grace > passed["timeout_graceful_shutdown"]


def test_the_socket_is_opened_again_after_a_crash(tmp_path):
    path = tmp_path / "web.sock"
    for _ in range(2):
        handle = open_socket(path)
        with socket.socket(fileno=handle), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            assert path.stat().st_mode & 0o777 == 0o666


def test_each_process_starts_as_its_unit_does(container):
    start, _ = container
    for name in ("worker", "refine", "beat", "ingest"):
        done = start(name)
        assert done.returncode == 0, done.stderr
        line = done.stdout.splitlines()[0]
        path = ROOT / "deploy" / "systemd" / f"gpuportal-{name}.service"
        wanted = unit(path)["ExecStart"].replace("%%h", "%h").split()[1:]
        assert line.split() == wanted
    line = start("manage", "createsuperuser").stdout.splitlines()[0]
    assert line == "manage.py createsuperuser"
    lines = start("migrate").stdout
    for command in ("migrate -v 0", "collectstatic --noinput", "check --deploy"):
        assert f"manage.py {command}" in lines


def test_settings_read_what_the_entrypoint_sets(container):
    start, secrets = container
    (secrets / "ca.pem").touch()
    (secrets / "email_url").write_text("smtp+tls://u:p@mail.example.org:587\n")
    lines = start("ingest").stdout.splitlines()[1:]
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    assert found["SECRET_KEY"] == SECRETS["secret_key"]
    assert found["DATABASE_URL"] == "postgres://gpuportal:db@database:5432/gpuportal"
    assert found["REDIS_URL"] == "rediss://portal:br@gpu.example.org:6379/0"
    assert found["EMAIL_URL"].startswith("smtp+tls://")
    settings = (ROOT / "gpuportal" / "settings.py").read_text()
    paths = (ROOT / "telemetry" / "paths.py").read_text()
    set_here = re.findall(r"^ *export ([^\n]+)", text("entrypoint"), re.M)
    names = set(re.findall(r"\b([A-Z_]{5,})(?==|$)", "\n".join(set_here), re.M))
    image = re.search(r"^ENV (.+)$", text("Containerfile"), re.M)
    names |= set(re.findall(r"(\w+)=", image[1])) if image else set()
    names |= set(COMPOSE["x-portal"]["environment"])
    names -= {"PORTAL_NAME", "PYTHONDONTWRITEBYTECODE"}
    # The web process and deploy/broker-user read them.
    names -= {"FORWARDED_ALLOW_IPS", "GPUPORTAL_BROKER_ADMIN_FILE"}
    assert {"SECRET_KEY", "GPUPORTAL_VAR", "ALLOWED_HOSTS", "EMAIL_URL"} <= names
    unknown = [name for name in names if f'"{name}"' not in settings + paths]
    assert unknown == []


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "cannot read"), ("", "is empty"), ("a b@c", "characters other than")],
)
def test_there_is_no_default_for_a_secret(container, name, value, said):
    start, secrets = container
    (secrets / name).unlink()
    if value is not None:
        (secrets / name).write_text(value)
    line = one_line(start("web"))
    assert said in line
    assert name in line


def test_machines_that_join_get_their_user_from_one_container_only(container, tmp_path):
    """It knows the password of the broker's admin, and no other container does."""
    start, secrets = container
    holders = {
        name
        for name, service in SERVICES.items()
        if {*ADMIN} & {*service.get("secrets", ())}
    }
    assert holders == {"broker-user"}
    assert not {*SECRETS} & {*SERVICES["broker-user"]["secrets"]}
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "socat").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nenv\n')
    (tools / "socat").chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    for name in SECRETS:
        (secrets / name).unlink()
    (secrets / "ca.pem").touch()
    done = start("broker-user", PATH=path)
    assert done.returncode == 0, done.stderr
    listen, program, *lines = done.stdout.splitlines()
    found = dict(line.split("=", 1) for line in lines)
    made = found["GPUPORTAL_BROKER_USER_SOCKET"]
    assert listen.startswith(f"UNIX-LISTEN:{made},fork,") and "mode=600" in listen
    # As gpuportal-broker-user.socket: four at a time.
    socket_unit = ROOT / "deploy" / "systemd" / "gpuportal-broker-user.socket"
    assert (
        unit(socket_unit, "Socket")["MaxConnections"]
        == listen.rpartition("max-children=")[2]
    )
    assert program == "EXEC:sh deploy/broker-user"
    script = (ROOT / "deploy" / "broker-user").read_text()
    for name in ("GPUPORTAL_BROKER_ADMIN_FILE", "GPUPORTAL_BROKER_CA_FILE"):
        assert f"${{{name}:-" in script and Path(found[name]).is_file()
    assert found["REDIS_URL"] == "rediss://admin@gpu.example.org:6379/0"
    # Both containers have the socket's folder, and the image makes it for their user.
    folder = str(Path(made).parent)
    for name in ("web", "broker-user"):
        assert f"broker-user:{folder}" in SERVICES[name]["volumes"]
    assert f"-m 700 {folder}" in text("Containerfile")
    (secrets / "broker_admin_password").unlink()
    assert "broker_admin_password" in one_line(start("broker-user", PATH=path))


def test_the_entrypoint_refuses_what_it_does_not_know(container):
    start, _ = container
    assert "unknown: shell" in one_line(start("shell"))
    assert "usage: web" in one_line(start())
    assert "the name that people type" in start("broker-user", PORTAL_NAME="").stderr
    assert "is the name that people type" in start("web", PORTAL_NAME="").stderr


def test_the_compose_file_names_what_there_is():
    assert {*NAMED} == OURS
    for name, service in SERVICES.items():
        assert service["networks"], name
        if name in OURS:
            assert service["command"] == [name]
            assert service["cap_drop"] == ["ALL"]
            assert "ports" not in service
        for other in service.get("depends_on", {}):
            assert other in SERVICES
        for secret in service.get("secrets", ()):
            assert secret in COMPOSE["secrets"]
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            at_home = source.startswith(".")
            assert (
                (FOLDER / source).exists() if at_home else source in COMPOSE["volumes"]
            )
    # Only pages and broker are open, and the broker's settings are those that ship.
    assert {name for name in SERVICES if "ports" in SERVICES[name]} == {
        *("proxy", "broker"),
    }
    check = SERVICES["web"]["healthcheck"]["test"]
    assert (ROOT / check[-1]).is_file()
    values = re.findall(
        r"^\s+\w*(?:PASSWORD|SECRET|KEY)\w*: *(\S+)", text("compose.yaml"), re.M
    )
    # The second is a public key, and the user's own.
    assert values == ["/run/secrets/database_password", "${GPUPORTAL_BACKUP_KEY:-}"]
    # Compose replaces a service together with those on which it depends.
    assert "depends_on" not in SERVICES["proxy"]


def test_a_backup_in_a_container_is_that_of_the_nightly_unit(container):
    start, _ = container
    path = ROOT / "deploy" / "systemd" / "gpuportal-backup.service"
    wanted = unit(path)["ExecStart"].replace('"', "").split()[1:]
    key = "age1public"
    line = start("backup", GPUPORTAL_BACKUP_KEY=key).stdout.splitlines()[0]
    assert line.split() == [
        word.replace("${GPUPORTAL_BACKUP_KEY}", key) for word in wanted
    ]
    line = start("backup", "--new-key", "FILE").stdout.splitlines()[0]
    assert line.split() == [*wanted[:-2], "--new-key", "FILE"]
    service = SERVICES["backup"]
    assert service["profiles"] == ["backup"]
    folder = wanted[2]
    # The scratch database is not in the memory of /tmp.
    assert service["environment"]["TMPDIR"] == folder
    assert f"backups:{folder}" in service["volumes"]
    image = text("Containerfile")
    assert f"FROM runtime AS {service['build']['target']}\n" in image
    assert f" {folder}\n" in image
    # The last stage is the image of all other services.
    assert image.rstrip().endswith("FROM runtime")


def test_the_documented_upgrade_replaces_every_process():
    page = (ROOT / "docs" / "packages.md").read_text()
    line = re.search(r"up -d --no-deps (.+)$", page, re.M)
    assert line
    assert {*line[1].split()} == OURS - {"migrate"}


def test_the_shipped_examples_have_what_the_scripts_replace(tmp_path):
    for script, example in (
        ("nginx.sh", "nginx.conf.example"),
        ("broker.sh", "redis.conf.example"),
    ):
        source = (ROOT / "deploy" / example).read_text()
        patterns = re.findall(r"-e '?\"?s([|/])(.+?)\1", text(script))
        assert patterns
        for _, pattern in patterns:
            assert re.search(pattern, source), (script, pattern)
    conf = tmp_path / "conf"
    done = run(
        "sh",
        FOLDER / "nginx.sh",
        PORTAL_NAME="gpu.uni.example",
        NGINX_EXAMPLE=str(ROOT / "deploy" / "nginx.conf.example"),
        NGINX_CONF=str(conf),
    )
    assert done.returncode == 0, done.stderr
    written = conf.read_text()
    assert "server_name gpu.uni.example;" in written
    assert "proxy_pass http://unix:/run/gpuportal/web.sock;" in written
    for gone in ("gpu.example.org", "127.0.0.1:", "/etc/gpuportal", "/opt/gpuportal"):
        assert gone not in written


def test_prepare_makes_the_secrets_once(tmp_path):
    script, to = FOLDER / "prepare", tmp_path / "made" / "secrets"
    to.parent.mkdir()
    for name in ("chain", "key", "ca"):
        (tmp_path / name).write_text(name)
    files = [tmp_path / "chain", tmp_path / "key", tmp_path / "ca"]
    given = {"GPUPORTAL_SECRETS_DIR": str(to)}
    assert "usage" in one_line(run("sh", script, "gpu.example.org", **given))
    line = one_line(run("sh", script, "a b", *files, **given))
    assert "no name of a host" in line
    line = one_line(run("sh", script, "gpu", "nowhere", *files[1:], **given))
    assert "cannot read nowhere" in line
    assert not to.exists()
    done = run("sh", script, "gpu.example.org", *files, **given)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in to.iterdir()} == {*COMPOSE["secrets"]}
    assert to.stat().st_mode & 0o777 == 0o700
    assert (to.parent / ".env").read_text() == "PORTAL_NAME=gpu.example.org\n"
    passwords = {(to / name).read_text() for name in SECRETS}
    assert len(passwords) == 3
    users = (to / "users.acl").read_text().splitlines()
    assert [line.split()[1] for line in users] == ["default", "portal", "admin"]
    assert not [p for p in passwords if p.strip() in (to / "users.acl").read_text()]
    again = one_line(run("sh", script, "gpu.example.org", *files, **given))
    assert "its passwords are in use" in again


def test_the_image_takes_no_secret_and_nothing_that_was_made():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    kept = [line[1:] for line in lines if line.startswith("!")]
    assert lines[1] == "*"
    assert all((ROOT / name).exists() for name in kept)
    assert not {"var", ".venv", ".git", "node_modules", "dist"} & {*kept}
    assert "deploy/container/secrets" in lines
    image = text("Containerfile")
    assert re.search(r"^USER gpuportal$", image, re.M)
    entry = re.search(r'^ENTRYPOINT \["/opt/gpuportal/(.+)"\]$', image, re.M)
    assert entry
    assert os.access(ROOT / entry[1], os.X_OK)
