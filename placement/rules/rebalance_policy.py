"""The site's rules for moving running Jobs, and how an owner lets a Job restart.

``rebalance_review.py`` decides by them.
"""

from dataclasses import dataclass
from enum import StrEnum

from placement.planner.search.move_or_stay import HOLD_DOWN_FACTOR, MARGIN_RATIO
from telemetry.protocol.sentences import sentence
from telemetry.rules.policy_declaration import rule


class RebalanceAction(StrEnum):
    """The actions that a policy allows, and the results of a review."""

    NEVER = "never"
    PROPOSE = "propose"
    DO = "do"

    @property
    def label(self) -> str:
        """Return the words of the policy's form."""
        return {
            "never": sentence("never"),
            "propose": sentence("propose it"),
            "do": sentence("do it"),
        }[self.value]


class RestartMode(StrEnum):
    """How a Job may be started again, as its owner set it."""

    NOT = ""
    FRESH = "fresh"
    RESUMES = "resumes"

    @property
    def label(self) -> str:
        """Return the words of the Job's form."""
        return {
            "": sentence("no: it stays where it is"),
            "fresh": sentence("yes, from its beginning"),
            "resumes": sentence("yes, it resumes from its own checkpoint"),
        }[self.value]


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancePolicy:
    """The site's rules for moving running Jobs. Only the admin shows them."""

    look_again_seconds: int = rule(
        60,
        "",
        sentence(
            "Time between two checks of a running job for faster GPUs. In seconds; "
            "0: never."
        ),
        says_unit=True,
    )
    when_faster: RebalanceAction = rule(
        RebalanceAction.PROPOSE,
        "",
        sentence(
            "What to do when a job would save more time on other GPUs than a move "
            "costs."
        ),
    )
    when_in_trouble: RebalanceAction = rule(
        RebalanceAction.PROPOSE,
        "",
        sentence("What to do when someone else uses a job's GPU, or the GPU fails."),
    )
    margin_ratio: float = rule(
        MARGIN_RATIO,
        "",
        sentence("How much more than its cost a move must save. A ratio; 0.1 is 10 %."),
    )
    hold_down_factor: float = rule(
        HOLD_DOWN_FACTOR,
        "",
        sentence(
            "Pause before the next move, as a multiple of the cost of the last one."
        ),
    )
    pause_seconds: int = rule(
        30,
        "",
        sentence("Time that it takes to stop and restart a job. In seconds."),
        says_unit=True,
    )
