"""`manage.py estimate`: both methods, tables, JSON, and one line for an error."""

import io
import json

import pytest
from django.core.management import call_command

from placement.planner.cli import estimate_command
from placement.planner.symbolic.child_process import ChildAnswers, SymbolicFailed
from placement.planner.values.errors import SpecInvalid
from tests.placement.planner.symbolic.rows import LLAMA, ROWS

KEYS = {
    *("peak_bytes", "param_bytes", "grad_bytes", "opt_state_bytes"),
    *("activation_bytes", "phase_peak_bytes", "method", "seconds"),
}
ANSWER = {
    "peak_bytes": 10_000_000_000,
    "param_bytes": 4,
    "grad_bytes": 3,
    "opt_state_bytes": 2,
    "activation_bytes": 1,
    "phase_peak_bytes": {"fwd": 9, "bwd": 10_000_000_000, "opt": 8, "zero": 7},
    "method": "symbolic",
    "seconds": 0.1,
}


@pytest.fixture
def child(monkeypatch):
    """A child that answers at once. Yields its arguments."""
    seen = []

    def run(cases, *, path=""):
        seen.extend(cases)
        return ChildAnswers([ANSWER] * len(cases), 1.0)

    monkeypatch.setattr(estimate_command, "run", run)
    return seen


def said(*words):
    out = io.StringIO()
    call_command("estimate", *words, stdout=out)
    return out.getvalue()


def refused(*words):
    """Return the one line on stderr."""
    err = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("estimate", *words, stdout=io.StringIO(), stderr=err)
    assert ended.value.code == 2
    lines = err.getvalue().splitlines()
    assert len(lines) == 1
    return lines[0]


def test_a_well_known_model_has_a_closed_form_with_an_interval():
    told = json.loads(said("gpt2", "--batch", "2", "--json"))
    assert told.keys() >= KEYS | {"low_bytes", "likely_bytes", "high_bytes"}
    assert told["method"] == "closed"
    assert told["param_bytes"] == 497_759_232
    assert told["peak_bytes"] < told["low_bytes"] < told["likely_bytes"]


def test_the_table_says_what_each_number_is():
    table = said("gpt2")
    for words in ("optimizer state", "peak in", "nvidia-smi will likely show"):
        assert words in table
    assert max(len(line) for line in table.splitlines()) <= 80


def test_a_config_file_is_read_and_followed(tmp_path, child):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", "n_layer": 2}))
    options = ("--accumulation", "2", "--checkpointing", "full", "--optimizer", "adam")
    told = json.loads(said(str(path), "--method", "symbolic", "--json", *options))
    assert told["method"] == "symbolic"
    (case,) = child
    assert case.model["config"]["n_layer"] == 2
    assert (case.accumulation, case.checkpointing, case.optimizer) == (2, True, "adam")
    assert "followed" in said(str(path), "--method", "symbolic")


def test_replicas_share_the_batch(child):
    said("gpt2", "--method", "symbolic", "--strategy", "ddp", "--ranks", "4")
    assert (child[0].ranks, child[0].input["batch"]) == (4, 2)
    alone = json.loads(said("gpt2", "--json", "--batch", "2"))
    zero = ("--strategy", "zero1", "--ranks", "4")
    split = json.loads(said("gpt2", "--json", "--batch", "8", *zero))
    assert split["opt_state_bytes"] < 0.4 * alone["opt_state_bytes"]
    assert split["param_bytes"] == alone["param_bytes"]


def test_one_spec_answers_an_object_and_several_a_list_with_ids(tmp_path, child):
    one = tmp_path / "one.json"
    one.write_text(json.dumps(ROWS[0]["spec"]))
    assert json.loads(said("--spec", str(one), "--json")).keys() == KEYS
    many = tmp_path / "many.json"
    many.write_text(json.dumps({"cases": ROWS[:2]}))
    told = json.loads(said("--spec", str(many), "--json"))
    assert [row["id"] for row in told] == [row["spec"]["id"] for row in ROWS[:2]]
    closed = json.loads(said("--spec", str(many), "--json", "--method", "closed"))
    assert {row["method"] for row in closed} == {"closed"}
    many.write_text(json.dumps([row["spec"] for row in ROWS[:2]]))
    assert len(json.loads(said("--spec", str(many)))) == 2


