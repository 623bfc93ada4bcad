"""``manage.py estimate``: the ``estimate`` of ``placement.planner``."""

from placement.management.planner_door import PlannerCommand
from placement.planner.cli.estimate_command import ESTIMATE


class Command(PlannerCommand):
    """One estimate as a table or JSON; with --spec, one object per case."""

    command = ESTIMATE
    help = ESTIMATE.help
