"""Completion by real shells: commands, options, files, and numbers from the portal."""

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.utils import timezone

from gpuportal.pages import client_files
from reservations.accounts.api_tokens import create_token
from tests.factories import make_gpus, make_node, make_reservation

PATIENCE_SECONDS = 60.0
SHELLS = ("bash", "zsh", "fish")
STARTS = {"bash": ("bash", "--norc", "--noprofile", "-i"), "zsh": ("zsh", "-f", "-i")}


@pytest.fixture
def home(tmp_path):
    """Return the environment of a person whose PATH has the command gp."""
    folder = tmp_path / "bin"
    folder.mkdir()
    one = client_files.folder() / client_files.ONE_FILE
    (folder / "gp").write_text(f'#!/bin/sh\nexec {sys.executable} -S {one} "$@"\n')
    (folder / "gp").chmod(0o755)
    return {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TERM": "dumb",
        "LANG": "C.UTF-8",
        "PS1": "$ ",
        "INPUTRC": "/dev/null",
    }


def script(shell, home):
    made = subprocess.run(
        ["gp", "completion", shell], env=home, capture_output=True, check=True
    )
    return made.stdout.decode()


@contextmanager
def typed_into(shell, home, folder):
    """Yield a function that types into an interactive shell and waits for a text."""
    (folder / f"gp.{shell}").write_text(script(shell, home))
    pid, line = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(STARTS[shell][0], STARTS[shell], home)
    seen = b""

    def type_in(keys, wanted):
        nonlocal seen
        seen = b""
        os.write(line, keys.encode())
        until = time.monotonic() + PATIENCE_SECONDS
        while not re.search(wanted, seen.decode(errors="replace")):
            left = until - time.monotonic()
            assert left > 0, (keys, wanted, seen)
            if select.select([line], [], [], left)[0]:
                seen += os.read(line, 4096)
        return seen.decode(errors="replace")

    try:
        if shell == "zsh":
            type_in("autoload -Uz compinit; compinit -u -D; echo in''it\n", "init\r")
        type_in(f"source ./gp.{shell}; echo rea''dy\n", "ready\r")
        yield type_in
    finally:
        os.close(line)
        os.waitpid(pid, 0)


@pytest.mark.pure
@pytest.mark.parametrize("shell", sorted(STARTS))
def test_a_shell_completes_commands_options_choices_and_files(shell, home, tmp_path):
    (tmp_path / "train_long_name.py").touch()
    with typed_into(shell, home, tmp_path) as type_in:
        type_in("gp canc\t", r"gp cancel ")
        type_in("\x15gp book --rep\t", r"gp book --repeat ")
        type_in("\x15gp book --repeat we\t", r"--repeat we\x07?ek")
        type_in("\x15gp run train_\t", r"train_long_name\.py")
        type_in("\x15gp nonsense \t", r"nonsense")


