"""Whether one machine or two use the token of a node.

A machine has another boot id after each boot, and never has an earlier one again. So an
earlier id that returns belongs to a second machine, for example one whose disk was
cloned.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_BOOTS = 8
"""How many boots are remembered. Two machines take turns within minutes."""


def with_boot(boots: Sequence[str], boot_id: str) -> tuple[list[str], bool]:
    """Return the history after a report, and whether it shows a second machine.

    Args:
        boots: ids of earlier boots, the newest first.
        boot_id: the id in the report; "": the machine does not know it.

    >>> with_boot(["b", "a"], "c"), with_boot(["b", "a"], "a")
    ((['c', 'b', 'a'], False), (['a', 'b'], True))
    """
    if not boot_id or (boots and boots[0] == boot_id):
        return list(boots), False
    rest = [one for one in boots if one != boot_id]
    return [boot_id, *rest][:MOST_BOOTS], boot_id in boots
