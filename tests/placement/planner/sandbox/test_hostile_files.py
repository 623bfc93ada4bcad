"""Files made to break a command: one line, exit status 2, no traceback."""

import io
import json
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from placement.planner.launch.recipes import checked_settings
from placement.planner.model.families.config_json import parse_config
from placement.planner.symbolic.case import read_case
from placement.planner.values.errors import LaunchInvalid, OffersInvalid, SpecInvalid
from placement.planner.values.gpu_list import offers_from_list
from placement.protocol.events import parse_fact
from placement.protocol.node_refusals import FactRefused
from placement.protocol.process_commands import kind_of, parse_process_fact

HUGE = 10**400
"""A whole number that JSON may hold but a float may not."""
DATA = Path(__file__).parents[3] / "data" / "placement"
PIPELINE = next(
    case
    for case in json.loads((DATA / "other.json").read_text())
    if case["kind"] == "pipeline_1f1b"
)
NET = {
    "model": {"torch": "MLP", "args": {"din": 8, "dh": 8, "depth": 2, "dout": 2}},
    "input": {"kind": "cls_vec", "batch": 2, "dim": 8, "classes": 2},
    "precision": "fp32",
    "optimizer": {"name": "sgd"},
}
RANKS = {"kind": "ds2", "world": 2, "sizes": {"hidden": 64}}


def changed(base, *path, value):
    """Return a copy of a JSON object with one field set."""
    made = json.loads(json.dumps(base))
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return made


def said(command, data, tmp_path, *options):
    """Return (exit status, standard error)."""
    file = tmp_path / "hostile.json"
    file.write_text(json.dumps(data))
    arguments = [str(file) if one == "FILE" else one for one in options]
    err = io.StringIO()
    try:
        call_command(command, *arguments, stdout=io.StringIO(), stderr=err)
    except SystemExit as end:
        return end.code, err.getvalue()
    except CommandError as error:
        return error.returncode, str(error)
    return 0, err.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        None,
        {"cases": 5},
        {"cases": [NET] * 10_001},
        changed(NET, "model", "torch", value=["MLP"]),
        changed(NET, "model", "args", value=7),
        changed(NET, "input", "dim", value="8"),
        changed(NET, "input", "dim", value=HUGE),
        changed(NET, "input", value={"kind": "cls_vec", "batch": 2}),
        changed(NET, "input", "kind", value=["lm"]),
        changed(RANKS, "sizes", value={"hidden": 1.5}),
        changed(RANKS, "sizes", value={"nosuch": 1}),
        changed(RANKS, "sizes", value=[1]),
        changed(RANKS, "kind", value={}),
        {**RANKS, "batch": "4"},
        {**RANKS, "accumulation": HUGE},
        {**RANKS, "bucket_elements": HUGE},
        {**RANKS, "precision": ["fp32"]},
    ],
    ids=lambda data: str(data)[:60],
)
def test_a_hostile_case_ends_in_one_line(data, tmp_path):
    status, line = said(
        "estimate", data, tmp_path, "--spec", "FILE", "--method", "closed"
    )

    assert status == 2
    assert len(line.strip().splitlines()) == 1


@pytest.mark.parametrize("speed", [1e-320, 0, HUGE, float("nan"), float("inf")])
def test_a_speed_that_nothing_can_be_divided_by_is_refused(speed, tmp_path):
    data = changed(PIPELINE, "gpus", 0, "speed", value=speed)

    status, line = said("split", data, tmp_path, "--from", "FILE")

    assert (status, "gpus[0].speed" in line) == (2, True)


def test_a_move_over_a_link_without_speed_is_refused_and_never_infinite(tmp_path):
    case = {
        "kind": "move_decision",
        "iter_s_now": 2,
        "iter_s_new": 1,
        "iters_left": 10,
        "bytes_moved": 1e9,
        "bytes_per_s": 1e-320,
    }

    assert said("split", case, tmp_path, "--from", "FILE")[0] == 2


def test_numbers_beyond_a_float_are_refused_by_field():
    with pytest.raises(OffersInvalid, match="peak_flops"):
        offers_from_list([{"free_bytes": 1, "peak_flops": HUGE}])
    config = {"model_type": "gpt2", "attn_pdrop": HUGE}
    with pytest.raises(SpecInvalid, match="attn_pdrop"):
        parse_config(config, name="")


def test_a_setting_of_a_recipe_beyond_a_float_is_refused():
    with pytest.raises(LaunchInvalid, match="layers"):
        checked_settings("tiny-transformer", {"layers": HUGE})
    with pytest.raises(LaunchInvalid, match="layers"):
        checked_settings("tiny-transformer", {"layers": float("nan")})


@pytest.mark.parametrize(
    ("path", "value"),
    [(("model", "args"), 7), (("model", "torch"), []), (("input", "kind"), {})],
)
def test_a_hostile_case_to_be_followed_is_refused_by_field(path, value):
    with pytest.raises(SpecInvalid, match=path[0]):
        read_case(changed(NET, *path, value=value))


def test_a_node_cannot_break_the_reader_of_facts_with_a_time_beyond_a_float():
    fact = {"v": 1, "kind": "response", "nonce": "a", "outcome": "gone", "at": HUGE}
    with pytest.raises(FactRefused, match="at"):
        parse_process_fact(fact)
    job = {"v": 1, "kind": "job", "job": 1, "attempt": 1, "event": "started"}
    with pytest.raises(FactRefused):
        parse_fact({**job, "at": HUGE})


def test_an_unsigned_order_that_is_nested_without_end_names_no_kind():
    assert kind_of("[" * 60_000) is None


@pytest.mark.parametrize("command", ["estimate", "split", "plan"])
def test_what_a_file_says_is_shown_without_what_a_terminal_would_obey(
    command, tmp_path
):
    evil = "\x1b[2J\x07\u202e"
    data, *options = {
        "estimate": (changed(NET, "model", "torch", value=evil), "--spec", "FILE"),
        "split": ({"kind": evil}, "--from", "FILE"),
        "plan": ([{"free_bytes": 1, evil: 1}], "gpt2", "--gpus", "FILE"),
    }[command]
    if command == "estimate":
        options += ["--method", "closed"]

    status, line = said(command, data, tmp_path, *options)

    assert status == 2
    assert line.strip().isprintable()
