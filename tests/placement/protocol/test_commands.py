"""Commands: complete, canonical, checked field by field."""

import json
import subprocess
import sys
import time
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.protocol.commands import (
    JobLimits,
    OrderKind,
    check_order,
    parse_order,
    remaining_seconds,
)
from placement.protocol.node_refusals import OrderRefused
from placement.protocol.process_commands import ProcessOrder, ProcessOrderKind
from tests.archives import unpack
from tests.gpuportal.running import ROOT
from tests.placement.nodes import make_order


def changed(**fields):
    body = json.loads(make_order().payload())
    return json.dumps({**body, **fields})


def test_an_order_reads_back_equal():
    order = make_order(
        argv=("a", "ä b"), recipe=None, env={"A": "1"}, plan={"x": [1, 2.5]}
    )
    assert parse_order(order.payload()) == order


def test_equal_orders_have_equal_bytes():
    order = make_order(env={"B": "2", "A": "1"})
    again = parse_order(json.dumps(dict(reversed(json.loads(order.payload()).items()))))
    assert again.payload() == order.payload()
    assert order.payload().isascii() and " " not in order.payload()


@given(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    st.integers(0, 2**40),
)
def test_any_words_survive_the_way(word, job):
    order = make_order(argv=(word,), recipe=None, job=job)
    assert parse_order(order.payload()).argv == (word,)


def test_an_order_never_outlives_the_reservation():
    with pytest.raises(OrderRefused, match="outlive"):
        make_order(deadline_at=100.0, expires_at=101.0)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"v": 2}, "version"),
        ({"kind": "delete"}, "kind"),
        ({"job": -1}, "job"),
        ({"job": True}, "job"),
        ({"job": "7"}, "job"),
        ({"grace_seconds": "long"}, "grace_seconds"),
        ({"nonce": 3}, "nonce"),
        ({"unix_user": "a\0b"}, "unix_user"),
        ({"gpu_uuids": "GPU"}, "gpu_uuids"),
        ({"gpu_uuids": ["a", "b"]}, "indexes"),
        ({"argv": ["a\0"]}, "argv"),
        ({"argv": [1]}, "argv"),
        ({"env": {"A": 1}}, "env"),
        ({"env": {"A=B": "1"}}, "env"),
        ({"env": []}, "env"),
        ({"limits": {}}, "limits"),
        ({"limits": {**asdict(JobLimits()), "processes": -1}}, "processes"),
        ({"settings": 1}, "settings"),
        ({"recipe": 1}, "recipe"),
        ({"simulated": 1}, "simulated"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_wrong_field_is_named(fields, word):
    with pytest.raises(OrderRefused, match=word) as refusal:
        parse_order(changed(**fields))
    assert refusal.value.code == "malformed"


@pytest.mark.parametrize("payload", ["", "[]", "{}", "null", "x" * 70_000])
def test_what_is_no_order_is_refused(payload):
    with pytest.raises(OrderRefused):
        parse_order(payload)


def test_times_that_are_no_numbers_are_refused():
    with pytest.raises(OrderRefused):
        parse_order(
            make_order()
            .payload()
            .replace('"grace_seconds":1.0', '"grace_seconds":1e999')
        )


def test_an_order_for_another_node_is_refused():
    with pytest.raises(OrderRefused) as refusal:
        check_order(make_order(), node="node2", now=time.time())
    assert refusal.value.code == "other-node"


def test_a_stale_order_is_refused():
    order = make_order()
    check_order(order, node="node1", now=order.expires_at - 0.1)
    with pytest.raises(OrderRefused) as refusal:
        check_order(order, node="node1", now=order.expires_at)
    assert refusal.value.code == "expired"


def test_a_node_whose_clock_is_far_behind_says_so():
    order = make_order()
    with pytest.raises(OrderRefused, match="clock is 400 s behind") as refusal:
        check_order(order, node="node1", now=order.issued_at - 400)
    assert refusal.value.code == "clock"


def test_a_slow_clock_never_lengthens_a_reservation():
    assert remaining_seconds(1000, 400, now=100) == 600
    assert remaining_seconds(1000, 400, now=500) == 500
    assert remaining_seconds(1000, 400, now=2000) == 0


def test_the_kinds_are_words():
    assert [str(kind) for kind in OrderKind] == ["start", "stop", "carry"]


OLD_NODE = """
import sys
from placement.protocol.process_commands import parse_process_order
print(parse_process_order(sys.stdin.read()).pid)
"""


def test_a_node_one_release_behind_reads_orders_about_processes(tmp_path):
    releases = ROOT / "tests" / "releases"
    newest = max(releases.glob("*/node.tar.xz"), key=lambda one: one.parent.name)
    unpack(newest, tmp_path)
    order = ProcessOrder(
        kind=ProcessOrderKind.STOP,
        node="lab-a",
        nonce="0" * 32,
        issued_at=1.0,
        expires_at=2.0,
        pid=4711,
        uid=1000,
        started_at=0.5,
        gpu_uuid="GPU-1",
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", OLD_NODE],
        input=order.payload(),
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("4711\n", "")
