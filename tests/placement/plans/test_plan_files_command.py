"""`manage.py plan --files DIR`: the files that start the first Plan."""

import json

import pytest
from django.core.management import call_command

GPUS = [{"name": "NVIDIA A100 80GB PCIe", "free_bytes": 70 * 2**30}] * 2


def plan(tmp_path, capsys, gpus, *options: str) -> str:
    path = tmp_path / "gpus.json"
    path.write_text(json.dumps(gpus))
    call_command("plan", "gpt2", "--gpus", str(path), *options)
    return capsys.readouterr().out


def test_the_files_are_written_and_named(tmp_path, capsys):
    folder = tmp_path / "made" / "here"
    said = plan(tmp_path, capsys, GPUS, "--files", str(folder))
    names = {path.name for path in folder.iterdir()}
    assert {"plan.json", "launch.sh", "deepspeed.json", "accelerate.json"} <= names
    assert all(f"Wrote {folder / name}" in said for name in names)
    assert json.loads((folder / "plan.json").read_text())["strategy"] == "single"


@pytest.mark.parametrize("case", ["nothing fits", "a file is there"])
def test_what_cannot_be_written_is_one_line_and_status_2(tmp_path, capsys, case):
    gpus, folder = GPUS, tmp_path / "made"
    if case == "nothing fits":
        gpus = [{"name": "NVIDIA A100 80GB PCIe", "free_bytes": 2**20}]
    else:
        folder.write_text("x")
    with pytest.raises(SystemExit) as ended:
        plan(tmp_path, capsys, gpus, "--files", str(folder))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("plan: files: ") and said.count("\n") == 1
