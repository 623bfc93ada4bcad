"""`manage.py ingest`: the only writer of facts from nodes.

It joins the apps: telemetry's loop, the calendar's judge, the responses to intruders,
placement's events and logs. More than one may run. One of them leads.
"""

import signal
import threading
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from redis import Redis

from gpuportal import systemd
from gpuportal.alerts.calendar_judge import CalendarJudge
from gpuportal.alerts.response import Responder, record_fact
from gpuportal.logs import process_usage
from placement.jobs.job_broadcast import LogGate
from telemetry.ingest import Ingest

SOCKET_TIMEOUT_SECONDS = 5.0
"""A broker that does not answer for this time is away. The loop tries again."""


def connect() -> Redis:
    """Return a client of the broker with limited waits."""
    return Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=SOCKET_TIMEOUT_SECONDS,
        socket_connect_timeout=SOCKET_TIMEOUT_SECONDS,
    )


class Command(BaseCommand):
    """Runs until SIGTERM or Ctrl-C."""

    help = "Receive node messages; write frames, minutes, alerts and job states."

    def handle(self, *args: Any, **options: Any) -> None:
        """Connect the parts, start them, and wait."""
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        judge, gate = CalendarJudge(), LogGate()
        ingest = Ingest(
            connect(),
            judge=judge.judge,
            findings=judge.findings,
            holder_present=judge.holder_present,
            on_fact=record_fact,
            on_log=lambda node, message, _now: gate.publish(node, message),
        )
        responder = Responder(judge, leads=lambda: ingest.lease.held)
        threads = [
            threading.Thread(target=judge.run, args=(stop, connect)),
            threading.Thread(target=responder.run, args=(stop,)),
        ]
        for thread in threads:
            thread.start()
        process_usage.start("ingest")
        systemd.ready()
        try:
            ingest.run(stop)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