def test_a_file_of_traced_steps_is_followed_as_traced(tmp_path, child):
    path = tmp_path / "simulated.json"
    meta = {"truth": "FakeTensorMode + torch MemTracker on CPU operators"}
    path.write_text(json.dumps({"meta": meta, "cases": ROWS[:1]}))
    assert json.loads(said("--spec", str(path)))[0]["id"] == ROWS[0]["spec"]["id"]
    assert child[0].traced
    path.write_text(json.dumps(ROWS[0]["spec"] | {"id": "sim-alone"}))
    said("--spec", str(path))
    assert child[-1].traced
    path.write_text(json.dumps(ROWS[0]["spec"] | {"id": "sim-alone", "traced": False}))
    said("--spec", str(path))
    assert not child[-1].traced
    path.write_text(json.dumps({"meta": meta, "cases": ROWS[:1]}))
    closed = json.loads(said("--spec", str(path), "--method", "closed"))
    assert "ignored" not in closed[0]


def test_without_torch_specs_have_the_closed_form(tmp_path, child, monkeypatch):
    monkeypatch.setattr(estimate_command, "torch_installed", lambda: False)
    path = tmp_path / "one.json"
    path.write_text(json.dumps(ROWS[0]))
    assert json.loads(said("--spec", str(path)))["method"] == "closed"
    assert child == []


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ((), "SOURCE"),
        (("gpt2", "--spec", "x.json"), "SOURCE"),
        (("no-such-model",), "source"),
        (("gpt2", "--batch", "0"), "batch"),
        (("gpt2", "--ranks", "2"), "ranks"),
        (("gpt2", "--strategy", "pipeline", "--ranks", "2"), "strategy"),
        (
            ("gpt2", "--strategy", "zero2", "--ranks", "2", "--method", "symbolic"),
            "strategy",
        ),
        (("gpt2", "--precision", "megatron_bf16", "--method", "symbolic"), "precision"),
        (("gpt2", "--method", "symbolic", "--input", "{"), "input"),
        (("gpt2", "--method", "symbolic", "--input", '{"batch": 3}'), "input"),
        (("--spec", "/no/such/file.json"), "spec"),
    ],
)
def test_what_is_wrong_is_one_line(words, word):
    assert word in refused(*words)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[{", "JSON"),
        ('{"cases": 3}', "cases"),
        ("3", "cases"),
        ('{"model": 3}', "model"),
        (json.dumps([LLAMA, LLAMA | {"id": "b", "precision": "fp3"}]), "case b"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, child, text, word):
    path = tmp_path / "spec.json"
    path.write_text(text)
    assert word in refused("--spec", str(path))
    assert (
        word in refused("--spec", str(path), "--method", "closed") or word == "case b"
    )


@pytest.mark.parametrize(
    "error", [SymbolicFailed("died", "the child ended"), SpecInvalid({"model": "odd"})]
)
def test_a_child_without_an_answer_is_one_line(tmp_path, monkeypatch, error):
    monkeypatch.setattr(
        estimate_command, "run", lambda *_a, **_n: ChildAnswers([error], 0.0)
    )
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(ROWS[0]))
    assert ROWS[0]["spec"]["id"] in refused("--spec", str(path))
    assert str(error) in refused("gpt2", "--method", "symbolic")


def test_sizes_without_code_are_not_followed(tmp_path):
    header = {"weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}
    text = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    assert "without code" in refused(str(path), "--method", "symbolic")
    assert json.loads(said(str(path), "--json"))["param_bytes"] == 16
