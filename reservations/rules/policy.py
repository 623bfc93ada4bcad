"""The site's rules as one frozen value, each declared once.

See docs/design/fair-booking.md#defaults. The row, the page and the admin are made from
the declarations, as ``telemetry.rules.policy_declaration`` describes. A new rule needs
its declaration here, a migration, and the code that applies it.
"""

from __future__ import annotations

from dataclasses import dataclass

from reservations.rules.window import DAY_SECONDS, HOUR_SECONDS
from telemetry.protocol.sentences import sentence
from telemetry.rules.policy_declaration import (
    PolicyInvalid,
    check_between,
    check_limits_of,
    rule,
)

LONGEST_POSSIBLE_SECONDS = 31 * DAY_SECONDS
"""The maximum for every site. It bounds how far back a query for overlaps reads."""
GRID_MOST_SECONDS = DAY_SECONDS
MOST_LIVE_RESERVATIONS = 1000
_YEAR_SECONDS = 366 * DAY_SECONDS
_MOST_GPU_SECONDS = 10**13
_MOST_BYTES = 2**50

_WHEN = sentence("When people can book")
_HOW_MUCH = sentence("How much people can book")
_SHARE = sentence("Fair share and returns")
_UNUSED = sentence("Bookings that are not used")
_NO_SHOWS = sentence("After several no-shows")
_AFTER = sentence("After the end")
_WAITLIST = sentence("Waitlist")
_FAILURES = sentence("Failures and vouchers")
_JOBS = sentence("Jobs")
_PEOPLE = sentence("People")


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules about requests, prices, jobs, and the visibility of names.

    The page shows the rules of a group together, in this order.
    """

    grid_seconds: int = rule(
        HOUR_SECONDS,
        sentence("grid"),
        sentence(
            "Reservations begin and end on multiples of this time. It must divide a "
            "day."
        ),
        shown="1 h",
        least=60,
        most=GRID_MOST_SECONDS,
        group=_WHEN,
    )
    """A reservation that begins now may begin off it."""
    firm_horizon_seconds: int = rule(
        14 * DAY_SECONDS,
        sentence("firm horizon"),
        sentence("How far ahead a reservation may begin."),
        shown=sentence("14 days"),
        least=0,
        most=_YEAR_SECONDS,
        group=_WHEN,
    )
    flex_horizon_seconds: int = rule(
        3 * DAY_SECONDS,
        sentence("flex horizon"),
        sentence("How far ahead a flex reservation may begin."),
        shown=sentence("3 days"),
        least=0,
        most=_YEAR_SECONDS,
        group=_WHEN,
    )
    freeze_seconds: int = rule(
        12 * HOUR_SECONDS,
        sentence("freeze"),
        sentence(
            "How long before its start nobody can take a flex reservation any more."
        ),
        shown="12 h",
        least=0,
        most=14 * DAY_SECONDS,
        group=_WHEN,
    )
    longest_seconds: int = rule(
        DAY_SECONDS,
        sentence("longest"),
        sentence(
            "Longest reservation. Reservations of one person that follow each other on "
            "a GPU count as one."
        ),
        shown="24 h",
        least=60,
        most=LONGEST_POSSIBLE_SECONDS,
        group=_WHEN,
    )
    quota_gpu_seconds: int = rule(
        40 * HOUR_SECONDS * 10,
        sentence("quota"),
        sentence(
            "Firm time of one member in any 7 days, unless the membership has its "
            "own quota."
        ),
        shown=sentence("40 h of a GPU of weight 10"),
        least=0,
        most=_MOST_GPU_SECONDS,
        group=_HOW_MUCH,
    )
    person_quota_gpu_seconds: int = rule(
        80 * HOUR_SECONDS * 10,
        sentence("person quota"),
        sentence("Firm time of one person in any 7 days, over all groups together."),
        shown=sentence("80 h of weight 10"),
        least=0,
        most=_MOST_GPU_SECONDS,
        group=_HOW_MUCH,
    )
    gpus_at_once: int = rule(
        4,
        sentence("gpus at once"),
        sentence("GPUs that one person may hold at the same time."),
        least=1,
        most=64,
        group=_HOW_MUCH,
    )
    """Counted over all Memberships, like the next two."""
    live_reservations: int = rule(
        6,
        sentence("live reservations"),
        sentence("Reservations that one person may have, booked and running together."),
        least=1,
        most=MOST_LIVE_RESERVATIONS,
        group=_HOW_MUCH,
    )
    future_flex: int = rule(
        2,
        sentence("future flex"),
        sentence("Flex reservations that one person may have ahead."),
        least=0,
        most=1000,
        group=_HOW_MUCH,
    )
    half_life_seconds: int = rule(
        14 * DAY_SECONDS,
        sentence("half life"),
        sentence("After this time, past use counts half in fair share."),
        shown=sentence("14 days"),
        # With a shorter one the weights would have many thousand digits.
        least=DAY_SECONDS,
        most=10 * _YEAR_SECONDS,
        group=_SHARE,
    )
    late_return_permille: int = rule(
        500,
        sentence("late return"),
        sentence(
            "Part of the price that is charged for hours returned less than a "
            "day ahead, unless someone else then holds them. A ratio, 0 to 1; default "
            "0.5."
        ),
        least=0,
        most=1000,
        group=_SHARE,
    )
    free_return_permille: int = rule(
        500,
        sentence("free return"),
        sentence(
            "Part of the quota that a person may return before the start in "
            "14 days, in addition to what they used. A ratio; default 0.5."
        ),
        least=0,
        most=100_000,
    )
    returned_horizon_seconds: int = rule(
        DAY_SECONDS,
        sentence("returned horizon"),
        sentence("How far ahead a person may book after returning more than that."),
        shown="24 h",
        least=0,
        most=_YEAR_SECONDS,
    )
    displacement_pause_seconds: int = rule(
        DAY_SECONDS,
        sentence("displacement pause"),
        sentence(
            "How long a person who displaced a flex reservation and gave the time back "
            "cannot displace the same person again."
        ),
        shown="24 h",
        least=0,
        most=_YEAR_SECONDS,
    )
    release_no_shows: bool = rule(
        True,
        sentence("release no shows"),
        sentence("Release bookings that nobody uses (no-shows); default yes."),
        group=_UNUSED,
    )
    no_show_seconds: int = rule(
        15 * 60,
        sentence("no show"),
        sentence(
            "Time without use or check-in after which a booking is released. Only time "
            "with readings counts."
        ),
        shown="15 min",
        least=60,
        most=DAY_SECONDS,
        group=_UNUSED,
    )
    release_idle: bool = rule(
        False,
        sentence("release idle"),
        sentence("Release bookings that stay idle after a warning; default no."),
        group=_UNUSED,
    )
    idle_util_pct: float = rule(
        3.0,
        sentence("idle util"),
        sentence(
            "Mean utilization under which a GPU counts as idle. In percent, "
            "0 to 100; default 3."
        ),
        least=0,
        most=100,
        group=_UNUSED,
    )
    idle_seconds: int = rule(
        30 * 60,
        sentence("idle"),
        sentence(
            "Time below the idle threshold after which the holder is warned. Only time "
            "with readings counts."
        ),
        shown="30 min",
        least=60,
        most=7 * DAY_SECONDS,
        group=_UNUSED,
    )
    idle_grace_seconds: int = rule(
        10 * 60,
        sentence("idle grace"),
        sentence(
            "Time from the warning to the release. Only time with readings counts."
        ),
        shown="10 min",
        least=60,
        most=DAY_SECONDS,
        group=_UNUSED,
    )
    strike_no_shows: int = rule(
        3,
        sentence("strike no shows"),
        sentence("No-shows of one person that shorten the horizon."),
        least=1,
        most=100,
        group=_NO_SHOWS,
    )
    strike_window_seconds: int = rule(
        30 * DAY_SECONDS,
        sentence("strike window"),
        sentence("Only no-shows within this time count."),
        shown=sentence("30 days"),
        least=DAY_SECONDS,
        most=_YEAR_SECONDS,
        group=_NO_SHOWS,
    )
    strike_horizon_seconds: int = rule(
        48 * HOUR_SECONDS,
        sentence("strike horizon"),
        sentence("How far ahead a person may book after these no-shows, firm or flex."),
        shown="48 h",
        least=0,
        most=_YEAR_SECONDS,
        group=_NO_SHOWS,
    )
    strike_seconds: int = rule(
        14 * DAY_SECONDS,
        sentence("strike"),
        sentence("How long the shorter horizon lasts after the last no-show."),
        shown=sentence("14 days"),
        least=0,
        most=_YEAR_SECONDS,
        group=_NO_SHOWS,
    )
    overstay_seconds: int = rule(
        12 * HOUR_SECONDS,
        sentence("overstay"),
        sentence(
            "How long a reservation may stay on after its end while nobody books its "
            "GPUs. 0: not at all."
        ),
        shown="12 h",
        least=0,
        most=LONGEST_POSSIBLE_SECONDS,
        group=_AFTER,
    )
    overstay_notice_seconds: int = rule(
        10 * 60,
        sentence("overstay notice"),
        sentence(
            "Time to leave after someone books a GPU on which a reservation stayed on."
        ),
        shown="10 min",
        least=60,
        most=DAY_SECONDS,
        group=_AFTER,
    )
    planned_requests: int = rule(
        5,
        sentence("planned requests"),
        sentence(
            "Number of waiting requests, from the first in line, that get a planned "
            "start."
        ),
        least=0,
        most=100,
        group=_WAITLIST,
    )
    """Conservative backfill."""
    waiting_requests: int = rule(
        5,
        sentence("waiting requests"),
        sentence("Waiting requests that one person may have at a time."),
        least=0,
        most=1000,
        group=_WAITLIST,
    )
    look_again_seconds: int = rule(
        60,
        sentence("waitlist check"),
        sentence("How often waiting requests are checked when nothing has changed."),
        shown="1 min",
        least=1,
        most=HOUR_SECONDS,
        group=_WAITLIST,
    )
    lost_seconds: int = rule(
        10 * 60,
        sentence("lost"),
        sentence("If a GPU is lost for longer than this, its reservation is refunded."),
        shown="10 min",
        least=0,
        most=DAY_SECONDS,
        group=_FAILURES,
    )
    token_seconds: int = rule(
        90 * DAY_SECONDS,
        sentence("voucher validity"),
        sentence(
            "How long a voucher is valid. The booking must begin within this time."
        ),
        shown=sentence("90 days"),
        least=DAY_SECONDS,
        most=_YEAR_SECONDS,
        group=_FAILURES,
    )
    stop_grace_seconds: int = rule(
        30,
        sentence("stop grace"),
        sentence("Time between SIGTERM and SIGKILL when a job is stopped."),
        shown="30 s",
        least=0,
        most=HOUR_SECONDS,
        group=_JOBS,
    )
    job_folder_bytes: int = rule(
        100 * 2**30,
        sentence("job folder bytes"),
        sentence(
            "Largest size of a job's folder on its node. A job that exceeds "
            "it is stopped."
        ),
        shown="100 GiB",
        least=0,
        most=_MOST_BYTES,
        group=_JOBS,
    )
    person_folders_bytes: int = rule(
        300 * 2**30,
        sentence("person folders bytes"),
        sentence(
            "Largest total size of the folders of one person's jobs on one node. The "
            "oldest folders of ended jobs are removed first."
        ),
        shown="300 GiB",
        least=0,
        most=_MOST_BYTES,
        group=_JOBS,
    )
    names_visible: bool = rule(
        True,
        sentence("names visible"),
        sentence(
            "Students see who holds a GPU. Off: they see only the group. Default yes."
        ),
        group=_PEOPLE,
    )
    heads_add_members: bool = rule(
        True,
        sentence("heads add members"),
        sentence(
            "Group heads add and remove members and make links to join; default yes."
        ),
        group=_PEOPLE,
    )
    version: int = 0
    """Counts the changes. Stored with every decision
    (docs/design/fair-booking.md#rule-8).
    """

    def __post_init__(self) -> None:
        """Check every rule, and the rules against each other.

        Raises:
            PolicyInvalid: names the first invalid field.
        """
        check_limits_of(self)
        if DAY_SECONDS % self.grid_seconds:
            raise PolicyInvalid(
                field="grid_seconds", why=sentence("does not divide a day")
            )
        check_between(
            "longest_seconds",
            self.longest_seconds,
            self.grid_seconds,
            LONGEST_POSSIBLE_SECONDS,
        )
        if self.flex_horizon_seconds > self.firm_horizon_seconds:
            raise PolicyInvalid(
                field="flex_horizon_seconds", why=sentence("is beyond the firm horizon")
            )
