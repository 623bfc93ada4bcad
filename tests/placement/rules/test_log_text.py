"""Text from machines: harmless to show and fast to read, regardless of its content."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.agent.job_folder import JobFolder
from placement.protocol.events import MOST_LINES
from placement.rules.log_text import LONGEST_LINE, clean, error_of, numbers_of

SGR = re.compile(r"\x1b\[[0-9;:]*m")


def test_colours_are_kept():
    text = "\x1b[1;31mred\x1b[0m \x1b[38;5;200mpink\x1b[38:2::1:2:3m\x1b[m"
    assert clean(text) == text


@pytest.mark.parametrize(
    "sequence",
    [
        "\x1b[2J",
        "\x1b[H",
        "\x1b[10;20H",
        "\x1b[?1049h",
        "\x1b[6n",
        "\x1b[>c",
        "\x1b]0;title\x07",
        "\x1b]8;;http://evil\x1b\\",
        "\x1b]52;c;aGk=\x07",
        "\x1bP+q544e\x1b\\",
        "\x1b_apc\x1b\\",
        "\x1b^pm\x1b\\",
        "\x1bc",
        "\x1b(0",
        "\x1b7",
        "\x00",
        "\x08",
        "\x7f",
        "\x9b2J",
        "\x1b",
        "\x1b[",
        "\x0b",
        "\x0c",
        "\u202e",
        "\u2066",
    ],
)
def test_every_other_control_sequence_is_dropped(sequence):
    cleaned = clean(f"a{sequence}")
    assert "\x1b" not in cleaned and cleaned.startswith("a")
    assert not re.search(r"[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f]", cleaned)


def test_lines_and_tabs_and_carriage_returns_stay():
    assert clean("a\tb\r\nc\rd\n") == "a\tb\r\nc\rd\n"


@given(st.text(st.sampled_from("\x1b[]0;1m\x07\\Pa\n\r\x9b"), max_size=60))
def test_nothing_but_colours_is_left_and_cleaning_twice_changes_nothing(text):
    cleaned = clean(text)
    assert "\x1b" not in SGR.sub("", cleaned)
    assert clean(cleaned) == cleaned


def test_a_very_long_line_is_broken():
    lines = clean("x" * (3 * LONGEST_LINE + 5)).split("\n")
    assert [len(line) for line in lines] == [LONGEST_LINE] * 3 + [5]


@pytest.mark.parametrize(
    "text",
    [
        "\x1b]" * 200_000,
        "\x1b[" * 200_000,
        "\x1b]" + "a" * 400_000,
        "\x1b[" + "1;" * 200_000,
        "\x1bP" * 100_000 + "x" * 100_000,
        "a" * 2_000_000,
    ],
    ids=["osc", "csi", "long osc", "long csi", "dcs", "plain"],
)
def test_hostile_text_takes_linear_time(text):
    began = time.process_time()
    clean(text)
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        (
            "step=10 loss=3.2 tokens_per_s=1.5e3",
            {"step": 10, "loss": 3.2, "tokens_per_s": 1500},
        ),
        ("Step: 4, Loss: -0.5", {"step": 4, "loss": -0.5}),
        ("epoch 1 | step=3 | loss=2 |", {"step": 3, "loss": 2}),
        ('{"step": 1, "loss": 2.5, "ok": true, "who": "x"}', {"step": 1, "loss": 2.5}),
        ('{"step": 1, "loss": NaN}', None),
        ('{"step": 1, "loss": 1e999}', None),
        ("loss=3", None),
        ("step=10", None),
        ("step=1x loss=2", None),
        ("mystep=1 loss=2", None),
        ("step=1 loss=\u0131nf", None),
        ("[1, 2]", None),
        ("", None),
        ("{" * 5000, None),
        ('{"a":' * 900 + "1" + "}" * 900, None),
    ],
)
def test_numbers_of_a_line(line, numbers):
    assert numbers_of(line) == numbers


@pytest.mark.parametrize(
    "line", ["a=" * 1000, "=1" * 1000, "step=" + "1" * 1990, "a.b/c_d-" * 240]
)
def test_hostile_lines_take_no_time(line):
    began = time.process_time()
    for _ in range(200):
        numbers_of(line)
    assert time.process_time() - began < 1.0


@given(st.text(max_size=200))
def test_any_line_is_read_without_a_fault(line):
    found = numbers_of(line)
    assert found is None or "step" in found


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("KeyError: 'x'", "KeyError: 'x'"),
        (
            "\x1b[31mtorch.OutOfMemoryError: CUDA\x1b[0m\n \n",
            "torch.OutOfMemoryError: CUDA",
        ),
        ("EOFError", "EOFError"),
        ("/usr/bin/env: 'x': No such file\n", "/usr/bin/env: 'x': No such file"),
        ("gpuportal: python3 cannot start: no", "python3 cannot start: no"),
        ("ValueError: 3\ntorch.x.errors.ChildFailedError: \n====", "ValueError: 3"),
        ("subprocess.CalledProcessError: Command\nall is well: no Error", ""),
        ("", ""),
    ],
)
def test_the_exception_that_ended_a_program(text, error):
    assert error_of(text.split("\n")) == error


def test_the_report_of_torchrun_does_not_hide_the_cause(tmp_path):
    folder = JobFolder.at(tmp_path / "7-1")
    folder.path.mkdir()
    report = [
        *(["  File 'torch/distributed/run.py', line 7, in main", "    run(args)"] * 10),
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        *(["-" * 60, "  exitcode  : 1 (pid: 15027)"] * 8),
    ]
    lines = ["ModuleNotFoundError: No module named 'datautils'", *report]
    folder.log.write_text("\n".join(["epoch 1"] * 99 + lines))
    told = folder.last_lines()[-MOST_LINES:]
    assert error_of(told) == "ModuleNotFoundError: No module named 'datautils'"
