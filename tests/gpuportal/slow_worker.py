"""A Celery application with slow tasks: ``celery -A`` this module.

The broker's address is in the variable BROKER, the consumer class in CONSUMER.
"""

import os
import time
from pathlib import Path

from celery import Celery

app = Celery("slow_worker", broker=os.environ["BROKER"])
app.conf.update(
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    worker_consumer=os.environ["CONSUMER"],
)


@app.task(name="wait")
def wait(seconds: float, done: str) -> None:
    """Sleep, then write a file."""
    time.sleep(seconds)
    Path(done).touch()
