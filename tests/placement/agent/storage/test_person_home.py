"""Homes of people without a home on the node: they last, and they end."""

import os
import time
from dataclasses import replace
from pathlib import Path

from placement.agent.process.unix_user import UnixIdentity
from placement.agent.storage.person_home import held_home, remove_unused
from placement.protocol.commands import SlurmPlace
from tests.placement import nodes

SMALL = replace(nodes.make_order().limits, disk_bytes=2**20)


def home_of(folder, **changes):
    """Return the home of an order's owner, which no Job holds any more."""
    with held_home(folder, nodes.make_order(**changes), None) as home:
        return home


def test_each_person_has_one_home(tmp_path):
    home = home_of(tmp_path)
    assert home == home_of(tmp_path, job=8)
    assert home != home_of(tmp_path, user="grace")
    assert home.parent.stat().st_mode & 0o777 == 0o711
    assert home.stat().st_mode & 0o777 == 0o700


def test_nobody_else_gets_one(tmp_path):
    assert home_of(tmp_path, user="") is None
    assert home_of(tmp_path, slurm=SlurmPlace("gp1", "gp_lab1_17")) is None
    person = UnixIdentity("ada", os.getuid(), os.getgid(), (), home=Path("/"))
    with held_home(tmp_path, nodes.make_order(), person) as home:
        assert home is None


def test_a_full_home_is_removed_before_the_next_job(tmp_path):
    large = home_of(tmp_path) / "large"
    large.write_bytes(bytes(700_000))
    home_of(tmp_path)  # without a limit
    with held_home(tmp_path, nodes.make_order(), None):
        home_of(tmp_path, limits=SMALL)
    assert large.exists(), "another job uses it"
    home = home_of(tmp_path, limits=SMALL)
    assert home.is_dir() and not large.exists()


def test_a_home_goes_a_week_after_its_last_job(tmp_path):
    home, now = home_of(tmp_path), time.time()
    (home / "link").symlink_to(tmp_path)
    assert remove_unused(tmp_path, now - 10) == 0
    with held_home(tmp_path, nodes.make_order(), None):
        assert remove_unused(tmp_path, now + 10) == 0
    assert home.is_dir()
    assert remove_unused(tmp_path, now + 10) == 1
    assert not home.exists() and remove_unused(tmp_path, now + 10) == 0
    assert home_of(tmp_path).is_dir()
    (tmp_path / "homes/odd.lock").mkdir()
    assert remove_unused(tmp_path, now + 10) == 1, "one bad entry stops nothing"
