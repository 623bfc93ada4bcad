"""The findings of each Gpu and Node in this second, and what to store of them."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from telemetry.ingest.readings import NodeInbox
from telemetry.ingest.writer import Writer
from telemetry.inventory.queries import ClusterGpu, ClusterSnapshot
from telemetry.protocol.frame import FrameRow
from telemetry.protocol.trouble import TroubleState
from telemetry.rules.alert_rules import LOST, NodeFacts, active_rules
from telemetry.rules.finding_rules import BLIND, Finding, FindingStep, RuleClock
from telemetry.rules.hardware_rules import HardwareWatcher

DRIVER_TROUBLES = frozenset(
    {TroubleState.HUNG, TroubleState.NO_DRIVER, TroubleState.RELOADING}
)
TOLD_SECONDS = 120.0
"""A node repeats its trouble every half minute. An older report is ignored."""
Rows = Iterable[tuple[ClusterGpu, FrameRow]]


class Findings:
    """Joins the cards' reports with the judge's findings, and gives the writer the
    findings to open, repeat or close."""

    def __init__(
        self, writer: Writer, judged: Callable[[int], Iterable[Finding]]
    ) -> None:
        self._writer = writer
        self._judged = judged
        self._hardware = HardwareWatcher(lambda: writer.policy)
        self._driver_since: dict[str, float] = {}
        """By node, since when its driver answers for none of its Gpus."""
        self._gpus: RuleClock[int] = RuleClock(lambda: writer.policy)
        self._nodes: RuleClock[str] = RuleClock(lambda: writer.policy)

    def update_cluster(self, cluster: ClusterSnapshot, *, steady: float) -> None:
        """Forget removed Gpus and Nodes. Take over the findings that were open at the
        start."""
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
        """Check every Gpu and Node once.

        Args:
            misuses: recent misuses of the broker by nodes.
            judged: Gpus whose state the judge decided. Gpus under maintenance and
                missing ones have no findings.
        """
        rows = list(rows)
        faults = self._driver_faults(rows, inboxes, steady=steady)
        for gpu, row in rows:
            if row.state in BLIND:
                self._hardware.note_gap(gpu.pk)
                continue
            standing: list[Finding] = []
            if gpu.pk in judged:
                of_card = self._of_card(gpu, inboxes, now=now, steady=steady)
                standing.extend(
                    replace(x, of_node=x.rule == LOST and gpu.node in faults)
                    for x in of_card
                )
                standing.extend(self._judged(gpu.pk))
            self._queue_steps(gpu.pk, self._gpus.due_steps(gpu.pk, standing, at=steady))
        for name, inbox in inboxes.items():
            facts = self._node_facts(
                name, inbox, misuses.get(name), faults.get(name), steady=steady
            )
            found = [
                Finding(rule.name, detail=rule.detail(facts))
                for rule in active_rules(facts)
            ]
            self._queue_steps(name, self._nodes.due_steps(name, found, at=steady))

    def _driver_faults(
        self, rows: Rows, inboxes: Mapping[str, NodeInbox], *, steady: float
    ) -> dict[str, str]:
        """Return, by node, why nothing of it can be read: its own report, or that none
        of its Gpus answers. There is one cause for all its Gpus."""
        silent: dict[str, list[bool]] = {}
        for gpu, _row in rows:
            inbox = inboxes.get(gpu.node)
            heard = inbox.latest.get(gpu.uuid) if inbox else None
            if heard is not None and gpu.present and not gpu.maintenance:
                silent.setdefault(gpu.node, []).append(not heard.reading.answers)
        faults: dict[str, str] = {}
        for name, inbox in inboxes.items():
            trouble, answers = inbox.trouble, silent.get(name, [])
            said = trouble is not None and trouble.state in DRIVER_TROUBLES
            if (
                said
                and trouble is not None
                and steady - inbox.trouble_at < TOLD_SECONDS
            ):
                faults[name] = trouble.reason
            elif len(answers) > 1 and all(answers):
                faults[name] = f"none of {len(answers)} GPUs answers"
        for name in self._driver_since.keys() - faults.keys():
            del self._driver_since[name]
        for name in faults:
            self._driver_since.setdefault(name, steady)
        return faults

    def _node_facts(
        self,
        name: str,
        inbox: NodeInbox,
        misuse: str | None,
        fault: str | None,
        *,
        steady: float,
    ) -> NodeFacts:
        trouble = inbox.trouble
        return NodeFacts(
            trouble=trouble.state if trouble else None,
            reason=trouble.reason if trouble else "",
            told_at=trouble.at if trouble else None,
            skew_seconds=inbox.skew_seconds,
            misuse=misuse,
            driver_fault=fault,
            driver_fault_seconds=steady - self._driver_since.get(name, steady),
            lost_after_seconds=self._writer.policy.lost_after_seconds,
        )

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
        return self._hardware.present_findings(
            gpu.pk, heard.reading, at=heard.arrived, told_at=told_at
        )

    def _queue_steps(self, place: int | str, steps: Iterator[FindingStep]) -> None:
        for step in steps:
            self._writer.queue_step(place, step)
