"""``manage.py cards``: the ``cards`` of ``placement.planner``."""

from placement.management.planner_door import PlannerCommand
from placement.planner.cli.cards_command import CARDS_COMMAND


class Command(PlannerCommand):
    """The table of cards, or the row of one name."""

    command = CARDS_COMMAND
    help = CARDS_COMMAND.help
