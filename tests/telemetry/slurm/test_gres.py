"""GRES as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.slurm.gres import GresCount, read_gres, read_indices, read_tres_gpus

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu:a100:4", [("gpu", "a100", 4, ())]),
        ("gpu:a100:4(S:0-1)", [("gpu", "a100", 4, (), True)]),
        ("gpu:4", [("gpu", "", 4, ())]),
        ("gpu", [("gpu", "", 1, ())]),
        ("gpu:a100:2(IDX:0-1)", [("gpu", "a100", 2, (0, 1))]),
        ("gpu:a100:3(IDX:0,2-3)", [("gpu", "a100", 3, (0, 2, 3))]),
        ("gpu:a100:0(IDX:N/A)", [("gpu", "a100", 0, ())]),
        ("gpu:(null):2(IDX:0-1)", [("gpu", "", 2, (0, 1))]),
        ("gpu:2(CNT:2)", [("gpu", "", 2, ())]),
        ("gpu:1g.5gb:7(S:0)", [("gpu", "1g.5gb", 7, (), True)]),
        ("gres:gpu:a100:2", [("gpu", "a100", 2, ())]),
        ("gres/gpu:a100=2", [("gpu", "a100", 2, ())]),
        ("gpu:a100:no_consume:2", [("gpu", "a100", 2, ())]),
        ("shard:1K", [("shard", "", 1024, ())]),
        (
            "gpu:a100:1(IDX:0,2),gpu:v100:1(IDX:3),nic:1",
            [("gpu", "a100", 1, (0, 2)), ("gpu", "v100", 1, (3,)), ("nic", "", 1, ())],
        ),
    ],
)
def test_reads_gres(text, found):
    assert read_gres(text) == tuple(GresCount(*one) for one in found)


@pytest.mark.parametrize(
    "text", ["", "N/A", "(null)", ":::", "gpu:a:b:c:d", "(((", ","]
)
def test_reads_nothing(text):
    assert read_gres(text) == ()


@given(st.text(max_size=60))
def test_takes_any_text(text):
    for one in read_gres(text):
        assert one.count >= 0


@pytest.mark.parametrize("text", ["1-", "-1", "3-1", "0-99999", "a", "", "1-2-3", "²"])
def test_refuses_indices(text):
    assert read_indices(text) == ()


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("billing=1,cpu=1,gres/gpu=3,gres/gpu:a100=3,node=1", 3),
        ("gres/gpu:a100=2,gres/gpu:v100=1", 3),
        ("cpu=4,node=1,gres/gpumem=5", 0),
        ("", 0),
    ],
)
def test_counts_gpus_of_tres(text, gpus):
    assert read_tres_gpus(text) == gpus
