"""The operator's thresholds, which decide when a reading is a finding.

Two thresholds are not here, because the calendar's rules use them too and each is
stored once: idleness and absence (`reservations.rules.policy`, `idle_seconds`,
`idle_util_pct`, `no_show_seconds`). Sources: docs/design/telemetry.md#findings;
NVIDIA's "XID Errors" (r580) for the lists of codes.
"""

from __future__ import annotations

from dataclasses import dataclass

from telemetry.protocol.sentences import sentence
from telemetry.rules.policy_declaration import PolicyInvalid, check_limits_of, rule

DAY_SECONDS = 86_400
MOST_SAMPLES = 60
MOST_XID = 10_000
MOST_NAMES = 100
NAME_LENGTH = 60

XID_CRITICAL = (48, 62, 64, 74, 79, 95, 119, 120)
"""Double-bit ECC, halted microcontroller, row remap failed, NVLink, fallen off the
bus, uncontained ECC, GSP timeout, GSP error."""
XID_WARNING = (94,)
"""A contained ECC error: one application died of it, the Gpu goes on."""
XID_NEVER = (13, 31, 43, 63, 92)
"""Errors of applications, and errors that were repaired automatically."""
WHITELIST = (
    "Xorg",
    "Xwayland",
    "gnome-shell",
    "kwin_x11",
    "kwin_wayland",
    "sddm*",
    "gdm*",
    "nvidia-smi",
    "nvidia-persiste*",
    "nv-hostengine",
    "dcgm*",
    "nvtop",
    "nvitop",
    "gpustat",
)
"""Names of programs: display servers and monitors."""


