"""State changes of a Job in gaps: allowed by the table, by compare-and-set."""

from datetime import datetime

from placement.jobs.job_transitions import MOST_REASON
from placement.models import Backfill, Job
from placement.rules.backfill_rules import NEXT, GapState


def move_gap_job(
    row: Backfill, new: GapState, *, reason: str, **fields: object
) -> bool:
    """Change its state. False: another worker was first, or the table forbids it."""
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
    """A stop of a stretch by a person stops the whole: no more gaps are taken."""
    row = Backfill.objects.filter(pk=job.backfill_id or 0).first()
    if row is not None:
        move_gap_job(row, GapState.STOPPING, reason=reason, stop_asked_at=now)
