"""Nothing in the repository depends on one machine or one registry."""

import json
import re

from tests.house.walk import ROOT, files, short

REQUIREMENTS = sorted(ROOT.glob("requirements*.txt"))
PIN = re.compile(r"[a-z0-9][a-z0-9._-]*(\[[a-z,]+\])?==[A-Za-z0-9.!]+( ;.*)?$")
# Folders that exist only on one machine, written in pieces so that this file may name
# them.
MACHINE = re.compile("|".join([r"(?<![\w.])/" + "work/", r"(?<![\w.])/" + "root/"]))
TEXT = (".py", ".md", ".txt", ".in", ".toml", ".sh", ".js", ".css", ".html", ".json")
TEXT += (".service", ".target", ".conf", ".yml", ".c", "")


def test_every_requirement_is_pinned_and_names_no_registry():
    assert len(REQUIREMENTS) == 7
    for path in REQUIREMENTS:
        text = path.read_text().splitlines()
        lines = [line for line in text if not line.startswith("#")]
        assert lines
        assert [line for line in lines if not PIN.match(line)] == [], path.name


def test_torch_is_pinned_and_brings_its_own_cuda():
    full = (ROOT / "requirements.txt").read_text()
    web = (ROOT / "requirements-web.txt").read_text()
    assert "\ntorch==2.13.0\n" in f"\n{full}"
    assert "torch" not in web
    assert not re.search(r"^(nvidia-(?!ml-py)|triton|cuda-)", full, re.M)


def test_the_web_pins_are_the_full_pins_but_for_torch():
    full = set((ROOT / "requirements.txt").read_text().splitlines())
    assert set((ROOT / "requirements-web.txt").read_text().splitlines()) <= full


def test_the_front_end_lock_names_no_registry():
    lock = json.loads((ROOT / "package-lock.json").read_text())
    packages = {name: p for name, p in lock["packages"].items() if name}
    assert packages
    assert all(p["integrity"].startswith("sha512-") for p in packages.values())
    assert [name for name, p in packages.items() if "resolved" in p] == []


def test_no_file_names_a_folder_of_one_machine():
    found = [
        f"{short(path)}:{number}"
        for path in files(*TEXT)
        if path.stat().st_size < 2**20
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if MACHINE.search(line)
    ]
    assert found == []
