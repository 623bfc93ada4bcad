"""The students' client as people get it: one file, and a wheel for pipx."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders
from django.utils import timezone

from gpuportal.pages import client_files
from gpuportal.pages.client_version import HEADER
from reservations.accounts.api_tokens import create_token

VERSION = f"gp {client_files.version()}\n"


def said(*words, **more):
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=120, **more
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.pure
def test_one_file_runs_under_any_name_without_packages(tmp_path):
    one = client_files.folder() / client_files.ONE_FILE
    copy = tmp_path / "portal"
    copy.write_bytes(one.read_bytes())
    assert said(sys.executable, "-I", "-S", copy, "--version") == (0, VERSION, "")
    assert one.stat().st_mode & 0o111, "./gp.py runs"
    head = one.read_bytes().splitlines()[:2]
    assert head[0] == b"#!/usr/bin/env python3"
    assert client_files.version().encode() in head[1]
    home = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    status, _, words = said(sys.executable, "-S", copy, "mine", env=home)
    assert (status, words) == (
        2,
        "portal: not signed in: portal login https://your.portal\n",
    )


@pytest.mark.pure
def test_the_client_needs_the_standard_library_only():
    found = set()
    for path in client_files.PACKAGE.glob("*.py"):
        text = path.read_text()
        found |= set(re.findall(r"^\s*(?:from|import) (\w+)", text, re.M))
    strange = found - sys.stdlib_module_names
    socket_text = (client_files.PACKAGE / "websocket.py").read_text()
    # A faster mask where the package websockets is installed.
    assert strange == {"gpuportal_client", "websockets"}
    assert socket_text.count("websockets.") == 1
    assert "except ImportError:" in socket_text


@pytest.mark.pure
def test_on_windows_a_thread_feeds_what_select_waits_for(main):
    from gpuportal_client import ssh_tunnel

    source, sink = os.pipe()
    here = ssh_tunnel._copied(source)
    os.write(sink, b"typed")
    os.close(sink)
    data = b""
    while piece := here.recv(2):
        data += piece
    assert data == b"typed"
    here.close()
    os.close(source)


@pytest.mark.pure
def test_pip_installs_the_wheel_and_the_command_runs(tmp_path):
    """pipx makes an environment and calls pip in it. Neither needs the network."""
    wheel = client_files.folder() / client_files.wheel_name()
    with zipfile.ZipFile(wheel) as archive:
        facts = next(n for n in archive.namelist() if n.endswith("METADATA"))
        assert "Requires-Python: >=3.9" in archive.read(facts).decode()
    venv.create(tmp_path, with_pip=False, symlinks=True)
    python = tmp_path / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
    options = ("--no-index", "--disable-pip-version-check", "--no-compile")
    status, _, words = said(*pip, *options, wheel)
    assert status == 0, words
    assert said(tmp_path / "bin" / "gp", "--version", cwd=tmp_path) == (0, VERSION, "")


@pytest.mark.pure
def test_the_folder_itself_runs_without_shadowing_modules(tmp_path):
    words = (sys.executable, "-S", client_files.PACKAGE, "--version")
    assert said(*words, cwd=tmp_path) == (0, VERSION, "")


@pytest.mark.pure
def test_other_sources_get_another_folder_and_old_ones_go(tmp_path, monkeypatch):
    package = tmp_path / "project" / "gpuportal_client"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""One."""\n__version__ = "1.0"\n')
    text = (client_files.PROJECT / "pyproject.toml").read_text()
    (package.parent / "pyproject.toml").write_text(text)
    monkeypatch.setattr(client_files, "PROJECT", package.parent)
    monkeypatch.setattr(client_files, "PACKAGE", package)
    monkeypatch.setattr(client_files, "var_dir", lambda: tmp_path / "var")
    made = []
    for number in range(4):
        (package / "numbers.py").write_text(f"n = {number}\n")
        made.append(client_files.folder())
        os.utime(made[-1], (number, number))
        assert client_files.folder() == made[-1]
        assert client_files.wheel_name(), "flit_core is a requirement"
    assert len(set(made)) == 4
    assert sorted((tmp_path / "var" / "client").iterdir()) == sorted(made[-2:])
    first = (made[-1] / client_files.ONE_FILE).read_bytes()
    for path in made[-1].iterdir():
        path.unlink()
    made[-1].rmdir()
    assert (client_files.folder() / client_files.ONE_FILE).read_bytes() == first


@pytest.mark.pure
def test_a_host_without_flit_still_offers_the_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr(client_files, "var_dir", lambda: tmp_path)
    monkeypatch.setattr(client_files.sys, "executable", "/bin/false")
    assert client_files.names() == [client_files.ONE_FILE]
    assert client_files.wheel_name() == ""


@pytest.mark.pure
def test_the_files_are_found_below_the_address_of_the_page():
    for name in client_files.names():
        found = finders.find(f"client/{name}")
        assert Path(found) == client_files.folder() / name
    for name in ("client/", "client/../gp.py", "client/absent", "gp.py"):
        assert finders.find(name) is None, name


def gp(place, server, token, *words):
    here = {"GPUPORTAL_URL": server, "GPUPORTAL_TOKEN": token}
    home = {"PATH": os.environ["PATH"], "XDG_CONFIG_HOME": str(place), "TZ": "UTC"}
    one = client_files.folder() / client_files.ONE_FILE
    return said(sys.executable, "-S", one, *words, env=here | home)


@pytest.mark.once
@pytest.mark.django_db(transaction=True)
def test_the_page_offers_both_and_an_old_client_says_so_once_a_day(
    live_server, alice, client, tmp_path, monkeypatch
):
    client.force_login(alice)
    page = client.get("/me/").content.decode()
    wheel = f"http://testserver/static/client/{client_files.wheel_name()}"
    assert f"pipx install {wheel}</code>" in page
    assert 'href="/static/client/gp.py" download="gp.py"' in page

    _, token = create_token(
        user=alice, label="t", scopes=["read"], days=1, now=timezone.now()
    )
    here = (tmp_path, live_server.url, token, "jobs")
    assert gp(*here) == (0, "", "")
    for offered in ("0.0.9", "nonsense", "9" * 5000, ""):
        monkeypatch.setattr(client_files, "version", lambda offered=offered: offered)
        assert gp(*here) == (0, "", ""), offered
    monkeypatch.setattr(client_files, "version", lambda: "10.1")
    assert client.get("/api/v1/jobs").headers[HEADER] == "10.1"
    assert HEADER not in client.get("/me/").headers
    words = "gp.py: the portal offers version 10.1 (page Settings), this is "
    assert gp(*here) == (0, "", f"{words}{VERSION[3:]}")
    assert gp(*here) == (0, "", "")
    os.utime(tmp_path / "gpuportal" / "newer-version", (1, 1))
    assert gp(*here)[2].startswith(words)
