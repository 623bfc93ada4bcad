"""One move of a Job that runs in gaps: legal by the table, compare-and-set."""

from datetime import datetime

from placement.jobs.job_transitions import MOST_REASON
from placement.models import Backfill, Job
from placement.rules.backfill_rules import NEXT, GapState


def move_gap_job(
    row: Backfill, new: GapState, *, reason: str, **fields: object
) -> bool:
    """Move it on; False: another worker was first, or the move is not legal."""
    old = GapState(row.state)
    if new not in NEXT[old]:
        return False
    written = {**fields, "reason": reason[:MOST_REASON]}
    if not Backfill.objects.move(row.pk, old=old, new=new, **written):
        return False
    for name, value in {**written, "state": new}.items():
        setattr(row, name, value)
    return True


def stopped_by_hand(job: Job, *, now: datetime, reason: str) -> None:
    """Who stops a stretch means the whole: no gap is taken any more."""
    row = Backfill.objects.filter(pk=job.backfill_id or 0).first()
    if row is not None:
        move_gap_job(row, GapState.STOPPING, reason=reason, stop_asked_at=now)
