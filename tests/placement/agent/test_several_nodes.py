"""A Job over two nodes: two real node workers with unequal numbers of Gpus.

Importing torch takes most of the time, so the ranks are forks of a process that has
imported it, and two launches test everything: one that is stopped half-way and
continues elsewhere, one whose rank is killed. A user's own script,
which needs no torch, uses the same lab.
"""

import json
import os
import re
import shutil
import signal
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from placement.jobs import service as jobs
from placement.jobs.nodes import command_queue, log_store
from placement.planner.launch.recipes import checked_settings
from placement.protocol.commands import Order
from reservations.rules.lifecycle import State
from telemetry.models import Gpu
from tests.factories import make_membership, make_reservation, make_user
from tests.placement.agent.own_on_nodes import own_script_stops_goes_on_and_fails
from tests.placement.agent.two_nodes import TwoNodes, staged_plan

ROUNDING = 5e-6
"""fp32 sums of three stages and eight microbatches, in another order."""
STEPS = 60
"""More than the two that are ended reach. The last one runs at full speed."""
SETTINGS = {
    "layers": 2,
    "hidden": 16,
    "heads": 2,
    "seq": 8,
    "steps": STEPS,
    "seconds_per_step": 0.55,
    "checkpoint_seconds": 1,
    "simulated_memory_gib": 0.5,
}


@pytest.fixture
def forked_ranks(monkeypatch, fork_server):
    """Let the launchers on the nodes start ranks that need not import torch."""

    def order(**fields):
        return Order(**fields | {"env": fields.get("env", {}) | fork_server.environ})

    monkeypatch.setattr(command_queue, "Order", order)


@pytest.fixture
def lab(live_server, valkey_url):
    folder = Path(tempfile.mkdtemp(prefix="gp2-"))
    made = TwoNodes(folder, valkey_url, live_server.url)
    yield made
    made.close()
    shutil.rmtree(folder)


def losses_alone(server):
    """Return the losses of one process with the whole model and all the data."""
    settings = checked_settings("tiny-transformer", SETTINGS | {"batch": 8})
    code = (
        "import json\n"
        "from tests.placement.agent.runtime.strategies_child import alone, execution\n"
        f"losses = alone(execution('single'), {STEPS}, {settings!r})\n"
        "print(json.dumps(losses))\n"
    )
    return json.loads(server.output(code))


def launched(user, reservation, name, **more):
    given = {"kind": "recipe", "recipe": "tiny-transformer", "now": timezone.now()}
    return jobs.launch(
        user=user, reservation_id=reservation.pk, name=name, **(given | more)
    )


def booked(user, gpus):
    now = timezone.now()
    return make_reservation(
        user,
        gpus,
        now - timedelta(minutes=1),
        now + timedelta(hours=1),
        state=State.ACTIVE,
    )


@pytest.mark.timeout(600)  # many processes import torch: slow where much else runs
def test_a_training_over_two_nodes_stops_goes_on_fails_and_goes_on_on_one(
    lab, settings, tmp_path, fork_server, forked_ranks
):
    settings.MEDIA_ROOT = tmp_path / "media"
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    alice = make_membership(make_user("alice"), "lab").user
    own_script_stops_goes_on_and_fails(lab, both := booked(alice, Gpu.objects.all()))
    plan = staged_plan(alice)
    staged = {"plan_id": plan.pk, "recipe_settings": SETTINGS | {"batch": 1}}

    first = launched(alice, both, "begins", **staged)
    lab.until_state(first, "running")
    lab.until(lambda: len(lab.losses(first)) >= 3, "three steps")
    blue, red = first.parts.select_related("node")
    assert [(p.node.name, p.first_rank, len(p.gpu_ids)) for p in (blue, red)] == [
        ("blue", 0, 1),
        ("red", 1, 2),
    ]
    assert len(lab.ranks_of(first)) == 3
    jobs.stop(job_id=first.pk, user=alice, now=timezone.now())
    lab.until_state(first, "stopped")
    assert set(first.parts.values_list("state", flat=True)) == {"stopped"}
    assert first.exit_code == 0 and not lab.processes_of(first)
    seen = lab.losses(first)
    assert len(seen) >= 3 and max(seen) < STEPS - 1
    # Each node has a separate log, which is kept.
    other = (
        lab.folder / "red/node/jobs" / f"{first.pk}-1-{first.key}" / "log"
    ).read_text()
    assert "starting 2 process(es)" in other
    lab.until(lambda: log_store.path_of(first, part=1).is_file(), "the second log")
    assert log_store.read(first, offset=0, part=1).data.startswith("tiny-transformer: ")

    # Both nodes fetch what both had.
    second = launched(alice, both, "goes on", resume_from=first.pk, **staged)
    lab.until(lambda: "saved to" in lab.log(second), "a checkpoint")
    assert f"resuming after step {max(seen)}, saved by 3 proc" in lab.log(second)
    os.kill(lab.ranks_of(second)[2], signal.SIGKILL)
    lab.until_state(second, "failed")
    assert second.reason == "red: rank 2 ended by SIGKILL"
    assert not lab.processes_of(second)
    states = dict(second.parts.values_list("node__name", "state"))
    assert states["red"] == "failed" and states["blue"] in ("failed", "stopped")
    seen |= lab.losses(second)

    # The whole model on one Gpu of red: every stage's part was transferred.
    third = launched(
        alice,
        both,
        "ends",
        resume_from=second.pk,
        node="red",
        gpu_count=1,
        recipe_settings=SETTINGS
        | {"batch": 8, "strategy": "single", "seconds_per_step": 0},
    )
    lab.until_state(third, "done")
    text = lab.log(third)
    assert f"resumes from the checkpoint of job {second.pk}" in text
    saved = re.findall(r"checkpoint of step (\d+) saved", lab.log(second))
    assert f"resuming after step {saved[-1]}, saved by 3 process(es)" in text
    expected = losses_alone(fork_server)
    assert max(lab.losses(third)) == STEPS - 1
    for found in (seen, lab.losses(third)):
        far = [abs(found[step] - expected[step]) for step in found]
        assert max(far) <= ROUNDING, (found, expected)
    lab.until(lambda: not list((tmp_path / "media/checkpoints").iterdir()), "no rest")
