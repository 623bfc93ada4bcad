"""Scripts that torchrun, accelerate, deepspeed or python starts, through real shims."""

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from placement.agent.local_runner import ask
from placement.agent.process import job_files
from placement.agent.process.program_lookup import checked_argv
from placement.agent.storage import results_reader
from placement.protocol.launchers import beside_bytes
from placement.protocol.node_refusals import OrderRefused
from tests.placement.nodes import ended, log_text, script_order, start, until

BIN = str(Path(sys.executable).parent)
"""The programs of an environment with torch, as a student names it."""
RANKS = """
import json, os, sys
plan = json.load(open(os.environ["GPUPORTAL_PLAN"]))
world = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
said = " ".join(os.environ[name] for name in world)
os.write(1, f"told {said} {sys.argv[1:]} {plan['title']}\\n".encode())
"""
"""Without torch, which takes seconds to import. Over two nodes the ranks also
reduce.
"""
ACCELERATE = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "MULTI_GPU",
    "gpu_ids": "all",
    "machine_rank": 0,
    "main_training_function": "main",
    "mixed_precision": "no",
    "num_machines": 1,
    "num_processes": 2,
    "use_cpu": False,
}


def launched(node, web, launcher, files=None, **changes):
    if files is not None:
        web.files = json.dumps(files).encode()
        changes["files_sha256"] = hashlib.sha256(web.files).hexdigest()
    known = {"launcher": launcher, "environment_folder": BIN}
    return start(replace(node, web_url=web.url), script_order(web, **known | changes))


TWO = {"gpu_uuids": ("GPU-a", "GPU-b"), "gpu_indexes": (0, 1), "simulated": True}


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_a_launcher_starts_one_rank_per_gpu_with_the_plans_files(node, serve, launcher):
    files = {"plan.json": '{"title": "two"}', "accelerate.json": json.dumps(ACCELERATE)}
    folder = launched(
        node, serve(RANKS), launcher, files, argv=("--epochs", "2"), **TWO
    )
    status = ended(folder)
    log = folder.log.read_text()
    assert status["exit_code"] == 0, log
    told = sorted(line for line in log.splitlines() if line.startswith("told"))
    address, port = told[0].split()[4:6]
    assert (address in ("localhost", "127.0.0.1")) and int(port) > 0, log
    assert told == [
        f"told {rank} {rank} 2 {address} {port} ['--epochs', '2'] two"
        for rank in (0, 1)
    ]


def test_deepspeed_starts_its_ranks_with_its_configuration(node, serve):
    # One write per rank: both write into one log, and DeepSpeed starts them unbuffered.
    script = (
        "import os, sys\n"
        "told = [os.environ[name] for name in sys.argv[2:5]] + sys.argv\n"
        "os.write(1, (' '.join(told) + '\\n').encode())\n"
    )
    folder = launched(
        node,
        serve(script),
        "deepspeed",
        {"ds_config.json": "{}"},
        argv=("RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES"),
        **TWO,
    )
    status = ended(folder)
    log = folder.log.read_text()
    assert status["exit_code"] == 0, log
    told = sorted(line for line in log.splitlines() if line[:4] in ("0 2 ", "1 2 "))
    assert len(told) == 2, log
    for rank, line in enumerate(told):
        assert line.startswith(f"{rank} 2 -1,-1 {folder.work}/script")
        assert f"--local_rank={rank}" in line
        ending = f"--deepspeed --deepspeed_config {folder.work}/ds_config.json"
        assert line.endswith(ending)


def test_python_runs_with_the_environment_that_its_owner_names(node, serve):
    script = (
        "import json, os, sys\n"
        "print(sys.executable, sys.argv[1:])\n"
        "for name in sorted(os.environ):\n"
        "    if name.endswith(('_PLAN', '_CONFIG', '_FILE', '_MAP')):\n"
        "        print(name, json.load(open(os.environ[name])))\n"
    )
    files = {
        name: f'"{name}"' for name in ("plan.json", "ds_config.json", "accelerate.json")
    }
    folder = launched(node, serve(script), "python", files, argv=("a b",))
    assert ended(folder)["exit_code"] == 0
    assert folder.log.read_text().splitlines() == [
        f"{BIN}/python ['a b']",
        "ACCELERATE_CONFIG_FILE accelerate.json",
        "GPUPORTAL_DEEPSPEED_CONFIG ds_config.json",
        "GPUPORTAL_PLAN plan.json",
    ]
    modes = {p.name: p.stat().st_mode & 0o777 for p in folder.work.iterdir()}
    assert modes == {"script": 0o700, "results": 0o700, **dict.fromkeys(files, 0o600)}


def test_an_environment_is_named_by_its_folder_too(node, serve, tmp_path):
    """It is first on the PATH of everything that the script starts."""
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "bin").symlink_to(BIN)
    named = tmp_path / "venv"
    script = "import os, sys\nprint(sys.executable, os.environ['PATH'])\n"
    folder = launched(node, serve(script), "python", environment_folder=str(named))
    assert ended(folder)["exit_code"] == 0, folder.log.read_text()
    program, path = folder.log.read_text().split()
    assert program == f"{named}/bin/python"
    assert path.split(":")[0] == f"{named}/bin"


