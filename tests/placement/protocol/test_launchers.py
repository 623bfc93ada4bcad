"""The command of each launcher, and what may stand at the head of a PATH."""

import base64
import json

import pytest

from placement.protocol.commands import parse_order
from placement.protocol.launchers import (
    Launcher,
    LaunchPlace,
    environment_problem,
    programs,
    script_command,
)
from placement.protocol.node_refusals import OrderRefused
from tests.placement.nodes import make_order

REAL = LaunchPlace(
    ("GPU-b", "GPU-a"), simulated=False, folder="/job", files=(), port=4711
)


def command(launcher, *arguments, files=(), gpus=REAL.gpu_uuids, simulated=False):
    ranks = LaunchPlace(
        gpus, simulated=simulated, folder="/job", files=files, port=4711
    )
    return script_command(launcher, "/job/script", arguments, ranks)


def test_each_launcher_starts_one_rank_per_gpu_and_ends_with_the_script():
    assert command(Launcher.TORCHRUN, "-x") == [
        "torchrun",
        "--standalone",
        "--nproc-per-node=2",
        "/job/script",
        "-x",
    ]
    assert command(Launcher.PYTHON, "-x") == ["python", "/job/script", "-x"]
    plain = command(Launcher.ACCELERATE)
    assert plain[:4] == [
        "accelerate",
        "launch",
        "--num_machines=1",
        "--num_processes=2",
    ]
    assert {"--multi_gpu", "--main_process_port=0"} < set(plain)
    assert "--multi_gpu" not in command(Launcher.ACCELERATE, gpus=("GPU-a",))
    assert command(Launcher.ACCELERATE, "-x", files=["accelerate.json"]) == [
        "accelerate",
        "launch",
        "--config_file=/job/accelerate.json",
        "--main_process_port=0",
        "/job/script",
        "-x",
    ]


def test_deepspeed_is_shown_exactly_the_reserved_gpus_by_rank():
    *head, world, _, port, script = command(Launcher.DEEPSPEED)
    assert head == ["python", "-u", "-m", "deepspeed.launcher.launch"]
    assert (port, script) == ("--master_port=4711", "/job/script")
    told = json.loads(base64.urlsafe_b64decode(world.removeprefix("--world_info=")))
    assert told == {"localhost": ["GPU-b", "GPU-a"]}
    assert programs(Launcher.DEEPSPEED) == ("python", "deepspeed")
    simulated = command(Launcher.DEEPSPEED, simulated=True)
    world = simulated[4].removeprefix("--world_info=")
    assert json.loads(base64.urlsafe_b64decode(world)) == {"localhost": ["-1", "-1"]}


def test_deepspeeds_configuration_is_handed_on_unless_the_arguments_name_one():
    files = ["ds_config.json"]
    given = ["--deepspeed", "--deepspeed_config", "/job/ds_config.json"]
    assert command(Launcher.DEEPSPEED, "-x", files=files)[-4:] == ["-x", *given]
    own = command(Launcher.DEEPSPEED, "--deepspeed=my.json", files=files)
    assert own[-1] == "--deepspeed=my.json"


@pytest.mark.parametrize(
    "folder",
    [
        "a/bin",
        "../a",
        "~/a",
        "-n",
        "..",
        "a b",
        "/a:/b",
        "/a\nb",
        "/" + "a" * 300,
        "a.txt",
    ],
)
def test_what_cannot_stand_on_a_path_is_no_folder_of_an_order(folder):
    assert environment_problem(folder)
    payload = make_order(environment_folder=folder).payload()
    with pytest.raises(OrderRefused, match="environment_folder"):
        parse_order(payload)


def test_an_order_names_a_launcher_that_there_is():
    for environment in ("/home/a/bin", "torch-2.13"):
        order = make_order(launcher="torchrun", environment_folder=environment)
        assert parse_order(order.payload()) == order
    with pytest.raises(OrderRefused, match="launcher"):
        parse_order(make_order(launcher="mpirun").payload())
