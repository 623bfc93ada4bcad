"""Which nodes of a cluster can be reserved by the number of their GPUs. Pure.

Source: reservations.html, scontrol(1) and the changelog of Slurm, and what 24.11.5 and
26.05.5 did on a live cluster (docs/slurm.md#by-count-versions).
"""

from collections.abc import Mapping

from telemetry.rules.slurm_use import WholeNodes
from telemetry.slurm.slurm_commands import SlurmVersion
from telemetry.slurm.slurm_records import SlurmNode

SOUND_GPU_RESERVATIONS = (25, 5, 3)
"""From this version on Slurm keeps the GPUs of several reservations of a node apart."""


def why_whole_cluster(
    version: SlurmVersion, config: Mapping[str, str]
) -> WholeNodes | None:
    """Return why a cluster reserves only whole nodes. None: it reserves GPUs.

    Args:
        config: the settings that ``scontrol show config`` printed.
    """
    if not version.since(*SOUND_GPU_RESERVATIONS):
        return WholeNodes.OLD
    if not config.get("AccountingStorageType", "").endswith("/slurmdbd"):
        return WholeNodes.NO_DATABASE
    if "gres/gpu" not in _tracked(config):
        return WholeNodes.NOT_TRACKED
    return None


def why_whole_node(node: SlurmNode, config: Mapping[str, str]) -> WholeNodes | None:
    """Return why a node is reserved as a whole in a cluster that reserves GPUs. None:
    a number of its GPUs can be reserved."""
    gpus = [one for one in node.gpus if one.count]
    kinds = {one.kind for one in gpus}
    if len(kinds) != 1:
        return WholeNodes.TYPES
    if not all(one.near_cores for one in gpus):
        return WholeNodes.NO_CORES
    (kind,) = kinds
    if kind and f"gres/gpu:{kind}" not in _tracked(config):
        return WholeNodes.TYPE_NOT_TRACKED
    if (node.cpus or 0) < sum(one.count for one in gpus):
        return WholeNodes.NO_CORES
    return None


def why_whole(
    node: SlurmNode, version: SlurmVersion, config: Mapping[str, str]
) -> WholeNodes | None:
    """Return why a node is reserved as a whole. None: by the number of its GPUs."""
    return why_whole_cluster(version, config) or why_whole_node(node, config)


def cpus_of_each(node: SlurmNode) -> int:
    """Return how many processors of a node are reserved with each of its GPUs."""
    return max(1, (node.cpus or 0) // sum(one.count for one in node.gpus))


def _tracked(config: Mapping[str, str]) -> frozenset[str]:
    return frozenset(config.get("AccountingStorageTRES", "").split(","))
