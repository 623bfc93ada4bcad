"""The messages of a node, in their real form."""

import time
from datetime import timedelta

from django.utils import timezone

from placement.jobs.nodes.event_intake import record_fact

NOW = timezone.now()


def after(seconds):
    """Return an instant so long after NOW."""
    return NOW + timedelta(seconds=seconds)


def fact(job, event, at=None, **more):
    return {
        "v": 1,
        "kind": "job",
        "job": job.pk,
        "attempt": max(job.attempt, 1),
        "event": event,
        "at": at or time.time(),
        **more,
    }


def belief(*running, at=None, ended=()):
    items = [
        {
            "job": job.pk,
            "attempt": 1,
            "started_at": NOW.timestamp(),
            "deadline_at": job.reservation.end.timestamp(),
        }
        for job in running
    ]
    return {
        "v": 1,
        "kind": "jobs",
        "at": at or time.time(),
        "running": items,
        "ended": list(ended),
    }


def record(message, now=None, node="red"):
    return record_fact(node, message, now or timezone.now())


def now_is(job):
    job.refresh_from_db()
    return job.state
