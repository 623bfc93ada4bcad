"""Erase a person's Jobs, models and Plans: names, scripts, logs, files.

How long each Job ran on which Gpus is kept, because summaries and balances need it.
"""

from itertools import chain
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.db.models import CharField, F, Model, Value
from django.db.models.functions import Cast, Concat

from placement.jobs import model_files
from placement.jobs.nodes import result_files
from placement.models import (
    Backfill,
    CarriedCheckpoint,
    Job,
    JobArray,
    JobEvent,
    JobPart,
    ModelFile,
    MoveDecision,
    PlacementPolicy,
    RegisteredModel,
    ScriptFolder,
    ServedModel,
    StoredPlan,
    WaitingLaunch,
)
from reservations.accounts.erasure import rewrite
from reservations.accounts.name_removal import PersonNames, StillHolds
from reservations.models import User
from telemetry.protocol.sentences import sentence

NAMING: tuple[tuple[type[Model], tuple[str, ...]], ...] = (
    (Backfill, ("reason",)),
    (JobEvent, ("actor", "reason")),
    (Job, ("reason", "recipe_settings", "parameters")),
    (JobArray, ("sweep",)),
    (MoveDecision, ("cause", "reason")),
    (PlacementPolicy.history.model, ("history_change_reason",)),
)
"""Texts of this app that may name a person."""


def check_no_jobs(user: User) -> None:
    """Refuse while the person has a live Job.

    Raises:
        StillHolds.
    """
    waits = Backfill.objects.live().filter(owner=user).exists()
    if waits or Job.objects.live().filter(owner=user).exists():
        raise StillHolds(what=sentence("has a job that runs or waits"))


def forget(*, user: User, names: PersonNames) -> None:
    """Erase what a person named, wrote and logged, in the caller's transaction.

    Raises:
        StillHolds: a Job is live.
    """
    check_no_jobs(user)
    jobs = Job.objects.filter(owner=user)
    numbers = list(jobs.values_list("pk", flat=True))
    kept = list(ModelFile.objects.filter(owner=user))
    jobs.update(
        name=_numbered("job"),
        script="",
        script_folder=None,
        arguments=[],
        environment_folder="",
        last_lines=[],
        reason="",
    )
    ScriptFolder.objects.filter(owner=user).delete()
    JobPart.objects.filter(job__in=numbers).update(last_lines=[], reason="")
    CarriedCheckpoint.objects.filter(job__in=numbers).update(
        state=CarriedCheckpoint.State.DROPPED, reason=""
    )
    result_files.forget(numbers)
    WaitingLaunch.objects.filter(waiting__user=user).delete()
    Backfill.objects.filter(owner=user).update(
        name=_numbered(sentence("job in gaps")), launch={}, reason=""
    )
    JobArray.objects.filter(owner=user).update(name=_numbered("array"))
    StoredPlan.objects.filter(owner=user).update(
        title=_numbered("plan"), address="", link_key=""
    )
    RegisteredModel.objects.filter(owner=user).update(name=_numbered("model"))
    ModelFile.objects.filter(owner=user).update(name=_numbered("model"))
    ServedModel.objects.filter(added_by=user).update(name=_numbered("served"))
    for model, fields in NAMING:
        rewrite(model, fields, names)
    transaction.on_commit(lambda: _remove_files(numbers, kept))


def _numbered(word: str) -> Concat:
    """Return "job 17". Some places require a name, so it is never empty."""
    return Concat(
        Value(f"{word} "), Cast(F("pk"), CharField()), output_field=CharField()
    )


def _remove_files(jobs: list[int], kept: list[ModelFile]) -> None:
    """Remove logs, checkpoints and model files. Missing files are no error."""
    media = Path(settings.MEDIA_ROOT)
    for number in jobs:
        found = [media.glob(f"{kind}/{number}-*") for kind in ("logs", "checkpoints")]
        for path in chain.from_iterable(found):
            path.unlink(missing_ok=True)
    for row in kept:
        model_files.remove(row)
