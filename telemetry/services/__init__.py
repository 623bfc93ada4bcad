"""What may be written on the ground floor. Other floors call these, nothing else."""

from telemetry.services.alerts import (
    close_alert,
    close_unseen_alerts,
    mark_silent_nodes,
    open_alert,
)
from telemetry.services.minutes import prune_minutes, record_minutes
from telemetry.services.nodes import enroll_node, mark_seen, renew_token, set_lost
from telemetry.services.roster import RosterReport, record_roster

__all__ = [
    "RosterReport",
    "close_alert",
    "close_unseen_alerts",
    "enroll_node",
    "mark_seen",
    "mark_silent_nodes",
    "open_alert",
    "prune_minutes",
    "record_minutes",
    "record_roster",
    "renew_token",
    "set_lost",
]
