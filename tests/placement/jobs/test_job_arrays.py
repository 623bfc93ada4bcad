"""Arrays: a Job for every combination, spread over what is held."""

import pytest

from placement.jobs.job_arrays import launch_array, stop_array
from placement.jobs.tick import job_tick
from placement.models import Job, JobArray
from placement.planner.values.errors import LaunchInvalid
from placement.protocol.job_lifecycle import JobState
from reservations.rules.errors import NotFound
from tests.placement.stage import NOW, fact, record


def launch(alice, reservation, sweep, **more):
    return launch_array(
        user=alice,
        reservation_id=reservation.pk,
        name="sweep",
        kind="recipe",
        recipe="burn-in",
        sweep=sweep,
        now=NOW,
        **more,
    )


def test_the_tasks_of_an_array_fill_the_gpus_and_each_knows_its_values(
    alice, bob, reservation, orders
):
    array = launch(alice, reservation, {"seconds": [1, 2, 3], "exit_code": [0]})
    tasks = list(array.tasks.order_by("array_index"))
    assert [task.recipe_settings["seconds"] for task in tasks] == [1, 2, 3]
    assert tasks[1].name == "sweep: seconds=2 exit_code=0"
    job_tick.tick(NOW)
    sent = sorted(orders(), key=lambda order: order.job)
    assert [order.job for order in sent] == [tasks[0].pk, tasks[1].pk]
    assert sent[0].gpu_uuids != sent[1].gpu_uuids
    assert sent[1].env == {
        "GPUPORTAL_ARRAY_INDEX": "1",
        "SWEEP_SECONDS": "2",
        "SWEEP_EXIT_CODE": "0",
    }
    tasks[0].refresh_from_db()
    record(fact(tasks[0], "exited", exit_code=0))
    job_tick.tick(NOW)
    (third,) = orders()
    assert (third.job, third.gpu_uuids) == (tasks[2].pk, sent[0].gpu_uuids)

    with pytest.raises(NotFound):
        stop_array(array_id=array.pk, user=bob, now=NOW)
    assert stop_array(array_id=array.pk, user=alice, now=NOW) == 2
    states = set(array.tasks.values_list("state", flat=True))
    assert states == {JobState.DONE, JobState.STOPPING}


def test_a_scripts_arguments_take_the_values(alice, reservation, settings):
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    array = launch_array(
        user=alice,
        reservation_id=reservation.pk,
        name="s",
        kind="script",
        script="echo",
        arguments=["--lr={lr}", "{x}"],
        sweep={"lr": [0.1]},
        now=NOW,
    )
    assert array.tasks.get().arguments == ["--lr=0.1", "{x}"]


def test_one_task_that_cannot_be_leaves_nothing_behind(alice, reservation):
    for sweep in ({"seconds": [1, -5]}, {"nosuch": [1]}, {}):
        with pytest.raises(LaunchInvalid):
            launch(alice, reservation, sweep)
    assert not Job.objects.exists() and not JobArray.objects.exists()
