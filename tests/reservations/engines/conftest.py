"""A lab with a node of Slurm, whose answers are replayed."""

from dataclasses import replace
from datetime import date, time

import pytest

from reservations.engines import service as engines
from reservations.engines.slurm_engine import SlurmEngine
from reservations.series.recurrence import Repeat, Rule
from reservations.series.series_days import SeriesWish
from reservations.series.service import checked_wish
from telemetry.models import Gpu, Node
from telemetry.rules.slurm_use import SlurmUse
from telemetry.slurm.cluster_view import SlurmGpuView, SlurmNodeView
from telemetry.slurm.service import record_view
from tests.reservations.conftest import NOW
from tests.reservations.engines.replayed_slurm import ReplayedSlurm, SlurmState


@pytest.fixture
def slurm(lab, settings, monkeypatch, alice) -> SlurmState:
    """Add node gp1 of Slurm with two GPUs to the lab. Alice has a Unix user."""
    settings.SLURM_CLUSTER, settings.SLURM_BOOK = "lab", True
    settings.SLURM_SITE = "lab1"
    commands = ReplayedSlurm()
    engine = SlurmEngine(commands, "lab1")
    known = engines.engine_of
    monkeypatch.setattr(
        engines,
        "engine_of",
        lambda name: engine if name == Node.Engine.SLURM else known(name),
    )
    alice.unix_user = "alice"
    alice.save()
    free = tuple(SlurmGpuView(n, "a100", SlurmUse.FREE) for n in range(2))
    record_view("lab", [SlurmNodeView("gp1", free)], version="22.05.8", now=NOW)
    return commands.state


@pytest.fixture
def node_gpus(slurm) -> list[Gpu]:
    """Return the GPUs of node gp1."""
    return list(Gpu.objects.filter(node__name="gp1").order_by("index"))


@pytest.fixture
def counted(slurm, bob) -> SlurmState:
    """Give node gp1 four GPUs that a newer Slurm reserves by their number. Bob has a
    Unix user, too."""
    slurm.version = "26.05.5"
    bob.unix_user = "bob"
    bob.save()
    show_cards()
    return slurm


def show_cards(*marks: tuple[str, str, int | None]) -> None:
    """Store what Slurm says about the GPUs of gp1.

    Args:
        marks: use, reservation and number of the job of each GPU; none: it is free.
    """
    gpus = [SlurmGpuView(n, "a100", SlurmUse.FREE) for n in range(4)]
    for n, (use, reservation, job) in enumerate(marks):
        one = replace(gpus[n], use=SlurmUse(use), reservation=reservation, job_id=job)
        gpus[n] = replace(one, job_name=f"gp-{job}-1-k" if job else "")
    view = SlurmNodeView("gp1", tuple(gpus), cpus=2)
    record_view("lab", [view], version="26.05.5", now=NOW)


def daily(alice, node_gpus) -> SeriesWish:
    """Return a series of four days, an hour each, from tomorrow on."""
    rule = Rule(Repeat.DAILY, date(2026, 3, 3), time(9), "UTC", 3600, times=4)
    return checked_wish(
        user=alice,
        membership=None,
        gpu_ids=[gpu.pk for gpu in node_gpus],
        rule=rule,
        now=NOW,
    )
