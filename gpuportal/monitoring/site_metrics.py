"""The metrics of the whole site: ages, queues, alerts, jobs, disk.

``/metrics`` shows them after those of the Gpus. deploy/monitoring has alert rules and a
Grafana dashboard that read them.
"""

import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime

from django.conf import settings
from prometheus_client import Metric
from redis import RedisError

from gpuportal import ticks, work_counters
from gpuportal.backup import last_backup
from gpuportal.logs import process_usage
from gpuportal.logs.request_scope import REFUSALS
from placement.models import Job
from telemetry.models import Alert, Node

CONTROL_QUEUES = ("control", "refine")
QUEUE_PRIORITIES = ("", "\x06\x163", "\x06\x166", "\x06\x169")
"""Ends of the names of the four lists in which kombu keeps a queue, by priority."""
FROM_ZERO = {
    "request": ("2xx", "3xx", "4xx", "5xx"),
    "refused": tuple(str(status) for status in sorted(REFUSALS)),
}

Samples = Iterable[tuple[dict[str, str], float]]


def read_site(
    now: datetime, frame_at: float | None, nodes: Iterable[Node]
) -> Iterator[Metric]:
    """Yield the metrics. What cannot be read is left out.

    Args:
        now: the present instant.
        frame_at: Unix seconds of the newest live frame. None if no frame exists.
        nodes: the nodes of the shown Gpus.
    """
    if frame_at is not None:
        yield _gauge(
            "gpuportal_frame_age_seconds",
            "Age of the newest live frame.",
            [({}, max(0.0, time.time() - frame_at))],
        )
    yield from _backups()
    nodes = sorted(nodes, key=lambda node: node.name)
    yield _gauge(
        "gpuportal_node_age_seconds",
        "Time since a node last reported.",
        [
            ({"node": node.name}, max(0.0, (now - node.last_seen_at).total_seconds()))
            for node in nodes
            if node.last_seen_at is not None
        ],
    )
    yield from _work()
    yield from _broker([node.name for node in nodes])
    yield _gauge(
        "gpuportal_disk_free_bytes",
        "Free bytes of the folder for logs, results and uploads.",
        [({}, float(shutil.disk_usage(settings.VAR_DIR).free))],
    )
    rules = Counter(Alert.objects.open().values_list("rule", flat=True))
    yield _gauge(
        "gpuportal_alerts_open",
        "Open alerts by rule.",
        [({"rule": rule}, float(count)) for rule, count in sorted(rules.items())],
    )
    states = Counter(Job.objects.live().values_list("state", flat=True))
    yield _gauge(
        "gpuportal_jobs",
        "Jobs that are not over, by state.",
        [({"state": state}, float(count)) for state, count in sorted(states.items())],
    )


def _gauge(name: str, words: str, samples: Samples) -> Metric:
    family = Metric(name, words, "gauge")
    for labels, value in samples:
        family.add_sample(name, labels, value)
    return family


def _backups() -> Iterator[Metric]:
    last = last_backup.read_last()
    for name, words, at in (
        ("gpuportal_backup_age_seconds", "Age of the last backup.", last.made_at),
        (
            "gpuportal_backup_verified_age_seconds",
            "Time since a backup was last verified.",
            last.verified_at,
        ),
    ):
        if at is not None:
            yield _gauge(name, words, [({}, max(0.0, time.time() - at))])


def _work() -> Iterator[Metric]:
    """Yield the counts of requests and tasks since the broker began, and what each
    process uses."""
    try:
        found = work_counters.read()
        yield from process_usage.read()
    except RedisError:
        return
    # A counter that begins at 0 shows its first increase.
    for kind, statuses in FROM_ZERO.items():
        for unit in ("count", "seconds"):
            none = dict.fromkeys(statuses, 0.0)
            found[kind, unit] = none | found.get((kind, unit), {})
    for name, words, kind, unit in (
        ("gpuportal_requests", "Answered requests by status.", "request", "count"),
        ("gpuportal_request_seconds", "Time of these.", "request", "seconds"),
        ("gpuportal_requests_refused", "Refused requests.", "refused", "count"),
        ("gpuportal_tasks", "Tasks that ended, by name.", "task", "count"),
        ("gpuportal_task_seconds", "Time of these.", "task", "seconds"),
    ):
        family = Metric(name, words, "counter")
        for label, value in found.get((kind, unit), {}).items():
            task, _, state = label.partition(":")
            labels = {"task": task, "state": state} if state else {"status": label}
            family.add_sample(f"{name}_total", labels, value)
        yield family


def _broker(nodes: Iterable[str]) -> Iterator[Metric]:
    """Yield the ages of the periodic tasks and the lengths of the queues."""
    queues = [*CONTROL_QUEUES, *(f"node.{name}" for name in nodes)]
    try:
        ages = ticks.ages()
        with ticks.broker().pipeline(transaction=False) as pipe:
            for queue in queues:
                for end in QUEUE_PRIORITIES:
                    pipe.llen(queue + end)
            lengths = pipe.execute()
    except RedisError:
        return
    yield _gauge(
        "gpuportal_task_age_seconds",
        "Time since a periodic task was last done.",
        [({"task": task}, age) for task, age in ages.items() if age is not None],
    )
    yield _gauge(
        "gpuportal_tasks_late",
        "Periodic tasks that should have been done again by now.",
        [({}, float(len(ticks.late(ages))))],
    )
    each = len(QUEUE_PRIORITIES)
    yield _gauge(
        "gpuportal_queue_length",
        "Tasks and commands that wait in a queue.",
        [
            ({"queue": queue}, float(sum(lengths[at * each : (at + 1) * each])))
            for at, queue in enumerate(queues)
        ],
    )
