"""What is wrong with each Gpu and Node this second, and what that asks to store."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime

from telemetry.domain.frame import FrameRow
from telemetry.domain.hardware_rules import HardwareWatcher
from telemetry.domain.rules import BLIND, MISUSE, WEDGED, Finding, RuleClock, Step
from telemetry.domain.trouble import TroubleState
from telemetry.ingest.readings import NodeInbox
from telemetry.ingest.writer import Writer
from telemetry.snapshots import ClusterGpu, ClusterSnapshot

Rows = Iterable[tuple[ClusterGpu, FrameRow]]


class Findings:
    """Joins what the cards say with what the judge found, and leaves to the writer
    what is to be opened, told again or closed."""

    def __init__(
        self, writer: Writer, judged: Callable[[int], Iterable[Finding]]
    ) -> None:
        self._writer = writer
        self._judged = judged
        self._hardware = HardwareWatcher(lambda: writer.policy)
        self._gpus: RuleClock[int] = RuleClock(lambda: writer.policy)
        self._nodes: RuleClock[str] = RuleClock(lambda: writer.policy)

    def follow(self, cluster: ClusterSnapshot, *, steady: float) -> None:
        """Forget Gpus and Nodes that are gone; adopt what was open at the start."""
        pks = {gpu.pk for gpu in cluster.gpus}
        self._gpus.keep_only(pks)
        self._hardware.keep_only(pks)
        self._nodes.keep_only(set(cluster.nodes))
        for place, rule in self._writer.take_open_alerts():
            if isinstance(place, str):
                self._nodes.adopt(place, rule, at=steady)
            else:
                self._gpus.adopt(place, rule, at=steady)
                self._hardware.adopt(place, rule)

    def watch(
        self,
        rows: Rows,
        inboxes: dict[str, NodeInbox],
        *,
        judged: Collection[int],
        misuses: Mapping[str, str],
        now: datetime,
        steady: float,
    ) -> None:
        """Look at every Gpu and Node once.

        Args:
            misuses: what nodes did lately on the broker that they must not do.
            judged: Gpus whose state is the judge's: those under maintenance, and
                missing ones, have no findings of their own.
        """
        for gpu, row in rows:
            if row.state in BLIND:
                self._hardware.blind(gpu.pk)
                continue
            standing: list[Finding] = []
            if gpu.pk in judged:
                standing.extend(self._of_card(gpu, inboxes, now=now, steady=steady))
                standing.extend(self._judged(gpu.pk))
            self._leave(gpu.pk, self._gpus.see(gpu.pk, standing, at=steady))
        for name, inbox in inboxes.items():
            found = _of_node(inbox, misuses.get(name))
            self._leave(name, self._nodes.see(name, found, at=steady))

    def _of_card(
        self,
        gpu: ClusterGpu,
        inboxes: dict[str, NodeInbox],
        *,
        now: datetime,
        steady: float,
    ) -> Iterable[Finding]:
        inbox = inboxes.get(gpu.node)
        heard = inbox.latest.get(gpu.uuid) if inbox else None
        if heard is None:
            return ()
        told_at = now.timestamp() - max(0.0, steady - heard.arrived)
        return self._hardware.look(
            gpu.pk, heard.reading, at=heard.arrived, told_at=told_at
        )

    def _leave(self, place: int | str, steps: Iterator[Step]) -> None:
        for step in steps:
            self._writer.leave_step(place, step)


def _of_node(inbox: NodeInbox, misuse: str | None) -> Iterator[Finding]:
    """A node is wedged by its own last word, however long ago it said so."""
    trouble = inbox.trouble
    if trouble is not None and trouble.state is TroubleState.WEDGED:
        detail = {"reason": trouble.reason, "said_at": trouble.at}
        yield Finding(WEDGED, detail=detail)
    if misuse is not None:
        yield Finding(MISUSE, detail={"broker": misuse})
