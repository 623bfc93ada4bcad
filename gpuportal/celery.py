"""The control side's Celery application: ticks, rules, roll-ups."""

import gc
import os
import time

from celery import Celery
from celery.signals import (
    beat_init,
    celeryd_init,
    import_modules,
    setup_logging,
    task_postrun,
    task_prerun,
    task_success,
    worker_process_init,
    worker_ready,
)
from celery.states import RETRY, SUCCESS

import gpuportal.logs.task_request  # noqa: F401  (adds the id of a request to tasks)
from gpuportal import systemd
from gpuportal.logs import trace_export

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuportal.settings")
# Celery would run Django's checks and ignore what they find. They import every page and
# the API, which no worker needs. `manage.py portal` and the check unit run them.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")


@import_modules.connect(weak=False)
def wait_with_collection(**_kwargs: object) -> None:
    """Stop the garbage collector while Django and the tasks are imported.

    Imported modules stay. So a search for garbage would take a sixth of the start and
    find nothing. Receivers run in the order in which they were connected.
    """
    gc.disable()


app = Celery("gpuportal")
# For every thread. Otherwise only this one would send tasks to the right broker.
app.set_default()
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["telemetry", "reservations", "placement", "gpuportal"])


@import_modules.connect(weak=False)
def collect_again(**_kwargs: object) -> None:
    """Start the garbage collector. It skips all objects that exist by now."""
    gc.freeze()
    gc.enable()


@setup_logging.connect(weak=False)
def use_the_sites_logging(**_kwargs: object) -> None:
    """Use the portal's logging. Otherwise the logs of beat and worker would have no
    bounds."""
    from django.conf import settings
    from django.utils.log import configure_logging

    configure_logging(settings.LOGGING_CONFIG, settings.LOGGING)


@task_success.connect(weak=False)
def note_tick(sender: object = None, **_kwargs: object) -> None:
    """Note that a periodic task was done."""
    from gpuportal import ticks

    ticks.note(str(getattr(sender, "name", "")))


_began: dict[str, float] = {}
"""When each running task began, by its id."""


@task_prerun.connect(weak=False)
def note_begin(task_id: str = "", **_kwargs: object) -> None:
    """Note when a task began."""
    _began[task_id] = time.monotonic()


@task_postrun.connect(weak=False)
def count_task(
    task_id: str = "", task: object = None, state: str | None = None, **_kwargs: object
) -> None:
    """Count a task that ended, for ``/metrics``."""
    from gpuportal import work_counters

    began = _began.pop(task_id, None)
    if began is not None:
        took_seconds = time.monotonic() - began
        end = {SUCCESS: "done", RETRY: "retried"}.get(state or "", "failed")
        name = f"{getattr(task, 'name', '')}:{end}"
        work_counters.count("task", name, took_seconds)


PROCESSES = {"control": "worker"}
"""Name of a worker (the part before @) -> its label in ``/metrics``."""
_process = ["worker"]


@celeryd_init.connect(weak=False)
def note_name(sender: object = "", **_kwargs: object) -> None:
    """Store the label of this worker for the processes that it forks."""
    name = str(sender).partition("@")[0]
    _process[0] = PROCESSES.get(name, name)


@worker_process_init.connect(weak=False)
def write_counts(**_kwargs: object) -> None:
    """Write counts, memory and processor time of each process that runs tasks."""
    from gpuportal import work_counters
    from gpuportal.logs import process_usage

    work_counters.start()
    process_usage.start(_process[0])


@worker_process_init.connect(weak=False)
def trace_tasks(**_kwargs: object) -> None:
    """Export traces in each process that runs tasks. A fork would lose the thread that
    sends them."""
    trace_export.start_export("worker")


@worker_ready.connect(weak=False)
def say_ready(sender: object = None, **_kwargs: object) -> None:
    """Notify systemd that the worker takes tasks."""
    from gpuportal import ticks
    from gpuportal.logs import process_usage

    ticks.begin()
    process_usage.start(_process[0])
    systemd.ready()


@beat_init.connect(weak=False)
def notify_beat_ready(**_kwargs: object) -> None:
    """Tell systemd that tasks are sent."""
    from gpuportal.logs import process_usage

    process_usage.start("beat")
    systemd.ready()
