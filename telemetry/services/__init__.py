"""What may be written on the ground floor. Other floors call these, nothing else."""

from telemetry.services.alerts import (
    acknowledge_alert,
    close_alert,
    close_unseen_alerts,
    judge_channels,
    judge_refused,
    mark_silent_nodes,
    open_alert,
    snooze_alert,
    wake_alert,
)
from telemetry.services.desk import (
    make_pool,
    retire,
    set_gpus,
    set_node_draining,
    set_replaced,
    set_weight,
)
from telemetry.services.hours import (
    mark_hours_due,
    prune_hours,
    roll_account_hours,
    roll_hours,
)
from telemetry.services.minutes import prune_minutes, record_minutes
from telemetry.services.nodes import (
    enroll_node,
    mark_channel,
    mark_seen,
    record_channel,
    renew_token,
    retire_node,
    set_lost,
)
from telemetry.services.policy import set_policy
from telemetry.services.responses import (
    NO_ANSWER,
    finish_response,
    give_up_responses,
    note_response,
    take_back_response,
)
from telemetry.services.roster import RosterReport, record_roster
from telemetry.services.summaries import (
    ask_summary,
    count_usage,
    fill_summaries,
    stored_usage,
    usage_of,
)
from telemetry.services.xids import (
    clear_xids,
    count_xids,
    judge_xids,
    says_off_the_bus,
)

__all__ = [
    "NO_ANSWER",
    "RosterReport",
    "acknowledge_alert",
    "ask_summary",
    "clear_xids",
    "close_alert",
    "close_unseen_alerts",
    "count_usage",
    "count_xids",
    "enroll_node",
    "fill_summaries",
    "finish_response",
    "give_up_responses",
    "judge_channels",
    "judge_refused",
    "judge_xids",
    "make_pool",
    "mark_channel",
    "mark_hours_due",
    "mark_seen",
    "mark_silent_nodes",
    "note_response",
    "open_alert",
    "prune_hours",
    "prune_minutes",
    "record_channel",
    "record_minutes",
    "record_roster",
    "renew_token",
    "retire",
    "retire_node",
    "roll_account_hours",
    "roll_hours",
    "says_off_the_bus",
    "set_gpus",
    "set_lost",
    "set_node_draining",
    "set_policy",
    "set_replaced",
    "set_weight",
    "snooze_alert",
    "stored_usage",
    "take_back_response",
    "usage_of",
    "wake_alert",
]
