"""``manage.py job``: submit, list, log, stop; one line and 2 for what is wrong."""

import io
import json

import pytest
from django.core.management import call_command

from placement.jobs.nodes import log_store
from placement.models import Job
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation

pytestmark = pytest.mark.django_db


@pytest.fixture
def reservation(alice):
    return make_reservation(
        alice, make_gpus(2, make_node("node-a")), state=State.ACTIVE
    )


def job(*words):
    out, err = io.StringIO(), io.StringIO()
    try:
        call_command("job", *map(str, words), stdout=out, stderr=err)
    except SystemExit as ended:
        return ended.code, err.getvalue()
    return 0, out.getvalue()


def test_a_job_is_submitted_listed_read_and_stopped(reservation):
    common = ("submit", "--user", "alice", "--reservation", reservation.pk)
    status, text = job(
        *common,
        "--name",
        "one",
        "--recipe",
        "burn-in",
        "--set",
        "seconds=5",
        "--gpus",
        1,
    )
    made = Job.objects.get()
    assert (status, text.strip()) == (0, str(made.pk))
    assert (made.recipe_settings["seconds"], made.gpu_count) == (5.0, 1)
    sweep = ("--sweep", "seconds=1,2", "--sweep", "exit_code=0,1")
    status, text = job(*common, "--name", "s", "--recipe", "burn-in", *sweep)
    assert status == 0 and len(text.split()) == 4
    assert "queued     alice         node-a        one" in job("list")[1]
    rows = json.loads(job("list", "--json", "--user", "alice", "--limit", 2)[1])
    assert len(rows) == 2 and rows[0]["name"] == "s: seconds=2 exit_code=1"
    Job.objects.filter(pk=made.pk).update(attempt=1)
    made.refresh_from_db()
    log_store.append(made, attempt=1, offset=0, data=b"first\nsecond \x1b]0;x\x07\n")
    assert job("log", made.pk) == (0, "first\nsecond \n")
    assert job("stop", made.pk, "--as", "alice")[1].strip() == "stopped"
    assert job("log", made.pk, "--follow")[0] == 0, "it has ended, so this ends"
    for field in ("log_cut_at", "log_dropped_at"):
        known = {"log_cut_at": None, "log_dropped_at": None, field: made.created_at}
        Job.objects.filter(pk=made.pk).update(log_bytes=10**6, **known)
        assert job("log", made.pk, "--follow")[0] == 0, "no more of it comes"


@pytest.mark.once
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("log", "x"), "job log: argument job: invalid int value: 'x'"),
        (("list", "--state", "x"), "invalid choice: 'x'"),
        (("log", 99), "there is no job 99"),
        (("stop", 99, "--as", "x"), "no user x"),
        (("stop", 99, "--as", "alice"), "job #99"),
        (("list", "--user", "x"), "no user x"),
        (("list", "--limit", 0), "at least 1"),
        (
            (
                "submit",
                "--user",
                "alice",
                "--reservation",
                1,
                "--name",
                "",
                "--recipe",
                "burn-in",
                "--set",
                "seconds=-1",
            ),
            "name: must be",
        ),
        (
            (
                "submit",
                "--user",
                "alice",
                "--reservation",
                999,
                "--name",
                "x",
                "--recipe",
                "burn-in",
            ),
            "reservation #999",
        ),
        (
            (
                "submit",
                "--user",
                "alice",
                "--reservation",
                1,
                "--name",
                "x",
                "--recipe",
                "burn-in",
                "--set",
                "seconds",
            ),
            "NAME=VALUE",
        ),
        (
            (
                "submit",
                "--user",
                "alice",
                "--reservation",
                1,
                "--name",
                "x",
                "--recipe",
                "burn-in",
                "--sweep",
                "seconds",
            ),
            "no '='",
        ),
        (
            (
                "submit",
                "--user",
                "alice",
                "--reservation",
                1,
                "--name",
                "x",
                "--script",
                "/nonexistent/file",
            ),
            "No such file",
        ),
    ],
)
def test_what_is_wrong_is_one_line(alice, capsys, words, told):
    status, text = job(*words)
    text += capsys.readouterr().err
    assert status == 2 and told in text and text.count("\n") == 1, text
