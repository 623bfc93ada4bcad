"""Past jobs of the demo lab's students: rows only, without logs."""

import random
from collections.abc import Sequence
from datetime import timedelta

from placement.models import Job, JobEvent
from placement.protocol.job_lifecycle import JobState
from reservations.models import Reservation

ENDS = (
    (JobState.DONE, 0, ""),
    (JobState.DONE, 0, ""),
    (JobState.DONE, 0, ""),
    (JobState.FAILED, 1, "exit code 1"),
    (JobState.STOPPED, 143, "the reservation ended"),
)
LAST_LINES = {
    JobState.DONE: ["step=5000 loss=1.8241 tokens_per_s=48211", "saved checkpoint/"],
    JobState.FAILED: [
        "step=812 loss=2.4407 tokens_per_s=47950",
        "Traceback (most recent call last):",
        '  File "train.py", line 88, in <module>',
        "    loss.backward()",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.38 GiB.",
    ],
    JobState.STOPPED: ["step=3140 loss=1.9920 tokens_per_s=48102", "stop requested"],
}


def write_past_jobs(
    reservations: Sequence[Reservation], *, chance: random.Random
) -> list[Job]:
    """Give two of five past reservations a Job that ran in them; return the Jobs."""
    ended = []
    for row in reservations:
        if chance.random() > 0.4:
            continue
        state, code, reason = chance.choice(ENDS)
        length = (row.end - row.start) * chance.uniform(0.3, 0.95)
        if state == JobState.STOPPED:
            length = row.end - row.start - timedelta(seconds=5)
        ended.append(
            Job(
                reservation=row,
                owner=row.user,
                name=row.purpose,
                kind=Job.Kind.SCRIPT,
                arguments=[],
                node=row.allocations.select_related("gpu__node")[0].gpu.node,
                state=state,
                reason=reason,
                attempt=1,
                exit_code=code,
                created_at=row.created_at,
                ordered_at=row.start,
                started_at=row.start + timedelta(seconds=2),
                stop_at=row.end - timedelta(seconds=15)
                if state == JobState.STOPPED
                else None,
                last_lines=LAST_LINES[state],
                ended_at=row.start + length,
            )
        )
    Job.objects.bulk_create(ended)
    JobEvent.objects.bulk_create(
        JobEvent(job=job, at=at, old=old, new=new, actor="portal", reason=why)
        for job in ended
        for at, old, new, why in (
            (job.created_at, "", "queued", "launched"),
            (job.ordered_at, "queued", "starting", "the Reservation began"),
            (job.started_at, "starting", "running", ""),
            (job.ended_at, "running", job.state, job.reason),
        )
        if at is not None
    )
    return ended
