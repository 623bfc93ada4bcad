"""The site's rules for plans, and for the files that jobs leave behind.

The rules for moving jobs are in ``rebalance_policy``. Only the admin shows them.
"""

from dataclasses import dataclass

from telemetry.protocol.sentences import sentence
from telemetry.rules.policy_declaration import rule


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPolicy:
    """The resources on which plans may count."""

    network_bytes_per_second: int = rule(
        0,
        "",
        sentence(
            "Network speed between nodes, in bytes per second and one direction (10 "
            "Gbit/s: 1250000000). 0: unknown, so no plan uses several nodes."
        ),
        says_unit=True,
    )
    offload_memory_bytes: int | None = rule(
        None,
        "",
        sentence(
            "Memory of a node that a plan may use for offloading, in bytes. Empty: "
            "no limit."
        ),
    )
    learns: bool = rule(
        True,
        "",
        sentence("Whether the results of jobs correct later predictions."),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilePolicy:
    """How much of results, logs and checkpoints the portal keeps, and how long."""

    results_most_files: int = rule(
        200,
        "",
        sentence("Maximum number of result files that the portal keeps per job."),
        says_unit=True,
    )
    results_most_bytes: int = rule(
        2 * 2**30,
        "",
        sentence("Maximum size of all result files of one job together, in bytes."),
    )
    results_keep_days: int = rule(
        30,
        "",
        sentence("Results are deleted this many days after the end of their job."),
    )
    results_person_bytes: int = rule(
        50 * 2**30,
        "",
        sentence(
            "Maximum size of the results that the portal keeps for one person, in "
            "bytes. 0: no limit."
        ),
    )
    logs_keep_days: int = rule(
        90,
        "",
        sentence(
            "Logs are deleted this many days after the end of their job. 0: never."
        ),
    )
    logs_person_bytes: int = rule(
        20 * 2**30,
        "",
        sentence(
            "Maximum size of the logs that the portal keeps for one person's jobs, "
            "in bytes. The oldest are deleted first. 0: no limit."
        ),
    )
    checkpoint_bytes: int = rule(
        8 * 2**30,
        "",
        sentence(
            "Largest checkpoint that may be copied between nodes through the "
            "portal, in bytes. 0: none."
        ),
    )
