"""``manage.py split``: the ``split`` of ``placement.planner``."""

from placement.management.planner_door import PlannerCommand
from placement.planner.cli.split_command import SPLIT


class Command(PlannerCommand):
    """One case prints one object. A list, or a file with "cases", prints a list with
    ids.
    """

    command = SPLIT
    help = SPLIT.help
