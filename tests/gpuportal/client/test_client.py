"""The students' client, one file, against the portal over HTTP."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest
from django.utils import timezone

from gpuportal.pages import client_files
from placement.jobs.nodes import log_store, result_files
from placement.models import Job, ResultFile
from reservations.accounts.api_tokens import create_token
from reservations.models import Reservation
from tests.factories import make_gpus, make_node, make_reservation

CLIENT = client_files.folder() / client_files.ONE_FILE


def gp(folder, *words, cwd=None, **more):
    env = {"PATH": os.environ["PATH"], "XDG_CONFIG_HOME": str(folder), "TZ": "UTC"}
    done = subprocess.run(
        [sys.executable, "-S", str(CLIENT), *map(str, words)],
        env=env | more,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


# It starts about 40 processes, one after another.
@pytest.mark.once
@pytest.mark.timeout(600)
@pytest.mark.django_db(transaction=True)
def test_a_student_books_runs_follows_extends_and_gives_back(
    live_server, alice, tmp_path, settings
):
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    make_gpus(2, make_node("node-a"))
    _, token = create_token(
        user=alice,
        label="laptop",
        scopes=["read", "book", "job"],
        days=1,
        now=timezone.now(),
    )
    assert gp(tmp_path, "mine") == (
        2,
        "gp.py: not signed in: gp.py login https://your.portal\n",
    )
    status, text = gp(tmp_path, "login", live_server.url, GPUPORTAL_TOKEN=token)
    kept = tmp_path / "gpuportal" / "login.json"
    assert status == 0 and kept.stat().st_mode & 0o777 == 0o600, text

    status, text = gp(tmp_path, "find", "--gpus", 2, "--hours", 1)
    assert status == 0 and "node-a:0, node-a:1\n" in text, text
    status, text = gp(tmp_path, "book", "--gpus", 1, "--hours", 1, "--for", "run 3")
    made = Reservation.objects.get()
    assert status == 0 and text.startswith(f"reservation {made.pk}: "), text
    assert "run 3" in gp(tmp_path, "mine")[1]
    before = made.end
    assert gp(tmp_path, "extend", made.pk, "--hours", 1)[0] == 0
    made.refresh_from_db()
    assert made.end == before + timedelta(hours=1)

    script = tmp_path / "train.sh"
    script.write_text('echo "$@"\n')
    status, text = gp(
        tmp_path, "run", script, "--reservation", made.pk, "--", "-x", "a b"
    )
    assert status == 0, text
    job = Job.objects.get()
    assert job.arguments == ["-x", "a b"], text
    _python_as_typed(tmp_path, made)
    _modules_go_with_the_script(tmp_path / "proj", made)
    assert f"{job.pk}  queued" in gp(tmp_path, "jobs")[1]
    log_store.append(job, attempt=0, offset=0, data="one\nzwei ✓\n".encode())
    assert gp(tmp_path, "log", job.pk) == (0, "one\nzwei ✓\n")
    assert gp(tmp_path, "stop", job.pk) == (0, "stopped\n")
    status, text = gp(tmp_path, "log", job.pk, "--follow")
    assert status == 1 and f"job {job.pk} stopped: stopped by its owner" in text
    settings.MEDIA_ROOT = tmp_path
    _files_come_back(tmp_path, job)
    assert gp(tmp_path, "release", made.pk)[0] == 0
    made.refresh_from_db()
    assert made.state in ("released", "cancelled")

    status, text = gp(tmp_path, "book", "--gpus", 99, "--hours", 1)
    assert status == 2 and text.startswith("gp.py: "), text
    assert gp(tmp_path, "extend", 99, "--hours", 1)[0] == 1
    status, text = gp(tmp_path, "find", "--hours", "many")
    assert status == 2 and "'many'" in text and text.count("\n") == 1, text
    assert gp(tmp_path, "run", "/nonexistent", "--reservation", 1)[0] == 2
    script.write_bytes(b"\xff\xfe")
    status, text = gp(tmp_path, "run", script, "--reservation", made.pk)
    assert (status, text) == (2, f"gp.py: {script} is not a text file\n")
    _bad_input_is_told(tmp_path, live_server.url, token)
    assert json.loads(kept.read_text())["token"] == token


def _python_as_typed(tmp_path, made):
    """A .py file is started by python unless the person requests another program."""
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    here = ("--reservation", made.pk)
    venv = ("--env", "/home/alice/venv")

    def launched(*words):
        status, text = gp(tmp_path, "run", *words)
        assert status == 0, text
        job = Job.objects.latest("pk")
        return job.started_with, job.environment_folder

    assert launched(script, *here) == ("python", "")
    assert launched(script, *here, *venv, "--launcher", "torchrun") == (
        "torchrun",
        "/home/alice/venv",
    )
    assert launched(script, *here, "--launcher", "none") == ("", "")
    # A node may have only python3, so the usual line of examples means the launcher.
    script.write_text("#!/usr/bin/env python\nprint(1)\n")
    assert launched(script, *here) == ("python", "")
    script.write_text("#!/usr/bin/env -S uv run --script\nprint(1)\n")
    assert launched(script, *here) == ("", "")
    last = Job.objects.latest("pk")
    assert launched(script, *here, "--after", last.pk) == ("", "")
    assert Job.objects.latest("pk").after == last
    launched(script, *here, "--retries", 2, "--retry-failed")
    made = Job.objects.latest("pk")
    assert (made.retries, made.retry_failed) == (2, True)
    assert f"waits until job {last.pk} is done" in gp(tmp_path, "jobs")[1]
    status, text = gp(tmp_path, "run", script, *here, "--after", 10**9)
    assert status == 2 and "after: there is no job" in text, text
    status, text = gp(tmp_path, "run", script, *here, "--plan", 99)
    assert status == 1 and "plan #99" in text, text
    _requirements_go_with_it(script, here)
    recipe = ("run", "--recipe", "burn-in", *here, *venv)
    assert gp(tmp_path, *recipe) == (
        2,
        "gp.py: --env and --launcher are for a script\n",
    )


def _requirements_go_with_it(script, here):
    """A requirements file of this machine is sent, with those that it includes."""
    top = script.parent
    (top / "needs").mkdir()
    (top / "needs" / "all.txt").write_text("-r base.txt  # first\ntorch\n")
    (top / "needs" / "base.txt").write_text("numpy\n")

    def run(name, path=script, **how):
        return gp(top, "run", path, *here, "--alone", "--env", name, **how)

    status, text = run("needs/all.txt", cwd=top)
    job = Job.objects.latest("pk")
    assert (status, job.environment_folder) == (0, "./needs/all.txt"), text
    assert sorted(job.script_folder.files) == ["needs/all.txt", "needs/base.txt"]
    # Above the script's folder, as beside the code in a repository.
    below = top / "needs" / "train.py"
    below.write_text("print(1)\n")
    (top / "requirements.txt").write_text("torch\n")
    status, text = run("requirements.txt", below, cwd=top)
    job = Job.objects.latest("pk")
    assert (status, job.environment_folder) == (0, "./requirements.txt"), text
    assert job.script_folder.files == {"requirements.txt": "torch\n"}
    status, text = run("/requirements.txt", cwd=top)
    assert (status, Job.objects.latest("pk").environment_folder) == (
        0,
        "/requirements.txt",
    ), text
    (top / "needs" / "requirements.txt").write_text("numpy\n")
    (top / "odd.txt").write_text("-r ../base.txt\n")
    for name, path, why in (
        ("none.txt", script, "there is no such file here. For one on the node"),
        ("requirements.txt", below, "has the same name"),
        ("odd.txt", script, "base.txt: there is no such file"),
    ):
        status, text = run(name, path, cwd=top)
        assert status == 2 and why in text, text


def _modules_go_with_the_script(proj, made):
    """Local modules are found and sent. What is not sent is named before the upload."""
    (proj / "models").mkdir(parents=True)
    (proj / "models" / "__init__.py").touch()
    (proj / "models" / "net.py").write_text("from . import sizes\n")
    (proj / "models" / "sizes.py").write_text("width = 8\n")
    (proj / "datautils.py").write_text("import models.net, mylinks, train\n")
    (proj / "mysecrets.py").write_text("password = 1\n")
    (proj / ".gitignore").write_text("mysecrets.py\n")
    (proj / "conf.yaml").write_text("a: 1\n")
    (proj / "mylinks.py").symlink_to("/etc/hostname")
    script = proj / "train.py"
    script.write_text(
        "import torch, datautils, mysecrets\nopen('conf.yaml')\nopen('no.yaml')\n"
    )
    subprocess.run(["git", "init", "-q", proj], check=True)
    # No tick runs here.
    Reservation.objects.filter(pk=made.pk).update(state="active")
    status, text = gp(proj.parent, "run", script)
    job = Job.objects.latest("pk")
    assert status == 0 and text.splitlines()[1:5] == [
        "sent with train.py: datautils.py, models/__init__.py, models/net.py, "
        "models/sizes.py, train.py (0.1 KiB)",
        "not sent: conf.yaml is named in the code: --beside conf.yaml sends it",
        "not sent: mylinks.py is a link out of the folder",
        "not sent: mysecrets.py is ignored by Git: --beside mysecrets.py sends it",
    ], text
    assert f"\nin reservation {made.pk}  " in text
    assert job.reservation == made
    assert job.script_folder.files["models/sizes.py"] == "width = 8\n"
    words = ("run", script, "--alone", "--beside", proj / "mysecrets.py")
    status, text = gp(proj.parent, *words)
    assert status == 0 and "sent with train.py: mysecrets.py (" in text, text
    assert "not sent" not in text
    status, text = gp(proj.parent, "run", script, "--beside", "/etc/hostname")
    assert status == 2 and "/etc/hostname is not in the folder" in text, text
    (proj / "models" / "sizes.py").write_text("#" * 2**20)
    status, text = gp(proj.parent, "run", script)
    assert status == 2 and "the largest: models/sizes.py" in text, text
    Reservation.objects.filter(pk=made.pk).update(state="confirmed")
    status, text = gp(proj.parent, "run", script, "--alone")
    assert status == 2 and "none of your reservations runs now" in text, text


def _files_come_back(tmp_path, job):
    """A job's files are listed and downloaded, and never overwrite existing ones."""
    left = ResultFile.objects.create(
        job=job,
        attempt=0,
        path="plots/loss.svg",
        size_bytes=4,
        sha256=hashlib.sha256(b"<svg").hexdigest(),
        complete_at=timezone.now(),
    )
    result_files.path_of(left).parent.mkdir(parents=True)
    result_files.path_of(left).write_bytes(b"<svg")
    assert "plots/loss.svg  here" in gp(tmp_path, "files", job.pk)[1]
    place = tmp_path / "got" / "plots" / "loss.svg"
    got = ("files", job.pk, "--get", "--to", tmp_path / "got")
    assert gp(tmp_path, *got) == (0, f"{place}\n") and place.read_bytes() == b"<svg"
    assert gp(tmp_path, *got)[0] == 2  # nothing is written over
    assert gp(tmp_path, "files", job.pk, "other")[0] == 2


