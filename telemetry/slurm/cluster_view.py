"""One state for each GPU of a Slurm cluster, from its nodes, jobs and reservations.

Slurm gives a job cards by number if its gres.conf names device files. Otherwise it only
counts them, and so does a reservation: then the cards that stood for it before stand
for it, and next the lowest free numbers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from telemetry.rules.slurm_use import SlurmUse
from telemetry.slurm.gres import (
    MOST_INDICES,
    GresCount,
    read_tres_cpus,
    read_tres_gpus,
)
from telemetry.slurm.slurm_output import MOST_SECONDS
from telemetry.slurm.slurm_records import (
    JobShare,
    SlurmJob,
    SlurmNode,
    SlurmReservation,
)

AWAY = frozenset(
    {
        "DOWN",
        "ERROR",
        "FAIL",
        "FAILING",
        "FUTURE",
        "INVALID_REG",
        "NOT_RESPONDING",
        "NO_RESPOND",
        "REBOOT_ISSUED",
        "UNKNOWN",
    }
)
CLOSED = frozenset({"DRAIN", "DRAINED", "DRAINING", "MAINT", "MAINTENANCE"})
MAINTENANCE = "MAINT"
"""Flag of a reservation in which nobody computes."""


@dataclass(frozen=True, slots=True)
class SlurmGpuView:
    """One GPU. Times are Unix seconds."""

    index: int
    kind: str
    """The type of the GRES; "" if there is none."""
    use: SlurmUse
    unix_user: str = ""
    """Who holds it; "" if nobody, if several people, or if Slurm hides it."""
    account: str = ""
    job_id: int | None = None
    job_name: str = ""
    reservation: str = ""
    """The reservation that holds it, or in which its job runs."""
    until: int | None = None
    """When the holder's time ends; None: nobody holds it, or without a limit."""
    next_at: int | None = None
    """When the next reservation begins."""
    next_user: str = ""


@dataclass(frozen=True, slots=True)
class SlurmNodeView:
    """One node with its GPUs."""

    name: str
    gpus: tuple[SlurmGpuView, ...]
    reason: str = ""
    """Why it is closed or away, in the words of Slurm's admin."""
    cpus: int | None = None
    """Processors that are reserved with each GPU; None: the node is reserved as a
    whole."""
    whole_because: str = ""
    """A `WholeNodes`; "": it is not, or it is not known."""
    held: tuple[tuple[str, int, int, int | None], ...] = ()
    """Name, start and end of each reservation of it, and how many of its GPUs it
    holds; None: all."""


Marks = Mapping[tuple[str, int], str]
"""The reservation that a card stood for, by node and number."""


@dataclass(slots=True)
class _Card:
    """A GPU while its facts are joined."""

    index: int
    kind: str
    job: SlurmJob | None = None
    hidden: bool = False
    """A job has it that Slurm does not show us."""
    held_by: SlurmReservation | None = None
    coming: SlurmReservation | None = field(default=None)

    @property
    def open(self) -> bool:
        """Whether nobody has it."""
        return self.job is None and not self.hidden and self.held_by is None


def view_cluster(
    nodes: Iterable[SlurmNode],
    jobs: Iterable[SlurmJob],
    reservations: Iterable[SlurmReservation],
    *,
    now: float,
    before: Marks | None = None,
) -> list[SlurmNodeView]:
    """Return the nodes that have GPUs, by name.

    Args:
        before: from the last view.
        now: Unix seconds by the clock of the controller.
    """
    with_gpus = {node.name: node for node in nodes if any(x.count for x in node.gpus)}
    shares: dict[str, list[tuple[SlurmJob, JobShare]]] = {}
    for job in sorted(jobs, key=lambda one: one.job_id):
        for share in job.shares:
            shares.setdefault(share.node, []).append((job, share))
    held = _by_node(reservations, with_gpus, now)
    return [
        _view(node, shares.get(name, ()), held.get(name, ()), now, before or {})
        for name, node in sorted(with_gpus.items())
    ]


