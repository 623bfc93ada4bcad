"""`manage.py split`: files in, answers out, bad input in one line."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data" / "placement"
CASE = {"layer_bytes": [4, 4, 4], "free_bytes": [10, 5]}


def run(path, *more):
    out, err = io.StringIO(), io.StringIO()
    call_command("split", "--from", str(path), *more, stdout=out, stderr=err)
    return out.getvalue()


def file_of(tmp_path, data):
    path = tmp_path / "cases.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_one_case_answers_one_object(tmp_path):
    got = json.loads(run(file_of(tmp_path, CASE), "--json"))
    assert got["max_ratio"] == 0.8
    assert "id" not in got


def test_a_list_and_a_whole_file_answer_a_list_in_order(tmp_path):
    cases = [{**CASE, "id": "b"}, {**CASE, "id": "a"}, CASE]
    for data in (cases, {"cases": cases, "note": "x"}):
        got = json.loads(run(file_of(tmp_path, data), "--json"))
        assert [one["id"] for one in got] == ["b", "a", 2]


def test_without_json_it_speaks_to_people(tmp_path):
    impossible = {"layer_bytes": [9], "free_bytes": [5]}
    words = run(file_of(tmp_path, [CASE, impossible]))
    assert "max_ratio 0.8" in words
    assert "does not fit: " in words and "lacks 4 bytes" in words


@pytest.mark.parametrize(
    "data",
    [
        "{",
        "[" * 5000,
        "3",
        json.dumps({"kind": "tree"}),
        json.dumps([CASE, {"layer_bytes": [1]}]),
        json.dumps({"cases": 4}),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2(tmp_path, data):
    err = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("split", "--from", str(file_of(tmp_path, data)), stderr=err)
    assert ended.value.code == 2
    assert err.getvalue().count("\n") == 1 and err.getvalue().startswith("split: ")


def test_it_works_without_database_and_broker(tmp_path):
    nowhere = {
        "DATABASE_URL": "postgres://nobody@127.0.0.1:1/none",
        "REDIS_URL": "redis://127.0.0.1:1/0",
        "GPUPORTAL_VAR": str(tmp_path),
    }
    done = subprocess.run(
        [
            sys.executable,
            "manage.py",
            "split",
            "--json",
            "--from",
            str(DATA / "other.json"),
        ],
        cwd=ROOT,
        env={**os.environ, **nowhere},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [one["id"] for one in json.loads(done.stdout)] == [
        "pipe-a",
        "zero-a",
        "move-a",
    ]