def _bad_input_is_told(tmp_path, url, token):
    """Invalid addresses, tokens and numbers each have their exit status."""
    dead = {"GPUPORTAL_URL": "http://127.0.0.1:9", "GPUPORTAL_TOKEN": token}
    assert gp(tmp_path, "mine", **dead)[0] == 3
    plain = {"GPUPORTAL_URL": "http://portal.example", "GPUPORTAL_TOKEN": token}
    assert "must begin with https://" in gp(tmp_path, "mine", **plain)[1]
    assert gp(tmp_path, "extend", 99, "--hours", "nan")[0] == 2
    assert gp(tmp_path, "find", "--hours", -3)[0] == 2
    assert gp(tmp_path, "login", url, GPUPORTAL_TOKEN="")[0] == 2
    wrong = {"GPUPORTAL_URL": url, "GPUPORTAL_TOKEN": "gp_wrong"}
    assert gp(tmp_path, "jobs", **wrong)[0] == 1


@pytest.mark.once
@pytest.mark.django_db(transaction=True)
def test_a_ready_recipe_is_launched_from_a_shell(live_server, alice, tmp_path):
    """Own scripts are refused on this site, but everybody may run the recipes."""
    booked = make_reservation(alice, make_gpus(1, make_node("node-a")), state="active")
    _, token = create_token(
        user=alice,
        label="laptop",
        scopes=["read", "book", "job"],
        days=1,
        now=timezone.now(),
    )
    here = {"GPUPORTAL_URL": live_server.url, "GPUPORTAL_TOKEN": token}
    run = ("run", "--reservation", booked.pk, "--recipe")
    status, text = gp(
        tmp_path, *run, "burn-in", "--set", "seconds=30", "--name", "try", **here
    )
    assert status == 0, text
    job = Job.objects.get()
    assert (job.recipe, job.name, job.recipe_settings["seconds"]) == (
        "burn-in",
        "try",
        30.0,
    )
    assert "waits for" in gp(tmp_path, "jobs", **here)[1]
    script = tmp_path / "train.sh"
    script.write_text("id\n")
    for words, said in (
        ((*run, "nosuch"), "Choose one of: "),
        ((*run, "burn-in", "--set", "colour=red"), "no such setting"),
        ((*run, "burn-in", "--set", "seconds=-1"), "must be 0 to 604,800"),
        ((*run, "burn-in", "--set", "seconds"), "is not NAME=VALUE"),
        ((*run, "burn-in", script), "give a script or --recipe"),
        (("run", "--reservation", booked.pk), "give a script or --recipe"),
    ):
        status, text = gp(tmp_path, *words, **here)
        assert (status, said in text) == (2, True), (words, text)
    assert Job.objects.count() == 1