def test_an_environment_without_the_launcher_does_not_run_the_systems(
    node, serve, tmp_path
):
    """The system's Python would run, and report only that torch is missing."""
    empty = tmp_path / "venv" / "bin"
    empty.mkdir(parents=True)
    folder = launched(
        node, serve("print('never')"), "python", environment_folder=str(empty.parent)
    )
    assert ended(folder)["exit_code"] == 126
    (line,) = folder.log.read_text().splitlines()
    assert f"python is not installed: it is not in {empty}" in line
    # As of a Python that its owner has installed for himself.
    (empty / "python3").symlink_to("/closed/python3")
    with pytest.raises(FileNotFoundError, match="a link to /closed/python3, which"):
        checked_argv(["train.py"], ["python"], str(empty))


def test_what_is_missing_or_open_to_everybody_is_said_in_one_line(
    node, serve, tmp_path
):
    own, shared, project = (tmp_path / name for name in ("own", "shared", "project"))
    for folder in (own, shared, project):
        folder.mkdir()
        (folder / "python").symlink_to(sys.executable)
    (project / "uv.lock").touch()
    shared.chmod(0o777)
    web = serve("print('never')")
    for number, (launcher, folder, words) in enumerate(
        [
            ("deepspeed", own, f"deepspeed is not installed: it is not in {own}"),
            ("python", shared, f"everybody may write {shared}: it is not used"),
            (
                "python",
                tmp_path / "none",
                f"no environment folder {tmp_path}/none on this node. Make it there: "
                f"python3 -m venv {tmp_path}/none",
            ),
            ("python", project, f"cd {project} && uv sync"),
            ("python", "no-such", "conda create -n no-such python"),
        ]
    ):
        begun = launched(
            node, web, launcher, job=number + 1, environment_folder=str(folder)
        )
        assert ended(begun)["exit_code"] == 126
        (line,) = begun.log.read_text().splitlines()
        assert line.startswith("gpuportal: ") and words in line


def test_a_stop_ends_the_build_of_an_environment(node, serve, tmp_path):
    needs = tmp_path / "needs.txt"
    needs.write_text("--no-index\nnever\n")
    folder = launched(
        node, serve("print('never')"), "python", environment_folder=str(needs)
    )
    until(lambda: "builds the environment" in log_text(folder), pause_seconds=0.02)
    assert ask(folder, {"reason": "enough", "lost": False, "grace_seconds": 60})
    status = ended(folder)
    assert (status["stopped"], status["reason"]) == (True, "enough")
    last = folder.log.read_text().splitlines()[-1]
    assert last.endswith("the job was stopped while its environment was built"), last
    (own,) = (node.node_dir / "environments").iterdir()
    assert [path.name for path in own.iterdir()] == ["lock"]


def test_files_that_are_not_those_ordered_are_never_written(node, serve):
    web = serve("true\n")
    folder = launched(node, web, "", {"../../evil": "x"})
    status = ended(folder)
    assert status["event"] == "refused" and "not among" in status["reason"]
    web.files = b"{}"
    other = launched(node, web, "", job=2, files_sha256="0" * 64)
    assert "not the one that was ordered" in ended(other)["reason"]
    assert [path.name for path in other.work.rglob("*")] == ["results"]


def test_a_script_imports_the_modules_that_lie_beside_it(node, serve):
    web = serve("from datautils import rows\nfrom models.net import width\n")
    web.script += b"import os\nos.makedirs('models/out')\nopen('models/a.csv', 'w')\n"
    web.script += b"print(rows, width)\n"
    files = {
        "datautils.py": "rows = 'Zeilen ✓'",
        "models/__init__.py": "",
        "models/net.py": "from .sizes import width",
        "models/sizes.py": "width = 8",
    }

    def sent(files, **changes):
        body = beside_bytes(files)
        web.pages["/node/v1/jobs/7/beside"] = body
        known = {"beside_sha256": hashlib.sha256(body).hexdigest()}
        return launched(node, web, "python", **known | changes)

    folder = sent(files)
    assert ended(folder)["exit_code"] == 0, log_text(folder)
    assert log_text(folder) == "Zeilen ✓ 8\n"
    found = results_reader.listing(
        str(folder.work / "results"),
        100,
        2**20,
        str(folder.work),
        ["script", *folder.read("beside")["paths"]],
    )
    assert [row["path"] for row in found["files"]] == ["models/a.csv"], found
    # A requirements file among them names an environment, before any is built.
    needs = {"envs/needs.txt": "# coding: nope\n"}
    folder = sent(needs, attempt=3, environment_folder="./envs/needs.txt")
    assert ended(folder)["exit_code"] == 126
    assert "envs/needs.txt names an unknown encoding, nope" in log_text(folder)
    # The node checks the paths again, and the hash of the signed order.
    for name, why in (
        ("../a.py", "cannot be sent"),
        ("results/a", "uses"),
        ("a\nb", "cannot be sent"),
    ):
        with pytest.raises(OrderRefused, match=why):
            job_files._beside(beside_bytes({name: ""}))
    folder = sent(files, attempt=2, beside_sha256="0" * 64)
    assert "is not the one that was ordered" in ended(folder)["reason"]
    assert not (folder.work / "models").exists()
