"""The child: limited in time, without secrets or network, ended on request."""

import os
import threading
import time
from pathlib import Path

import pytest

from placement.planner.symbolic import child_process
from placement.planner.symbolic.case import read_case
from placement.planner.symbolic.child_process import SymbolicFailed, run
from placement.planner.values.errors import SpecInvalid

HERE = str(Path(__file__).parent)


def case(act):
    return read_case(
        {
            "model": {"torch": act, "args": {}},
            "input": {"kind": "cls_vec", "batch": 1, "dim": 1, "classes": 2},
            "precision": "fp32",
            "optimizer": {"name": "sgd"},
        }
    )


@pytest.fixture
def acted(monkeypatch):
    """Run a child that only acts."""
    monkeypatch.setattr(
        child_process, "CHILD", "tests.placement.planner.symbolic.acted_child"
    )


def test_answers_come_in_order_and_a_bad_case_spoils_no_other(acted):
    told = run([case("good"), case("problem"), case("good")]).answers
    assert [told[0], told[2]] == [{"peak_bytes": 7}] * 2
    assert isinstance(told[1], SpecInvalid)
    assert "is odd" in str(told[1])


def test_the_child_knows_no_secret_and_keeps_no_folder(acted, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "do not tell")
    monkeypatch.setenv("DATABASE_URL", "postgres://x")
    monkeypatch.setenv("HTTPS_PROXY", "http://x")
    (told,) = run([case("environment")]).answers
    assert not {"SECRET_KEY", "DATABASE_URL", "HTTPS_PROXY", "GPUPORTAL_VAR"} & set(
        told["names"]
    )
    assert not Path(told["home"]).exists()


@pytest.mark.parametrize(
    ("act", "code"),
    [
        ("die", "died"),
        ("network", "died"),
        ("no torch", "no-torch"),
        ("endless", "died"),
    ],
)
def test_a_child_without_an_answer_is_an_error_with_a_reason(acted, act, code):
    with pytest.raises(SymbolicFailed) as failed:
        run([case(act)], seconds=20)
    assert failed.value.code == code


def test_a_child_that_takes_too_long_is_ended(acted):
    began = time.monotonic()
    with pytest.raises(SymbolicFailed) as failed:
        run([case("sleep")], seconds=0.5)
    assert failed.value.code == "too-slow"
    assert time.monotonic() - began < 10


def test_a_cancel_ends_the_child_at_once(acted):
    pids, wish = [], threading.Event()
    started = child_process._start

    def noted(*args):
        child = started(*args)
        pids.append(child.pid)
        return child

    child_process._start = noted
    try:
        with pytest.raises(SymbolicFailed) as failed:
            run([case("sleep")], listener=lambda *_: wish.set(), cancelled=wish.is_set)
    finally:
        child_process._start = started
    assert failed.value.code == "cancelled"
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_somebodys_code_runs_in_the_child_and_has_no_network():
    batch = {"kind": "lm_plain", "batch": 2, "seq": 8, "vocab": 100}
    given = {"input": batch, "precision": "fp32", "optimizer": {"name": "sgd"}}
    cases = [
        read_case({**given, "model": {"entry": f"nets:{name}"}})
        for name in ("Small", "raises", "absent", "spy")
    ]
    heard = []
    with pytest.raises(SymbolicFailed) as failed:
        run(cases, path=HERE, listener=lambda at, *_: heard.append(at))
    # The last one tried to open a socket, which ended the child.
    assert "network" in str(failed.value)
    assert heard[-1] == 3


def test_a_model_of_absurd_size_is_refused_before_it_is_built():
    config = {"model_type": "gpt2", "n_layer": 10**9}
    model = {"config": config}
    text = {"kind": "lm", "batch": 1, "seq": 8, "vocab": 9}
    given = {"input": text, "precision": "fp32", "optimizer": {"name": "sgd"}}
    entry = {**given, "model": {"entry": "nets:Small"}}
    entry["input"] = text | {"kind": "lm_plain"}
    told = run(
        [read_case({**given, "model": model}), read_case(entry)], path=HERE
    ).answers
    assert isinstance(told[0], SpecInvalid)
    assert "n_layer" in str(told[0])
    assert told[1]["param_bytes"] == 2 * 100 * 32 * 4