def _by_node(
    reservations: Iterable[SlurmReservation],
    nodes: Mapping[str, SlurmNode],
    now: float,
) -> dict[str, list[tuple[SlurmReservation, int | None]]]:
    """Return, by node, each reservation and how many of its GPUs it holds; None: all.

    Slurm names the total over all nodes. It is divided among them, rounded up.
    """
    found: dict[str, list[tuple[SlurmReservation, int | None]]] = {}
    for one in sorted(reservations, key=lambda it: (it.start, it.name)):
        if one.end <= now or not one.nodes:
            continue
        gpus = read_tres_gpus(one.tres)
        if gpus:
            count: int | None = -(-gpus // len(one.nodes))
        elif _whole(one, nodes):
            count = None
        else:
            continue
        for name in one.nodes:
            if name in nodes:
                found.setdefault(name, []).append((one, count))
    return found


def _whole(one: SlurmReservation, nodes: Mapping[str, SlurmNode]) -> bool:
    """Return whether a reservation without GPUs holds whole nodes: all their CPUs."""
    cpus = read_tres_cpus(one.tres)
    known = [nodes[name].cpus for name in one.nodes if name in nodes]
    if not cpus or None in known or len(known) < len(one.nodes):
        return True
    return cpus >= sum(number or 0 for number in known)


def _view(
    node: SlurmNode,
    shares: Sequence[tuple[SlurmJob, JobShare]],
    held: Sequence[tuple[SlurmReservation, int | None]],
    now: float,
    before: Marks,
) -> SlurmNodeView:
    cards = list(_cards(node.gpus))
    for job, share in shares:
        for card in _taken(cards, share.gpus):
            card.job = job
    _mark_hidden(cards, node.used)
    closed = bool(CLOSED & node.states)
    kept = {
        number: mark for (name, number), mark in before.items() if name == node.name
    }
    for reservation, count in held:
        if reservation.start > now:
            _mark_coming(cards, reservation, count)
        elif MAINTENANCE in reservation.flags:
            closed = True
        else:
            _mark_held(cards, reservation, count, kept)
    away = bool(AWAY & node.states)
    return SlurmNodeView(
        name=node.name,
        gpus=tuple(_gpu(card, away=away, closed=closed) for card in cards),
        reason=node.reason if away or closed else "",
        held=tuple((one.name, one.start, one.end, count) for one, count in held),
    )


def _cards(gpus: Iterable[GresCount]) -> Iterator[_Card]:
    """Number the GPUs of a node as Slurm does: one type after another."""
    kinds = [one.kind for one in gpus for _ in range(min(one.count, MOST_INDICES))]
    for index, kind in enumerate(kinds[:MOST_INDICES]):
        yield _Card(index, kind)


def _taken(cards: Sequence[_Card], gpus: Iterable[GresCount]) -> Iterator[_Card]:
    """Yield the cards that these entries name, or as many free ones of their type."""
    for one in gpus:
        if one.indices:
            yield from (card for card in cards if card.index in one.indices)
            continue
        left = one.count
        free = [card for card in cards if card.open]
        yield from [c for c in free if not one.kind or c.kind == one.kind][:left]


def _mark_hidden(cards: Sequence[_Card], used: Iterable[GresCount]) -> None:
    """Mark the cards of jobs that Slurm counts but does not show us (PrivateData)."""
    for one in used:
        if one.indices:
            for card in cards:
                card.hidden |= card.index in one.indices and card.job is None
            continue
        of_kind = [card for card in cards if not one.kind or card.kind == one.kind]
        left = one.count - sum(not card.open for card in of_kind)
        for card in [card for card in of_kind if card.open][: max(0, left)]:
            card.hidden = True


def _mark_held(
    cards: Sequence[_Card],
    reservation: SlurmReservation,
    count: int | None,
    before: Mapping[int, str],
) -> None:
    """Mark as many cards as a reservation holds and its jobs do not have.

    Args:
        before: the reservation that a card stood for, by its number. Two reservations
            would exchange their cards otherwise.
    """
    name = reservation.name
    inside = [c for c in cards if c.job and c.job.reservation == name]
    left = len(cards) if count is None else max(0, count - len(inside))
    free = [card for card in cards if card.open]
    free.sort(key=lambda c: (before.get(c.index) != name, c.index in before))
    for card in free[:left]:
        card.held_by = reservation


def _mark_coming(
    cards: Sequence[_Card], reservation: SlurmReservation, count: int | None
) -> None:
    for card in cards[: len(cards) if count is None else count]:
        if card.coming is None:
            card.coming = reservation


def _gpu(card: _Card, *, away: bool, closed: bool) -> SlurmGpuView:
    """Return a card as it is shown. A job counts more than the state of its node,
    unless the node does not answer."""
    seen = SlurmGpuView(index=card.index, kind=card.kind, use=SlurmUse.FREE)
    if card.coming is not None:
        user = _only(card.coming.users)
        seen = replace(seen, next_at=card.coming.start, next_user=user)
    if card.job is not None:
        seen = replace(
            seen,
            use=SlurmUse.BUSY,
            unix_user=card.job.user,
            account=card.job.account,
            job_id=card.job.job_id,
            job_name=card.job.name,
            reservation=card.job.reservation,
            until=card.job.end,
        )
    elif card.hidden:
        seen = replace(seen, use=SlurmUse.BUSY)
    elif card.held_by is not None and not closed:
        end = card.held_by.end
        seen = replace(
            seen,
            use=SlurmUse.RESERVED,
            unix_user=_only(card.held_by.users),
            reservation=card.held_by.name,
            until=None if end >= MOST_SECONDS else end,
        )
    elif closed:
        seen = replace(seen, use=SlurmUse.CLOSED)
    return replace(seen, use=SlurmUse.AWAY) if away else seen


def _only(users: Sequence[str]) -> str:
    return users[0] if len(users) == 1 else ""
