"""``manage.py split``: the ``split`` of ``placement.planner``."""

from placement.management.planner_door import PlannerCommand
from placement.planner.cli.split_command import SPLIT


class Command(PlannerCommand):
    """One case answers one object; a list, or a file with "cases", a list with ids."""

    command = SPLIT
    help = SPLIT.help
