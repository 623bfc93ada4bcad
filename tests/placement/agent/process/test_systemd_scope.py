"""The arguments of a Job's systemd unit: its Gpus, its limits, nothing of a student."""

import pytest

from placement.agent.process.systemd_scope import (
    MigPlace,
    ScopeLimits,
    UnitInvalid,
    card_of,
    device_files,
    kill_command,
    memory_ceiling_bytes,
    scope_command,
)

pytestmark = pytest.mark.pure
PROGRAM = (
    "/opt/gpu portal/bin/python",
    "-P",
    "-m",
    "placement.agent.process.unit_entry",
)
MIG_MINORS = """config 1
monitor 2
gpu0/gi1/access 12
gpu0/gi1/ci0/access 13
gpu0/gi11/access 102
gpu0/gi11/ci0/access 103
gpu3/gi1/access 417
gpu3/gi1/ci1/access 419
"""


def words(**changes):
    asked = {
        "program": PROGRAM,
        "devices": ("/dev/nvidia3", "/dev/nvidia0"),
        "ceilings": ScopeLimits(memory_bytes=2**30, tasks=100),
    }
    return scope_command(7, 2, **asked | changes)


def test_a_unit_opens_the_reserved_cards_and_what_cuda_needs_and_nothing_else() -> None:
    said = words()
    split = said.index("--")
    assert tuple(said[split + 1 :]) == PROGRAM
    head = said[:split]
    assert head[:2] == ["systemd-run", "--scope"]
    assert "--unit=gpuportal-job-7-2.scope" in head
    assert "--slice=gpuportal-jobs.slice" in head
    settings = [word.removeprefix("--property=") for word in head if "property" in word]
    assert settings == [
        "DevicePolicy=closed",
        "KillMode=control-group",
        "TasksMax=100",
        "MemoryMax=1073741824",
        "MemorySwapMax=0",
        "DeviceAllow=/dev/nvidiactl rw",
        "DeviceAllow=/dev/nvidia-uvm rw",
        "DeviceAllow=/dev/nvidia-uvm-tools rw",
        "DeviceAllow=/dev/nvidia0 rw",
        "DeviceAllow=/dev/nvidia3 rw",
    ]
    assert kill_command(7, 2)[-1] == "gpuportal-job-7-2.scope"


def test_a_job_on_simulated_gpus_opens_no_card_at_all() -> None:
    said = words(devices=(), ceilings=ScopeLimits())
    assert not any("nvidia" in word for word in said)
    assert "--property=DevicePolicy=closed" in said
    assert "--property=MemoryMax=infinity" in said


@pytest.mark.parametrize(
    "device",
    [
        "/dev/sda",
        "/dev/nvidia0 rwm",
        "/dev/nvidia0\n",
        "/dev/nvidia../sda",
        "/dev/nvidia-caps/../sda",
        "char-*",
        "",
        "nvidia0",
        "/dev/nvidia",
        "/dev/nvidia0\0",
        "/dev/nvidia-caps/nvidia-cap",
        "--property=User=root",
    ],
)
def test_what_is_no_gpus_device_file_is_refused(device) -> None:
    with pytest.raises(UnitInvalid, match="no device file of a GPU"):
        words(devices=(device,))


def test_nothing_that_systemd_would_replace_or_read_reaches_it() -> None:
    for program in ((), ("python",), ("/opt/$HOME/python",), ("/opt/a\0b",)):
        with pytest.raises(UnitInvalid):
            words(program=program)
    with pytest.raises((TypeError, ValueError)):
        scope_command(
            "7.scope --uid=0", 1, program=PROGRAM, devices=(), ceilings=ScopeLimits()
        )
    # Blanks and quotes stay inside their word, because no shell reads it.
    odd = ('/opt/it\'s "odd" %n; rm -rf/bin/python', "-m")
    assert words(program=odd)[-2:] == list(odd)


def test_a_card_and_parts_of_cards_are_found_by_what_the_driver_says() -> None:
    minors = {"GPU-a": 0, "GPU-b": 3}
    parts = {"MIG-x": MigPlace(0, 11, 0), "MIG-y": MigPlace(3, 1, 1)}

    def found(*uuids, capabilities=MIG_MINORS):
        return device_files(
            uuids, minors=minors, parts=parts, capabilities=capabilities
        )

    assert found("GPU-b", "GPU-a") == ("/dev/nvidia3", "/dev/nvidia0")
    assert found("MIG-x") == (
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap102",
        "/dev/nvidia-caps/nvidia-cap103",
    )
    # The neighbours on the same card, instances 1 and 11, stay closed.
    assert "/dev/nvidia-caps/nvidia-cap12" not in found("MIG-x", "MIG-y")
    assert all(words(devices=found("MIG-x", "MIG-y", "GPU-a")))
    with pytest.raises(UnitInvalid, match="no GPU GPU-elsewhere"):
        found("GPU-elsewhere")
    with pytest.raises(UnitInvalid, match="no device file of instance MIG-y"):
        found("MIG-y", capabilities="gpu3/gi1/access 417\n")
    assert card_of("GPU UUID: \t GPU-a\nDevice Minor: x\n") is None


def test_memory_is_a_jobs_share_of_the_machines_gpus() -> None:
    def share(wanted=0, gpus=2, machine_gpus=8):
        return memory_ceiling_bytes(
            wanted, machine_bytes=1000, gpus=gpus, machine_gpus=machine_gpus
        )

    assert share() == 225
    assert share(wanted=100) == 100
    assert share(wanted=900) == 225, "no job gets more than its share"
    assert share(machine_gpus=0) == share(gpus=9) == 900
