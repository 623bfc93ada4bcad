"""The allowed transitions of a Job. A transition is one compare-and-set."""

from enum import StrEnum

from telemetry.protocol.sentences import sentence

CANNOT_START = 126
"""The exit code of a Job whose program could not be started, as a shell's."""
KEPT_DAYS = 7
"""How long a node keeps the folder of a Job that has ended, with its log."""


class JobState(StrEnum):
    """State of a Job."""

    QUEUED = "queued"  # waits for its Reservation's start
    STARTING = "starting"  # ordered from the node; no process seen yet
    RUNNING = "running"
    MOVING = "moving"  # stops here, and goes on elsewhere as another Job
    STOPPING = "stopping"  # TERM sent or ordered; KILL follows after the grace
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"  # ended by a user, or at the Window's end
    LOST = "lost"  # the node or the shim went away with it

    # StrEnum members have no label, which Django's choices need.
    @property
    def label(self) -> str:
        """Return the word on screen."""
        return _LABELS[self]

    @classmethod
    def live(cls) -> frozenset["JobState"]:
        """Return the states in which a Job holds or waits for Gpus."""
        return cls.on_node() | {cls.QUEUED}

    @classmethod
    def on_node(cls) -> frozenset["JobState"]:
        """Return the states in which the Job may have processes on its Gpus."""
        return cls.ending() | {cls.STARTING, cls.RUNNING}

    @classmethod
    def ending(cls) -> frozenset["JobState"]:
        """Return the states in which a stop was sent and the Job still runs."""
        return frozenset({cls.MOVING, cls.STOPPING})


_LABELS = {
    JobState.QUEUED: sentence("queued"),
    JobState.STARTING: sentence("starting"),
    JobState.RUNNING: sentence("running"),
    JobState.MOVING: sentence("moving"),
    JobState.STOPPING: sentence("stopping"),
    JobState.DONE: sentence("done"),
    JobState.FAILED: sentence("failed"),
    JobState.STOPPED: sentence("stopped"),
    JobState.LOST: sentence("lost"),
}
_ENDS = frozenset({JobState.DONE, JobState.FAILED, JobState.STOPPED, JobState.LOST})

NEXT: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.STARTING, JobState.STOPPED, JobState.FAILED}),
    # A short Job may end before its start was reported.
    JobState.STARTING: frozenset({JobState.RUNNING, JobState.STOPPING}) | _ENDS,
    JobState.RUNNING: frozenset({JobState.MOVING, JobState.STOPPING}) | _ENDS,
    JobState.MOVING: _ENDS,
    JobState.STOPPING: _ENDS,
    JobState.DONE: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.STOPPED: frozenset(),
    JobState.LOST: frozenset(),
}
