"""A node has its own settings and nothing of the control side."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuportal.node_settings import NodeSettings, NodeSettingsError
from gpuportal.supervisor.process_table import node_environ
from tests.house.walk import ROOT

ENVIRON = {
    "GPUPORTAL_NODE": "atlas",
    "GPUPORTAL_NODE_REDIS_URL": "unix:///run/v.sock?db=0",
    "GPUPORTAL_WEB_URL": "http://127.0.0.1:8010/",
    "GPUPORTAL_NODE_TOKEN_FILE": "/etc/gpuportal/token",
    "GPUPORTAL_ORDER_KEY_FILE": "/etc/gpuportal/order_key.pub",
    "GPUPORTAL_NODE_DIR": "/var/lib/gpuportal",
}
# Every trace of the control side that an import could leave.
PROBE = """
import sys
import gpuportal.node
loaded = {name.partition(".")[0] for name in sys.modules}
print(sorted(loaded & {"django", "channels", "reservations", "environ", "torch"}))
print(gpuportal.node.app.conf.accept_content, gpuportal.node.app.conf.result_backend)
print("node.order" in gpuportal.node.app.tasks)
"""


def test_the_settings_come_from_the_environment():
    node = NodeSettings.from_env(ENVIRON)
    assert node.name == "atlas"
    assert node.queue == "node.atlas"
    assert node.web_url == "http://127.0.0.1:8010"
    assert node.broker_url == "redis+socket:///run/v.sock?virtual_host=0"
    assert node.backend == "auto"
    assert node.supervisor_pid is None
    assert node.isolation == "auto"
    with pytest.raises(NodeSettingsError, match="'most', not one of auto, watched"):
        NodeSettings.from_env(ENVIRON | {"GPUPORTAL_ISOLATION": "most"})
    assert NodeSettings.from_env(ENVIRON).sshd_port == 0
    with_ssh = ENVIRON | {"GPUPORTAL_SSHD_PORT": "22"}
    assert NodeSettings.from_env(with_ssh).sshd_port == 22
    for port in ("ssh", "-1", "65536", "²"):
        with pytest.raises(NodeSettingsError, match="not a port"):
            NodeSettings.from_env(ENVIRON | {"GPUPORTAL_SSHD_PORT": port})
    assert node.allow_scripts is False


@pytest.mark.parametrize("variable", ENVIRON)
def test_a_missing_variable_is_named(variable):
    left = {name: value for name, value in ENVIRON.items() if name != variable}
    with pytest.raises(NodeSettingsError) as caught:
        NodeSettings.from_env(left)
    assert str(caught.value) == f"{variable} is not set"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("GPUPORTAL_NODE", "../etc"),
        ("GPUPORTAL_NODE", "a.b"),
        ("GPUPORTAL_NODE", "x" * 64),
        ("GPUPORTAL_BACKEND", "rocm"),
        ("GPUPORTAL_BACKEND", "simulated"),
        ("GPUPORTAL_SUPERVISOR_PID", "-1"),
        ("GPUPORTAL_SUPERVISOR_PID", "me"),
        ("GPUPORTAL_ALLOW_SCRIPTS", "yes"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(variable, value):
    with pytest.raises(NodeSettingsError):
        NodeSettings.from_env({**ENVIRON, variable: value})


def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path):
    path = tmp_path / "token"
    node = NodeSettings.from_env({**ENVIRON, "GPUPORTAL_NODE_TOKEN_FILE": str(path)})
    with pytest.raises(NodeSettingsError, match="No such file"):
        node.token()
    path.write_text("\n")
    with pytest.raises(NodeSettingsError, match="which is empty"):
        node.token()
    path.write_text("secret\n")
    assert node.token() == "secret"


def test_the_node_app_starts_without_database_and_secret_key(tmp_path: Path):
    environ = {
        **{k: os.environ[k] for k in ("PATH", "HOME") if k in os.environ},
        **ENVIRON,
        "GPUPORTAL_NODE_DIR": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "['json'] None", "True"]
    assert list(tmp_path.iterdir()) == []


def test_the_supervisor_passes_no_secret_on_to_a_node():
    given = node_environ(
        {
            "PATH": "/bin",
            "CUDA_VISIBLE_DEVICES": "0",
            "SECRET_KEY": "x",
            "DATABASE_URL": "postgres://",
            "REDIS_URL": "redis://",
            "EMAIL_HOST_PASSWORD": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "GPUPORTAL_VAR": "/srv",
        }
    )
    assert given == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0"}