@dataclass(frozen=True, slots=True)
class JudgePolicy:
    """When findings open and close, and when responses to intruders are due.

    An operator sets a value from ``least`` to ``most``. At 1 Hz a cause of less than
    two seconds would be judged on one sample or none. A display server holds about 100
    MiB. A counter is read every 10 s. The upper bounds exclude senseless values. The
    code that judges works from ``floor`` on.
    """

    least_samples: int = rule(
        3,
        sentence("least samples"),
        sentence("Fresh samples in a row that must show a cause. Samples."),
        least=2,
        most=MOST_SAMPLES,
    )
    """One sample is noise, so the least is two."""
    intruder_after_seconds: int = rule(
        4,
        sentence("intruder after"),
        sentence("How long another person's process must run on a booked GPU."),
        least=2,
        most=3600,
        floor=0,
    )
    squatter_after_seconds: int = rule(
        10,
        sentence("squatter after"),
        sentence("How long a process must run on a GPU that nobody has booked."),
        least=5,
        most=DAY_SECONDS,
        floor=0,
    )
    overrun_after_seconds: int = rule(
        4,
        sentence("overrun after"),
        sentence(
            "How long the last holder's process must still run after the end and the "
            "grace time."
        ),
        least=2,
        most=3600,
        floor=0,
    )
    zombie_after_seconds: int = rule(
        10,
        sentence("zombie after"),
        sentence("How long memory must be used without a visible process."),
        least=5,
        most=DAY_SECONDS,
        floor=0,
    )
    zombie_memory_mib: int = rule(
        1024,
        sentence("zombie memory"),
        sentence("Memory in use without a process that is worth an alert."),
        least=64,
        most=2**20,
        floor=0,
    )
    lost_after_seconds: int = rule(
        3,
        sentence("lost after"),
        sentence("How long the driver must fail to answer for a GPU."),
        least=2,
        most=600,
        floor=0,
    )
    silent_after_seconds: int = rule(
        600,
        sentence("silent after"),
        sentence("How long a node must send no readings."),
        least=30,
        most=DAY_SECONDS,
    )
    thermal_after_seconds: int = rule(
        300,
        sentence("thermal after"),
        sentence("How long the hardware must slow a GPU down because of heat."),
        least=10,
        most=DAY_SECONDS,
        floor=0,
    )
    brake_after_seconds: int = rule(
        300,
        sentence("brake after"),
        sentence("How long the power brake must be on."),
        least=10,
        most=DAY_SECONDS,
        floor=0,
    )
    counter_after_seconds: int = rule(
        15,
        sentence("counter after"),
        sentence(
            "How long an ECC or row-remap counter must show an error. Counters are "
            "read every 10 s."
        ),
        least=10,
        most=3600,
        floor=0,
    )
    closes_after_seconds: int = rule(
        15,
        sentence("closes after"),
        sentence("How long a cause must be gone to close its alert."),
        least=2,
        most=3600,
        floor=0,
    )
    hardware_closes_after_seconds: int = rule(
        60,
        sentence("hardware closes after"),
        sentence("How long a hardware cause must be gone to close its alert."),
        least=5,
        most=DAY_SECONDS,
        floor=0,
    )
    reopens_within_seconds: int = rule(
        300,
        sentence("reopens within"),
        sentence(
            "A cause that comes back within this time opens the same alert again."
        ),
        least=0,
        most=DAY_SECONDS,
    )
    xid_critical: tuple[int, ...] = rule(
        XID_CRITICAL,
        sentence("xid critical"),
        sentence("Open a critical alert."),
        least=1,
        most=MOST_XID,
    )
    xid_warning: tuple[int, ...] = rule(
        XID_WARNING,
        sentence("xid warning"),
        sentence("Open a warning."),
        least=1,
        most=MOST_XID,
    )
    xid_never: tuple[int, ...] = rule(
        XID_NEVER,
        sentence("xid never"),
        sentence("Count only. Never open an alert."),
        least=1,
        most=MOST_XID,
    )
    """Never a finding, even if one of the other two lists has it."""
    xid_stands_seconds: int = rule(
        DAY_SECONDS,
        sentence("xid open"),
        sentence(
            "How long an alert stays open after the last XID, unless it is cleared."
        ),
        least=60,
        most=30 * DAY_SECONDS,
        floor=0,
    )
    whitelist: tuple[str, ...] = rule(
        WHITELIST,
        sentence("whitelist"),
        sentence(
            "Programs that never open an alert, one name per line. * and ? match as in"
            " file names."
        ),
    )
    whitelist_memory_mib: int = rule(
        1024,
        sentence("whitelist memory"),
        sentence(
            "A listed program that uses more memory than this opens alerts like any "
            "other."
        ),
        least=64,
        most=2**20,
        floor=0,
    )
    """A limit is needed because a person chooses the names of their own programs."""
    warn_after_seconds: int = rule(
        60,
        sentence("warn after"),
        sentence(
            "Time from the alert about someone else's process to the warning on its "
            "terminal."
        ),
        least=10,
        most=DAY_SECONDS,
        floor=0,
    )
    stop_after_seconds: int = rule(
        300,
        sentence("stop after"),
        sentence(
            "Time from the alert about someone else's process to the end of that "
            "process."
        ),
        least=30,
        most=DAY_SECONDS,
        floor=0,
    )

    def __post_init__(self) -> None:
        """Check every field, and the fields against each other.

        Raises:
            PolicyInvalid: names the first invalid field.
        """
        check_limits_of(self)
        if twice := set(self.xid_critical) & set(self.xid_warning):
            raise PolicyInvalid(
                field="xid_warning",
                why=sentence("names {code}, which is critical", code=min(twice)),
            )
        if len(self.whitelist) > MOST_NAMES:
            raise PolicyInvalid(
                field="whitelist",
                why=sentence("has over {most} names", most=MOST_NAMES),
            )
        for name in self.whitelist:
            if len(name) > NAME_LENGTH or not name.strip("*? "):
                raise PolicyInvalid(
                    field="whitelist",
                    why=sentence(
                        "has a line that is not a name: {line}", line=f"{name!r:.40}"
                    ),
                )
        if self.stop_after_seconds < self.warn_after_seconds:
            raise PolicyInvalid(
                field="stop_after_seconds", why=sentence("comes before the warning")
            )


@dataclass(frozen=True, slots=True)
class RosterPolicy:
    """The treatment of GPUs that a node reports long after its enrolment."""

    new_gpus_wait: bool = rule(
        True,
        sentence("new GPUs wait"),
        sentence(
            "A GPU that a node first reports more than a day after its enrolment "
            "cannot be booked until the lab admin approves it. Off: it can be booked "
            "at once."
        ),
        column_label=sentence("new GPUs wait"),
    )
