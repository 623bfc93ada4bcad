"""A move from node to node as it should be: nothing of the training is lost."""

from django.utils import timezone

from placement.jobs.tick import job_tick
from placement.rebalance.rebalance_tick import rebalance_jobs
from reservations.models import Reservation
from tests.placement.moving_on import moves, runs_on_blue


def test_a_job_moves_with_its_checkpoint_to_another_node(near, redis_client, settings):
    job = runs_on_blue(near, redis_client)
    move, after = moves(job)
    assert job_tick.tick(timezone.now())["ordered"] == 0, (
        "not before the other has left"
    )
    near.until_state(job, "stopped")
    assert (job.reason, job.exit_code) == ("moves to red:0", 0)
    assert not near.processes_of(job)
    near.until_state(after, "running")
    saved = near.log(job).splitlines()[-1]
    assert saved.startswith("saved 8 ")
    assert (
        near.says(after, "gpuportal: resumes") == f"from the checkpoint of job {job.pk}"
    )
    assert near.says(after, "begins at") == saved.removeprefix("saved ")
    rebalance_jobs(timezone.now())
    move.refresh_from_db()
    assert (move.state, after.node.name) == ("moved", "red")
    assert after.started_at >= job.ended_at
    states = dict(Reservation.objects.values_list("pk", "state"))
    assert states == {job.reservation_id: "released", after.reservation_id: "active"}
    near.until(
        lambda: not list((settings.MEDIA_ROOT / "checkpoints").iterdir()), "rest"
    )
