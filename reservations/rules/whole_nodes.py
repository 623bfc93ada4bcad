"""Words for how Slurm gives out the GPUs of a node. Pure."""

from telemetry.protocol.sentences import joined, sentence
from telemetry.rules.slurm_use import WholeNodes

_WHOLE_BECAUSE: dict[str, str] = {
    WholeNodes.OLD: sentence(
        "This version of Slurm reserves whole nodes. Single GPUs need 25.05.3."
    ),
    WholeNodes.NO_DATABASE: sentence("Without slurmdbd, Slurm reserves whole nodes."),
    WholeNodes.NOT_TRACKED: sentence(
        "Slurm does not track GPUs (AccountingStorageTRES), so it reserves whole nodes."
    ),
    WholeNodes.TYPE_NOT_TRACKED: sentence(
        "Slurm does not track this type of GPU (AccountingStorageTRES), so it reserves "
        "whole nodes."
    ),
    WholeNodes.TYPES: sentence(
        "The node has GPUs of several types, so Slurm reserves it as a whole."
    ),
    WholeNodes.NO_CORES: sentence(
        "Slurm does not know the processors near its GPUs (Cores= in gres.conf), so it "
        "reserves the whole node."
    ),
}


def whole_node_words(because: str) -> str:
    """Return why a node is only given out as a whole, as a sentence; "": unknown.

    Args:
        because: a `WholeNodes`.
    """
    return _WHOLE_BECAUSE.get(because, "")


def engine_note(node: str, *, whole_node: bool, because: str) -> str:
    """Return what a person should know who books GPUs of a node of Slurm.

    Args:
        whole_node: whether it is only booked as a whole.
        because: a `WholeNodes`.
    """
    if whole_node:
        whole = sentence("Slurm gives out {node} as a whole.", node=node)
        return joined([whole, whole_node_words(because)])
    return sentence(
        "Slurm chooses the GPUs of {node} when jobs start. The calendar then shows "
        "which ones you have.",
        node=node,
    )