class LosesAnswers(BaseHTTPRequestHandler):
    """A portal that books, and loses the first answer."""

    slot: ClassVar = {"gpu_ids": [1], "start": "2027-01-18T09:00:00Z"}
    slot |= {"end": "2027-01-18T10:00:00Z", "kind": "firm"}
    keys: ClassVar[list[str]] = []

    def do_GET(self):
        rows = {"gpus": [{"id": 1, "node": "node-a", "index": 0}]}
        self.answer({"slots": [self.slot]} if "/slots" in self.path else rows)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.keys.append(self.headers["Idempotency-Key"])
        if len(self.keys) == 1:
            self.close_connection = True
        else:
            self.answer(self.slot | {"id": 7})

    def answer(self, told):
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args):
        pass


@pytest.mark.pure
def test_a_booking_whose_answer_is_lost_is_sent_again_with_the_same_key(tmp_path):
    with HTTPServer(("127.0.0.1", 0), LosesAnswers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        (tmp_path / "gpuportal").mkdir()
        address = f"http://127.0.0.1:{server.server_port}"
        kept = json.dumps({"url": address, "token": "gp_x"})
        (tmp_path / "gpuportal" / "login.json").write_text(kept)
        try:
            status, text = gp(tmp_path, "book", "--gpus", 1, "--hours", 1)
        finally:
            server.shutdown()
            thread.join()
    assert status == 0 and text.startswith("reservation 7: "), text
    first, again = LosesAnswers.keys
    assert first == again and len(first) > 30
