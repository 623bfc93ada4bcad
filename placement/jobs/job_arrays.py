"""Arrays: one launch that becomes a Job for every combination of a sweep."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction

from placement.jobs.service import launch_in, stop
from placement.models import Job, JobArray
from placement.planner.launch.recipes import RECIPES
from placement.planner.values.errors import LaunchInvalid
from placement.rules.job_refusals import JobOver
from placement.rules.sweep import (
    Sweep,
    combinations,
    filled,
    title_of,
)
from reservations.models import Reservation, User
from reservations.rules.errors import NotFound
from telemetry.protocol.sentences import sentence

MOST_NAME = 120


@transaction.atomic(durable=True)
def launch_array(
    *,
    user: User,
    reservation_id: int,
    name: str,
    sweep: Sweep,
    recipe: str = "",
    recipe_settings: Mapping[str, object] | None = None,
    arguments: Sequence[str] = (),
    gpu_count: int | None = None,
    now: datetime,
    **launch: Any,
) -> JobArray:
    """Launch all Jobs of a sweep, or none. They use the Reservation's Gpus in turn.

    Args:
        gpu_count: Gpus of each. None: one.
        launch: as for ``jobs.launch_in``, the same for all.

    Raises:
        LaunchInvalid: fields that cannot be used, of the first wrong Job.
        NotFound, JobRefusal: as for one Job.
    """
    rows = combinations(sweep)
    if not rows:
        raise LaunchInvalid({"sweep": sentence("has no parameters")})
    _check_names(sweep, recipe)
    if not Reservation.objects.filter(pk=reservation_id).exists():
        raise NotFound(
            what=sentence(
                "reservation #{reservation_id} of yours", reservation_id=reservation_id
            )
        )
    array: JobArray = JobArray.objects.create(
        owner=user,
        reservation_id=reservation_id,
        name=name.strip()[:MOST_NAME],
        sweep=sweep,
        created_at=now,
    )
    for index, values in enumerate(rows):
        settings = {**(recipe_settings or {}), **(values if recipe else {})}
        try:
            launch_in(
                user=user,
                reservation_id=reservation_id,
                name=_task_name(name, title_of(values)),
                recipe=recipe,
                recipe_settings=settings,
                arguments=filled(arguments, values),
                gpu_count=gpu_count or 1,
                now=now,
                array=array,
                array_index=index,
                parameters=values,
                **launch,
            )
        except LaunchInvalid as error:
            raise LaunchInvalid(_at_sweep(error.fields, values)) from None
    return array


def _at_sweep(
    problems: Mapping[str, str], values: Mapping[str, object]
) -> dict[str, str]:
    """Move the problems of a recipe's settings to the sweep that set them.

    >>> _at_sweep({"recipe_settings.layers": "must be a number"}, {"layers": "x"})
    {'sweep': 'layers = x: must be a number'}
    """
    told: dict[str, str] = {}
    for field, text in problems.items():
        name = field.removeprefix("recipe_settings.")
        if name != field and name in values:
            before = f"{told['sweep']}; " if "sweep" in told else ""
            told["sweep"] = f"{before}{name} = {values[name]}: {text}"
        else:
            told[field] = text
    return told


def stop_array(*, array_id: int, user: User, now: datetime, reason: str = "") -> int:
    """Stop the Jobs of an array that have not ended. Return how many.

    Raises:
        NotFound: this User has no such array, or for an operator there is no such one.
        NotAllowed: a group head can see it, but not stop it.
    """
    rows = Job.objects.visible_to(user).filter(array_id=array_id)
    if not rows.exists():
        raise NotFound(what=sentence("array #{array_id}", array_id=array_id))
    # The last first, so that no waiting Job begins meanwhile.
    pks = list(rows.live().order_by("-pk").values_list("pk", flat=True))
    asked = 0
    for pk in pks:
        try:
            stop(job_id=pk, user=user, now=now, reason=reason)
            asked += 1
        except JobOver:  # it ended while the others were asked
            continue
    return asked


def _check_names(sweep: Sweep, recipe: str) -> None:
    """Refuse parameters that a recipe does not know."""
    if recipe not in RECIPES:
        return
    known = {setting.name for setting in RECIPES[recipe].settings}
    for name in sweep:
        if name not in known:
            raise LaunchInvalid(
                {
                    "sweep": sentence(
                        "{name} is not a setting of {recipe}", name=name, recipe=recipe
                    )
                }
            )


def _task_name(name: str, values: str) -> str:
    whole = f"{name.strip()}: {values}"
    return whole if len(whole) <= MOST_NAME else whole[: MOST_NAME - 1] + "…"
