"""``python -m placement.planner``: the same answers as ``manage.py``; bad input."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command

from placement.planner.cli import json_input
from placement.planner.cli.main import main

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[4]
GIB = 2**30
GPUS = [
    {"name": "NVIDIA A100 80GB", "free_bytes": 70 * GIB, "link_group": "a"},
    {"name": "NVIDIA A100 80GB", "free_bytes": 40 * GIB, "link_group": "a"},
]
CASE = {"layer_bytes": [4, 4, 4], "free_bytes": [10, 5]}


@pytest.fixture
def gpus(tmp_path):
    path = tmp_path / "gpus.json"
    path.write_text(json.dumps(GPUS))
    return str(path)


@pytest.fixture
def cases(tmp_path):
    path = tmp_path / "cases.json"
    path.write_text(json.dumps([CASE, {"layer_bytes": [9], "free_bytes": [5]}]))
    return str(path)


def by_manage(*words):
    out = io.StringIO()
    call_command(*words, stdout=out)
    return out.getvalue()


def timeless(answer):
    """Return an answer of estimate without the processor time that it took."""
    if answer.startswith("{"):
        return {**json.loads(answer), "seconds": 0}
    return answer.split("\n", 1)[1]


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_estimate_answers_as_manage_does(capsys, more):
    words = ("estimate", "gpt2", "--strategy", "zero2", "--ranks", "2", *more)
    assert main(words) == 0
    assert timeless(capsys.readouterr().out) == timeless(by_manage(*words))


@pytest.mark.parametrize("more", [(), ("--json",), ("--wish", "fastest")])
def test_plan_answers_as_manage_does(capsys, gpus, more):
    words = ("plan", "gpt2", "--gpus", gpus, *more)
    assert main(words) == 0
    assert capsys.readouterr().out == by_manage(*words)


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_split_answers_as_manage_does(capsys, cases, more):
    words = ("split", "--from", cases, *more)
    assert main(words) == 0
    assert capsys.readouterr().out == by_manage(*words)


@pytest.mark.parametrize("more", [(), ("--json",), ("Tesla T4",)])
def test_cards_answers_as_manage_does(capsys, more):
    assert main(["cards", *more]) == 0
    assert capsys.readouterr().out == by_manage("cards", *more)


def test_an_unknown_card_is_said_to_be_unknown(capsys):
    assert main(["cards", "Matrox G200"]) == 2
    assert "its speed is unknown" in capsys.readouterr().err


def test_a_file_is_read_in_a_child_process(capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", "n_layer": 3}))
    assert main(["estimate", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["param_bytes"] > 0


def test_a_dash_reads_standard_input():
    done = subprocess.run(
        [sys.executable, "-m", "placement.planner", "split", "--json", "--from", "-"],
        cwd=ROOT,
        env={"PATH": os.defpath},
        input=json.dumps(CASE),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["bounds"] == [0, 2, 3]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "arguments are required: COMMAND"),
        (("guess",), "invalid choice: 'guess'"),
        (("\x1b[2J\n",), "invalid choice"),
        (("estimate",), "source: give a SOURCE or --spec FILE"),
        (("estimate", "no-such-model"), "source: 'no-such-model' is not a file"),
        (("estimate", "gpt2", "--batch", "0"), "batch: must be a whole number"),
        (("estimate", "gpt2", "--batch", "many"), "argument --batch: invalid int"),
        (("estimate", "gpt2", "--precision", "fp3"), "argument --precision"),
        (("estimate", "gpt2", "--strategy", "pipeline"), "`plan` estimates each"),
        (("estimate", "--spec", "/no/such.json"), "spec: /no/such.json: cannot be"),
        (("plan", "gpt2"), "arguments are required: --gpus"),
        (("plan", "gpt2", "--gpus", "/no/such.json"), "gpus: /no/such.json: cannot be"),
        (("plan", "gpt2", "--gpus", "/"), "gpus: /: cannot be read: Is a directory"),
        (("plan", "gpt2", "--gpus", "x", "--user", "bob"), "unrecognized arguments"),
        (("split",), "arguments are required: --from"),
        (("split", "--from", "/no/such.json"), "from: /no/such.json: cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2(capsys, words, problem):
    try:
        status = main(words)
    except SystemExit as ended:
        status = ended.code
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert problem in err and "\x1b" not in err


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{", "is not JSON"),
        (b"[" * 5000, "is not JSON"),
        (b'"\xff"', "is not JSON"),
        (b"3", "gpus: must be a JSON list"),
        (b" " * 50, "larger than 40 bytes"),
        (b'[{"free_bytes": -3}]', "gpus[0].free_bytes"),
    ],
)
def test_a_bad_file_is_one_line(capsys, tmp_path, monkeypatch, data, problem):
    if len(data) == 50:
        monkeypatch.setattr(json_input, "MOST_FILE_BYTES", 40)
    path = tmp_path / "gpus.json"
    path.write_bytes(data)
    assert main(["plan", "gpt2", "--gpus", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and problem in err


def test_a_folder_that_cannot_be_written_is_one_line(capsys, gpus, tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("")
    words = ["plan", "gpt2", "--gpus", gpus, "--files", str(taken / "launch")]
    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", ["estimate", "plan", "split"])
def test_help_lists_the_options(capsys, command):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_cards_without_bf16_and_flash_get_what_they_run(capsys, tmp_path):
    path = tmp_path / "t4.json"
    path.write_text(json.dumps([{"name": "Tesla T4", "free_bytes": 14 * GIB}]))
    words = ("plan", "gpt2", "--gpus", str(path), "--json")

    def best(*more):
        assert main((*words, *more)) == 0
        return json.loads(capsys.readouterr().out)

    found = best()["plans"][0]["workload"]
    assert (found["precision"], found["attention"]) == ("autocast_fp16", "efficient")
    asked = best("--precision", "fp32")["plans"][0]["workload"]
    assert (asked["precision"], asked["attention"]) == ("fp32", "efficient")
    # An option that is given stays, and the card is refused with the reason.
    refused = best("--attention", "flash")
    assert not refused["plans"]
    assert "flash attention does not run" in refused["left_out"][0]["reason"]


def test_adapters_go_on_the_usual_layers_of_the_family(capsys, gpus):
    words = ("plan", "phi-4", "--gpus", gpus, "--lora", "8", "--precision", "bf16")
    assert main((*words, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["plans"]


def test_a_reader_that_closes_the_pipe_is_no_error():
    words = [sys.executable, "-m", "placement.planner", "cards"]
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
