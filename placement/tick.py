"""The periodic steps of placement. All are safe to run twice and concurrently."""

from datetime import datetime

from placement.access import end_messages
from placement.backfill import service as backfill
from placement.device_gate import service as device_gate
from placement.jobs.tick import job_tick, progress_tick
from placement.plans import outcome_tick
from placement.rebalance import rebalance_tick
from placement.serving import endpoint_move
from placement.waitlist import service as waitlist


def tick(now: datetime) -> dict[str, int]:
    """Start and stop Jobs that are due, and tell the device gates; return how many rows
    each step moved."""
    return {
        "brought": waitlist.settle_waiting_jobs(now),
        # Before the Jobs: a node reads that a Job may open its GPUs before it starts
        # the Job.
        **device_gate.send_due(now),
        **job_tick.tick(now),
        **backfill.step(now),
        **end_messages.send_due(now),
    }


def rebalance(now: datetime) -> dict[str, int]:
    """Look for better places of running Jobs and endpoints. Return the counts."""
    return rebalance_tick.rebalance_jobs(now) | endpoint_move.tick(now)


def run_progress_tick(now: datetime) -> dict[str, int]:
    """Follow running Jobs: their progress, and the outcomes of their Plans."""
    return progress_tick.run_steps(now) | outcome_tick.measure(now)