@pytest.mark.pure
def test_fish_completes_commands_options_choices_and_files(home, tmp_path):
    (tmp_path / "train_long_name.py").touch()
    (tmp_path / "gp.fish").write_text(script("fish", home))

    def completed(line):
        words = f"source gp.fish; complete -C '{line}'"
        made = subprocess.run(
            ["fish", "--no-config", "-c", words],
            env=home,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        assert made.stderr == "", made.stderr
        return made.stdout

    assert completed("gp canc") == "cancel\tCancel a reservation before it starts.\n"
    assert completed("gp book --rep") == "--repeat\tmake a series\n"
    assert completed("gp book --repeat we") == "weekdays\nweekly\n"
    assert completed("gp run train_") == "train_long_name.py\n"
    assert completed("gp nonsense ") == ""
    assert "\nlogin\t" in completed("gp ")


@pytest.mark.pure
@pytest.mark.parametrize("shell", SHELLS)
def test_the_syntax_of_a_script(shell, home):
    assert shutil.which(shell), f"tests/programs.py brings {shell}"
    made = subprocess.run(
        [shell, "-n"], input=script(shell, home), capture_output=True, text=True
    )
    assert (made.returncode, made.stderr) == (0, "")


# --- what the client answers ------------------------------------------------------


@pytest.fixture
def completed(gp):
    """Return a function that completes words in the test's process: {value: about}."""

    def call(*words):
        found = gp("__complete", *words)
        assert (found.status, found.err) == (0, ""), found
        rows = [line.partition("\t") for line in found.out.splitlines()]
        return {value: about for value, _, about in rows}

    return call


@pytest.mark.once
@pytest.mark.django_db(transaction=True)
def test_numbers_come_with_a_description_and_are_kept_for_seconds(
    completed, gp, alice, bob, tmp_path, monkeypatch
):
    from gpuportal_client import completion as client

    monkeypatch.setattr(client, "PATIENCE_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(client, "FRESH_SECONDS", 3600)
    gpus = make_gpus(2, make_node("node-a"))
    one = make_reservation(alice, gpus[:1], state="active", purpose="thesis: run 3")
    make_reservation(bob, gpus[1:], state="active", purpose="secret")
    past = make_reservation(
        alice, gpus[1:], one.start - timedelta(hours=9), one.start, state="ended"
    )
    assert set(completed("usage", "")) == {str(one.pk), str(past.pk)}
    shown = completed("extend", "")
    assert list(shown) == [str(one.pk)]
    assert shown[str(one.pk)].startswith("active, ")
    assert shown[str(one.pk)].endswith("thesis: run 3")
    kept = tmp_path / "kept" / "completion.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert list(completed("extend", "9")) == []
    assert list(completed("extend", str(one.pk), "")) == [], "one number is enough"
    assert list(completed("run", "--reservation=")) == [f"--reservation={one.pk}"]
    assert list(completed("--line", "gp book --on node-a:")) == ["node-a:0", "node-a:1"]
    assert "node-a" in completed("gpus", "--node", "")
    assert list(completed("gpus", "--node", "node-a", "--f")) == ["--free"]

    later = one.end + timedelta(hours=2)
    two = make_reservation(alice, gpus[1:], later, state="confirmed")
    assert list(completed("release", "")) == [str(one.pk)], "kept"
    known = json.loads(kept.read_text())
    known["reservation"]["at"] -= 3601
    kept.write_text(json.dumps(known))
    assert set(completed("release", "")) == {str(one.pk), str(two.pk)}
    _, other = create_token(
        user=bob, label="t", scopes=["read"], days=1, now=timezone.now()
    )
    monkeypatch.setenv("GPUPORTAL_TOKEN", other)
    assert str(one.pk) not in completed("release", ""), "kept for another person"
    for text in ("[]", "nonsense", '{"whose": 5}'):
        kept.write_text(text)
        assert len(completed("release", "")) == 1


@pytest.mark.pure
def test_completion_is_silent_and_quick_without_a_portal(main, capfd, monkeypatch):
    from gpuportal_client import completion

    def complete(*words):
        assert main(["__complete", *words]) == 0
        return capfd.readouterr()

    monkeypatch.delenv("GPUPORTAL_TOKEN", raising=False)
    assert complete("extend", "") == ("", "")
    monkeypatch.setenv("GPUPORTAL_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("GPUPORTAL_TOKEN", "gp_t")
    assert complete("extend", "") == ("", "")
    called = []

    def stuck(to):
        called.append(1)
        time.sleep(3600)

    monkeypatch.setattr(completion, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setitem(completion.FETCHED, "job", stuck)
    assert complete("log", "") == complete("log", "") == ("", "")
    assert called == [1], "the portal that is away is kept, too"


@pytest.mark.pure
def test_what_stands_on_the_line_decides(main, capfd):
    def complete(*words):
        assert main(["__complete", *words]) == 0
        out, err = capfd.readouterr()
        assert err == ""
        return [line.partition("\t")[0] for line in out.splitlines()]

    assert {"gpus", "book", "completion"} <= set(complete(""))
    assert not {"tunnel", "certificate"} & set(complete(""))
    assert complete("completion", "") == ["bash", "zsh", "fish"]
    assert complete("waitlist", "w") == ["withdraw"]
    assert complete("run", "") == complete("keys", "add", "") == [":files"]
    assert complete("files", "5", "--to", "") == [":folders"]
    assert complete("ssh", "17", "--", "") == [":files"]
    assert "--json" not in complete("jobs", "--json", "--")
    assert "--on" in complete("book", "--on", "node-a:0", "--")
    assert complete("book", "--for", "") == complete("nonsense", "") == []
    assert complete("--line", 'gp book --for "half a wo') == []
    assert complete() == complete("")
    assert complete("--line", "gp cance") == ["cancel"]
    assert complete("--v") == ["--version"]
