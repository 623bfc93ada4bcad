"""Memory, processor time and open files of each process, which ``/metrics`` shows.

A thread of each process reads them from ``/proc`` by prometheus_client's collector and
stores them in the broker, so that one address shows those of all. The values of a
process that ended expire.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import redis
from prometheus_client import Metric, ProcessCollector

from gpuportal import ticks
from gpuportal.logs.repeated_call import repeat

NAMES_KEY = "portal.processes"
"""A sorted set in the broker: "process host pid", by the Unix seconds of its values."""
VALUES_KEY = "portal.process {}"
"""The values of one process, as JSON."""
WRITE_SECONDS = 10.0
EXPIRE_SECONDS = 35
"""A process that has not written for so long has ended, or the broker was away."""
log = logging.getLogger(__name__)


def start(process: str) -> None:
    """Store the values of this process from now on, in a thread.

    Args:
        process: what it does: ``web``, ``worker``, ``refine``, ``beat`` or ``ingest``.
    """
    repeat(partial(write, process), WRITE_SECONDS, "process-usage")


def write(process: str) -> None:
    """Store the values of this process. A broker that is away is not an error."""
    name = f"{process} {socket.gethostname()} {os.getpid()}"
    values = {
        sample.name: sample.value
        for family in ProcessCollector(namespace="gpuportal", registry=None).collect()
        for sample in family.samples
    }
    now = time.time()
    try:
        with ticks.broker().pipeline() as pipe:
            pipe.set(VALUES_KEY.format(name), json.dumps(values), ex=EXPIRE_SECONDS)
            pipe.zadd(NAMES_KEY, {name: now})
            pipe.zremrangebyscore(NAMES_KEY, "-inf", now - EXPIRE_SECONDS)
            pipe.execute()
    except redis.RedisError as error:
        # A broker that is away is reported elsewhere.
        log.info("the use of this process is not stored: %s", error)


def read() -> Iterator[Metric]:
    """Yield the families of prometheus_client's collector, with a sample for each
    process.

    Raises:
        redis.RedisError: the broker does not answer.
    """
    broker: Any = ticks.broker()
    names = [name.decode() for name in broker.zrange(NAMES_KEY, 0, -1)]
    stored = broker.mget([VALUES_KEY.format(name) for name in names]) if names else []
    found = [
        (dict(zip(("process", "host", "pid"), name.split(" "), strict=True)), values)
        for name, text in zip(names, stored, strict=True)
        if text is not None and (values := json.loads(text))
    ]
    for family in ProcessCollector(namespace="gpuportal", registry=None).collect():
        shown = Metric(family.name, family.documentation, family.type)
        for own in family.samples:
            for labels, values in found:
                if own.name in values:
                    shown.add_sample(own.name, labels, values[own.name])
        yield shown
