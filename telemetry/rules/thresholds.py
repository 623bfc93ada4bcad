"""From when on a reading is a finding: the operator's thresholds as one value.

Two thresholds are not here, because the calendar's own rules use them too and
there must be one truth: idleness and absence (`reservations.rules.policy`,
`idle_seconds`, `idle_util_pct`, `no_show_seconds`). Sources:
docs/design/telemetry.md#findings; NVIDIA's "XID Errors" (r580) for the lists of codes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

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
"""What applications do to themselves, and what repaired itself."""
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


BOUNDS: dict[str, tuple[int, int]] = {
    "least_samples": (2, MOST_SAMPLES),
    "intruder_after_seconds": (2, 3600),
    "squatter_after_seconds": (5, DAY_SECONDS),
    "overrun_after_seconds": (2, 3600),
    "zombie_after_seconds": (5, DAY_SECONDS),
    "zombie_memory_mib": (64, 2**20),
    "lost_after_seconds": (2, 600),
    "silent_after_seconds": (30, DAY_SECONDS),
    "thermal_after_seconds": (10, DAY_SECONDS),
    "brake_after_seconds": (10, DAY_SECONDS),
    "counter_after_seconds": (10, 3600),
    "closes_after_seconds": (2, 3600),
    "hardware_closes_after_seconds": (5, DAY_SECONDS),
    "reopens_within_seconds": (0, DAY_SECONDS),
    "xid_stands_seconds": (60, 30 * DAY_SECONDS),
    "whitelist_memory_mib": (64, 2**20),
    "warn_after_seconds": (10, DAY_SECONDS),
    "stop_after_seconds": (30, DAY_SECONDS),
}
"""Least and most that an operator may set, in the field's own unit.

At 1 Hz a cause that need not stand for two seconds is judged on one sample or on
none; a display server holds some 100 MiB; a counter is read every 10 s. Upper ends:
what nobody can mean. A cause that never reopens its finding (0) can be meant.
"""


class PolicyInvalid(ValueError):
    """A threshold that cannot be meant; names the field."""

    def __init__(self, *, field: str, why: str) -> None:
        self.field = field
        self.why = why
        super().__init__(f"{field} {why}")


@dataclass(frozen=True, slots=True)
class JudgePolicy:
    """When findings open and close, and when the ladder's steps are due."""

    least_samples: int = 3
    """Fresh samples in a row that must show a cause; never one alone."""
    intruder_after_seconds: int = 4
    """How long a stranger's process stands on a booked Gpu."""
    squatter_after_seconds: int = 10
    """How long a process stands on a Gpu that nobody booked."""
    overrun_after_seconds: int = 4
    """How long the last holder's process stands after the end and its grace."""
    zombie_after_seconds: int = 10
    """How long memory is used without a visible process."""
    zombie_memory_mib: int = 1024
    """From how much such memory on."""
    lost_after_seconds: int = 3
    """How long the driver does not answer for a Gpu."""
    silent_after_seconds: int = 600
    """How long no sample comes from a node."""
    thermal_after_seconds: int = 300
    """How long the hardware slows a Gpu down because of heat."""
    brake_after_seconds: int = 300
    """How long the power brake is on."""
    counter_after_seconds: int = 15
    """How long an ECC or row-remap counter says so; it is read every 10 s."""
    closes_after_seconds: int = 15
    """How long a cause must be gone before its finding closes."""
    hardware_closes_after_seconds: int = 60
    """The same for findings of the hardware."""
    reopens_within_seconds: int = 300
    """A cause that comes back so soon opens the same finding again."""
    xid_critical: tuple[int, ...] = XID_CRITICAL
    xid_warning: tuple[int, ...] = XID_WARNING
    xid_never: tuple[int, ...] = XID_NEVER
    """Counted, and never a finding, whatever the other two lists hold."""
    xid_stands_seconds: int = DAY_SECONDS
    """How long after the last XID its finding stands, unless it is cleared."""
    whitelist: tuple[str, ...] = WHITELIST
    """Programs that nobody is accused of; * and ? as in file names."""
    whitelist_memory_mib: int = 1024
    """A listed name that holds more memory is judged like any other: a name can
    be chosen by whoever starts the program."""
    warn_after_seconds: int = 60
    """From an intruder's finding to the warning on the terminal."""
    stop_after_seconds: int = 300
    """From an intruder's finding to the stop of the process."""

    def __post_init__(self) -> None:
        """Check every field, and the fields against each other.

        Raises:
            PolicyInvalid: names the first field that is wrong.
        """
        for item in fields(self):
            if item.name.endswith("_seconds"):
                _between(item.name, getattr(self, item.name), 0, 30 * DAY_SECONDS)
            elif item.name.endswith("_mib"):
                _between(item.name, getattr(self, item.name), 0, 2**30)
        # One sample is noise: the least is two, whoever edits the policy.
        _between("least_samples", self.least_samples, 2, MOST_SAMPLES)
        _between("silent_after_seconds", self.silent_after_seconds, 30, DAY_SECONDS)
        for name in ("xid_critical", "xid_warning", "xid_never"):
            for code in getattr(self, name):
                _between(name, code, 1, MOST_XID)
        if twice := set(self.xid_critical) & set(self.xid_warning):
            raise PolicyInvalid(
                field="xid_warning", why=f"names {min(twice)}, which is critical"
            )
        if len(self.whitelist) > MOST_NAMES:
            raise PolicyInvalid(field="whitelist", why=f"has over {MOST_NAMES} names")
        for name in self.whitelist:
            if len(name) > NAME_LENGTH or not name.strip("*? "):
                raise PolicyInvalid(
                    field="whitelist",
                    why=f"has a line that is not a name: {name!r:.40}",
                )
        if self.stop_after_seconds < self.warn_after_seconds:
            raise PolicyInvalid(
                field="stop_after_seconds", why="comes before the warning"
            )


def _between(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise PolicyInvalid(field=name, why=f"is not between {least} and {most}")


def parse_codes(text: str, *, field: str) -> tuple[int, ...]:
    """Codes out of "48 62, 64", sorted, each once.

    Raises:
        PolicyInvalid: a word is no number.
    """
    words = text.replace(",", " ").split()
    for word in words:
        if not (word.isascii() and word.isdecimal() and len(word) < 6):
            raise PolicyInvalid(field=field, why=f"holds {word!r:.20}, no XID")
    return tuple(sorted({int(word) for word in words}))


def parse_names(text: str) -> tuple[str, ...]:
    """Names out of a text with one on each line, in order, each once."""
    return tuple(
        dict.fromkeys(line.strip() for line in text.splitlines() if line.strip())
    )
