"""deploy/install runs the commands of docs/operations.md, or says why it does not."""

import subprocess

import pytest

from tests.gpuportal.deploy.test_operations_page import BLOCKS
from tests.house.walk import ROOT

pytestmark = pytest.mark.pure
INSTALL = ROOT / "deploy" / "install"
NAME = "gpu.example.org"
FILES = ("--certificate", "chain.pem", "the key.pem", "ca.pem")


def install(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(INSTALL), *words],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["install", "settings", "start", "login"])
def test_it_prints_every_command_of_the_page(name):
    printed = install(NAME, *FILES, "--print").stdout.splitlines()
    page = BLOCKS[f"portal-{name}"].splitlines()
    for line in page:
        assert line in printed or line.startswith("git clone "), line


def test_what_it_prints_is_shell_with_the_files_that_were_named():
    done = install(NAME, *FILES, "--address", "192.0.2.10", "--print")
    assert done.returncode == 0, done.stderr
    subprocess.run(["sh", "-n"], input=done.stdout, text=True, check=True)
    assert done.stdout.startswith(f"PORTAL='{NAME}'\nADDRESS='192.0.2.10'\n")
    assert "deploy/certificate 'chain.pem' 'the key.pem' 'ca.pem'\n" in done.stdout
    assert "git clone" not in done.stdout


def test_it_takes_a_certificate_of_lets_encrypt_and_other_packages():
    done = install(NAME, "--certbot", "--print", REQUIREMENTS="requirements.txt")
    assert BLOCKS["certbot"] in done.stdout
    assert "make setup REQUIREMENTS=requirements.txt\n" in done.stdout


def test_a_program_is_asked_no_login():
    done = install(NAME, "--certbot", "--print", DJANGO_SUPERUSER_PASSWORD="x")
    assert "gpuportal-manage createsuperuser --noinput\n" in done.stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((NAME,), "say where the certificate comes from"),
        ((NAME, *FILES, "--certbot"), "either --certificate or --certbot"),
        ((NAME, "--certificate", "chain.pem"), "needs the files CHAIN and KEY"),
        (("--certbot", "gpu'; reboot; '.org"), "is no name of a machine"),
        (("--certbot", "GPU"), "is no name of a machine"),
        ((NAME, "other.example.org", "--certbot"), "one name, not also other"),
        ((NAME, "--certbot", "--fast"), "unknown option --fast"),
        ((NAME, "--address"), "--address needs an address"),
        ((NAME, "--address", "$(reboot)", "--certbot"), "is no address"),
    ],
)
def test_wrong_words_are_one_line_and_status_2(words, reason):
    done = install(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("install: ")
    assert reason in line


def test_nothing_is_changed_where_the_code_is_elsewhere():
    done = install(NAME, "--certbot")
    assert done.returncode == 2
    assert "run it as root" in done.stderr or "belongs to /opt/gpuportal" in done.stderr
