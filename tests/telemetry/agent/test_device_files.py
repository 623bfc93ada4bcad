"""The device files of cards and MIG instances, from a driver's files."""

from pathlib import Path

import pytest

from telemetry.agent.device_files import (
    NVIDIA_MAJOR,
    capabilities_major,
    card_numbers,
    instance_numbers,
    path_of,
)

pytestmark = pytest.mark.pure


def test_a_card_has_the_minor_that_the_driver_tells() -> None:
    assert card_numbers(3) == ((NVIDIA_MAJOR, 3),)
    assert card_numbers(None) == ()


def test_a_mig_instance_needs_its_card_and_two_capabilities(tmp_path: Path) -> None:
    devices = tmp_path / "devices"
    devices.write_text(
        "Character devices:\n  1 mem\n195 nvidia\n237 nvidia-caps\n\nBlock devices:\n"
    )
    instance = tmp_path / "gpu1" / "mig" / "gi7"
    (instance / "ci0").mkdir(parents=True)
    (instance / "access").write_text("DeviceFileMinor: 66\nDeviceFileMode: 292\n")
    compute = instance / "ci0" / "access"

    def numbers(card: int | None = 1, number: int | None = 7):
        return instance_numbers(card, number, 0, capabilities=tmp_path, devices=devices)

    assert numbers() == (), "half of what it needs is nothing"
    compute.write_text("DeviceFileMinor: 67\nDeviceFileMode: 292\n")
    assert numbers() == ((NVIDIA_MAJOR, 1), (237, 66), (237, 67))
    assert numbers(card=None) == numbers(number=None) == numbers(card=0) == ()
    devices.write_text("195 nvidia\n")
    assert numbers() == () and capabilities_major(devices) is None
    assert capabilities_major(tmp_path / "none") is None


def test_the_file_of_a_device_is_found_by_its_number(tmp_path: Path) -> None:
    assert path_of(1, 7) == Path("/dev/full")
    (tmp_path / "nvidia0").write_text("no device")
    assert path_of(1, 7, tmp_path) is None
