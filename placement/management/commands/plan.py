"""``manage.py plan``: the planner's ``plan``, also for the GPUs of the portal.

With ``--gpus FILE`` neither the database nor the broker is needed. ``--gpus live`` (the
default) plans on the portal's GPUs, now or for --hours from --at.
"""

import argparse
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import OperationalError
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from redis.exceptions import ConnectionError as NoBroker

from placement.management.planner_door import PlannerCommand
from placement.planner.cli.plan_command import (
    PLAN,
    PlanAnswer,
    Question,
    add_common_options,
    plan_answer,
    question_of,
    text_of,
)
from placement.planner.cli.workload_options import options_for_cards, workload_of
from placement.planner.search.card_support import cards_of
from placement.planner.values.errors import BadInput
from placement.plans import service as planning
from reservations.models import User

LIVE = "live"
LIVE_HOURS = 4.0


class Command(PlannerCommand):
    """Prints Plans as tables, or everything as JSON."""

    command = PLAN
    help = "Rank the ways to run a model on GPUs of a file, or of the portal."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--gpus", default=LIVE, metavar="FILE|live", help="JSON list; - reads stdin"
        )
        parser.add_argument("--at", metavar="TIME", help="live: 2030-05-01T09:00")
        parser.add_argument(
            "--hours", type=float, help=f"live: how long; default {LIVE_HOURS:g}"
        )
        parser.add_argument(
            "--user", help="live: the user whose reservations count as free"
        )
        add_common_options(parser)

    def answer(self, options: Mapping[str, Any]) -> str:
        """Return the Plans. Raises CodedError or OSError."""
        if options["gpus"] == LIVE:
            for name in ("host_memory", "disk"):
                if options[name] is not None:
                    field = name.replace("_", "-")
                    detail = "belongs to a file of GPUs: the portal's nodes measure it"
                    raise BadInput({field: detail})
            try:
                question, answer = _live(options)
            except (OperationalError, NoBroker) as error:
                detail = f"the portal's database or Redis cannot be reached: {error}"
                raise BadInput({"gpus": detail}) from error
            return text_of(answer, question)
        for name in ("at", "hours", "user"):
            if options[name] is not None:
                raise BadInput({name: "belongs to --gpus live: a file has no calendar"})
        return plan_answer(options)


def _live(options: Mapping[str, Any]) -> tuple[Question, PlanAnswer]:
    """Plan on the portal's Gpus, with the time at which the first Plan could start."""
    now = timezone.now()
    at = _instant(options["at"])
    hours = LIVE_HOURS if options["hours"] is None else options["hours"]
    user = _user(options["user"])
    offered = planning.offered(user=user, at=at, hours=hours, now=now)
    question = question_of(options_for_cards(options, cards_of(offered.offers)))
    options = question.options
    workload = workload_of(options)
    if options["wish"] == "soonest":
        soonest = planning.soonest_plans(
            user=user,
            spec=question.spec,
            workload=workload,
            at=at,
            hours=hours,
            now=now,
            limits=question.limits,
            known=offered,
        )
        found, offered = soonest.found, soonest.offered
    else:
        found = planning.make_plans(
            spec=question.spec,
            workload=workload,
            offers=offered.offers,
            limits=question.limits,
            objective=options["wish"],
        )
    earliest = None
    if found.best is not None:
        start = planning.earliest_start(plan=found.best, at=at, hours=hours, now=now)
        earliest = None if start is None else start.to_json()
    return question, PlanAnswer(
        found, offered.start.isoformat(), offered.end.isoformat(), earliest
    )


def _instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        at = parse_datetime(text)
    except ValueError:
        at = None
    if at is None:
        raise BadInput({"at": f"'{text[:40]}' is not a time such as 2030-05-01T09:00"})
    return timezone.make_aware(at) if timezone.is_naive(at) else at


def _user(name: str | None) -> User | None:
    if name is None:
        return None
    found = User.objects.filter(username=name).first()
    if found is None:
        raise BadInput({"user": f"there is no user '{name[:80]}'"})
    return found
