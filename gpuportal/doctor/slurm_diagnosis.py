"""Checks of a Slurm cluster, of the facts that `slurm_facts` read.

What Slurm can hold for a booking follows from `telemetry.slurm.gpu_reservations`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpuportal.doctor.diagnosis import CheckState, Diagnosis, note, problem, well
from telemetry.protocol.units import format_duration
from telemetry.rules.slurm_use import OLD_SECONDS, WholeNodes
from telemetry.slurm.gpu_reservations import why_whole_cluster
from telemetry.slurm.slurm_commands import SlurmVersion

OLDEST = (22, 5)
OPERATORS = frozenset({"Operator", "Administrator", "Admin"})
HIDING = frozenset({"all", "jobs", "nodes", "reservations"})
"""Values of PrivateData that hide what the board shows."""
MOST_NAMES = 3
IMPORT_OLD_SECONDS = 3 * 3600
"""Usage is imported every hour."""
AGENT_OLD_SECONDS = 60.0
SHORTEST_JOB_AGE = 60
"""Seconds of MinJobAge. Slurm is asked every 15 s, and may be late."""
WORKERS = "systemctl status gpuportal-worker gpuportal-beat"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmReading:
    """The portal's last reading of the cluster."""

    age_seconds: float | None
    """None: Slurm never answered."""
    failure: str
    skipped: tuple[tuple[str, str], ...]
    """(node, reason) of nodes that the board does not show."""
    imports: bool = False
    """Whether usage is imported (SLURM_IMPORT)."""
    import_age_seconds: float | None = None
    """Since the last import that read something; None: there was none."""
    import_failure: str = ""
    """The failure of the last import."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmBooking:
    """Slurm's reservations for bookings, and its agent (SLURM_BOOK)."""

    held: int = 0
    """Reservations that it holds now."""
    failures: tuple[tuple[str, str], ...] = ()
    """(reservation, reason) of holds whose last request failed."""
    agent: str = ""
    """SLURM_AGENT; "": students submit their jobs themselves."""
    agent_age_seconds: float | None = None
    """Since the agent's last message; None: there is no such node, or none came."""
    agent_isolates: bool = False
    """Whether the agent runs each job as the student's Unix user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmFacts:
    """The state of a cluster, and what the portal makes of it."""

    cluster: str
    """SLURM_CLUSTER; "" if it is not set."""
    version: SlurmVersion
    """Of the commands on this machine."""
    user: str
    """The Unix user as which the portal asks."""
    user_id: int = 0
    """Its number. Slurm knows users by their numbers."""
    failure: str = ""
    """Why the cluster cannot be read; "" if it can."""
    config: Mapping[str, str] = field(default_factory=dict)
    """The settings that ``scontrol show config`` printed."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """GPUs by type; "": without a type."""
    unknown_types: tuple[str, ...] = ()
    """Types whose card the portal does not know."""
    gpu_nodes: int = 0
    whole_nodes: Mapping[str, WholeNodes] = field(default_factory=dict)
    """Nodes that are booked as a whole, with the reason."""
    admin_level: str = ""
    """The right of our user in slurmdbd; "" if it does not know the user."""
    may_reserve: bool = False
    """Whether the controller lets our user change reservations."""
    reading: SlurmReading | None = None
    booking: SlurmBooking | None = None
    """None: its nodes are not booked here."""
    manage_command: str = "gpuportal-manage"
    """The program that runs the management commands of this installation."""
    strange_holds: tuple[str, ...] = ()
    """Reservations that another portal made, or that this one does not know."""
    shared_users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Unix users that several people of the portal have, with their logins."""

    @property
    def database(self) -> bool:
        """Whether the cluster has slurmdbd."""
        return self.config.get("AccountingStorageType", "").endswith("/slurmdbd")

    @property
    def slurm_user(self) -> str:
        """The Unix user of the controller."""
        return self.config.get("SlurmUser", "").partition("(")[0] or "SlurmUser"

    @property
    def remedy(self) -> str:
        """How our user gets the right to see and to reserve everything."""
        if not self.database:
            return (
                f"Without slurmdbd only root and {self.slurm_user} have the right. Run "
                f"the portal as {self.slurm_user}, or set up slurmdbd."
            )
        if self.admin_level in OPERATORS:
            return (
                f"slurmdbd has {self.admin_level} for {self.user}, and the controller "
                "does not know it. On the controller's host `id -u "
                f"{self.user}` must print {self.user_id}, as here. Then run `scontrol "
                "reconfigure` there. If that does not help, check that it reaches "
                "slurmdbd (sacctmgr show cluster)."
            )
        if not self.admin_level:
            return (
                f"sacctmgr add user {self.user} account=ACCOUNT AdminLevel=Operator, "
                "with any account of the cluster, as an administrator of Slurm."
            )
        return (
            f"sacctmgr modify user {self.user} set AdminLevel=Operator, as an "
            "administrator of Slurm."
        )


def slurm_report(facts: SlurmFacts) -> Iterator[Diagnosis]:
    """Check everything. Without an answer of Slurm only what the portal knows."""
    yield _version(facts)
    if facts.failure:
        yield problem(
            "controller",
            facts.failure,
            "Check SLURM_CONF, that munge runs with the cluster's key, and that "
            "`scontrol ping` works on this machine as the portal's user.",
        )
    else:
        yield well("controller", "it answers")
        yield _cluster(facts)
        yield _accounting(facts)
        yield from _gpus(facts)
        yield from _cards(facts)
        yield from _reservations(facts)
        yield _rights(facts)
    if facts.cluster:
        yield from _reading(facts)
    if facts.booking is not None:
        yield from _booking(facts, facts.booking)
        if facts.strange_holds:
            yield _strange(facts.strange_holds)
    for name, logins in facts.shared_users.items():
        yield problem(
            f"Unix user {name}",
            f"{len(logins)} people have it: {', '.join(logins[:MOST_NAMES])}",
            "Give it to one person (Manage, People). Until then the board shows "
            "the Unix name.",
        )


def _version(facts: SlurmFacts) -> Diagnosis:
    found = f"Slurm {facts.version}"
    if facts.version.since(*OLDEST):
        return well("version", found)
    return problem("version", f"{found} prints no JSON", "Use Slurm 22.05 or newer.")


def _cluster(facts: SlurmFacts) -> Diagnosis:
    name = facts.config.get("ClusterName", "")
    if not facts.cluster:
        return Diagnosis(
            "cluster",
            CheckState.NOTE,
            f"{name}. SLURM_CLUSTER is not set, so the board does not show it",
            f"Set SLURM_CLUSTER={name} in portal.env, and restart the portal.",
        )
    if facts.cluster != name:
        return problem(
            "cluster",
            f"SLURM_CLUSTER is {facts.cluster}, and the cluster's name is {name}",
            f"Set SLURM_CLUSTER={name}.",
        )
    return well("cluster", name)


def _accounting(facts: SlurmFacts) -> Diagnosis:
    if facts.database:
        return well("slurmdbd", "the cluster has accounting")
    kind = facts.config.get("AccountingStorageType") or "unknown"
    return Diagnosis(
        "slurmdbd",
        CheckState.NOTE,
        f"none ({kind}). The board needs none. Reservations of GPUs and usage do",
        "Set up slurmdbd (slurm.schedmd.com/accounting.html).",
    )


def _gpus(facts: SlurmFacts) -> Iterator[Diagnosis]:
    total = sum(facts.gpus.values())
    if not total:
        yield problem(
            "GPUs",
            "no node has any",
            "Set GresTypes=gpu and Gres=gpu:TYPE:NUMBER of the nodes in slurm.conf.",
        )
        return
    kinds = [f"{count} × {kind}" for kind, count in sorted(facts.gpus.items()) if kind]
    untyped = facts.gpus.get("", 0)
    parts = [*kinds, *([f"{untyped} without a type"] if untyped else [])]
    yield well("GPUs", f"{total} on {facts.gpu_nodes} nodes: {', '.join(parts)}")
    if untyped:
        yield Diagnosis(
            "types",
            CheckState.NOTE,
            f"{untyped} GPUs have no type, so nobody can ask for their model",
            "Set Gres=gpu:TYPE:NUMBER in slurm.conf, and Type= in gres.conf.",
        )


def _cards(facts: SlurmFacts) -> Iterator[Diagnosis]:
    if facts.unknown_types and facts.booking is not None:
        names = ", ".join(facts.unknown_types[:MOST_NAMES])
        yield Diagnosis(
            "cards",
            CheckState.NOTE,
            f"the portal does not know the card of {names}, so plans leave it out",
            "Set SLURM_CARDS=TYPE=CARD (docs/slurm.md#cards).",
        )


def _reservations(facts: SlurmFacts) -> Iterator[Diagnosis]:
    counted = facts.gpu_nodes - len(facts.whole_nodes)
    why = why_whole_cluster(facts.version, facts.config)
    if why is not None:
        fact, fix = _WHOLE_NODES[why]
        words = f"whole nodes only. {fact.format(version=facts.version)}"
        yield Diagnosis("reservations", CheckState.NOTE, words, fix)
        return
    found = f"{counted} of {facts.gpu_nodes} nodes by the number of GPUs"
    yield well("reservations", found)
    by_reason: dict[WholeNodes, list[str]] = {}
    for name, because in sorted(facts.whole_nodes.items()):
        by_reason.setdefault(because, []).append(name)
    for because, names in by_reason.items():
        more = len(names) - MOST_NAMES
        shown = ", ".join(names[:MOST_NAMES])
        shown += f" and {more} more" if more > 0 else ""
        fact, fix = _WHOLE_NODES[because]
        words = f"as a whole: {shown}. {fact}"
        yield Diagnosis("reservations", CheckState.NOTE, words, fix)


_WHOLE_NODES = {
    WholeNodes.OLD: (
        "Slurm {version} does not keep the GPUs of several reservations of a node "
        "apart. 25.05.3 does",
        "Update Slurm to 25.05.3 or newer.",
    ),
    WholeNodes.NO_DATABASE: (
        "GPUs cannot be reserved without slurmdbd",
        "Set up slurmdbd.",
    ),
    WholeNodes.NOT_TRACKED: (
        "AccountingStorageTRES has no gres/gpu, so GPUs cannot be reserved",
        "Add gres/gpu and gres/gpu:TYPE to AccountingStorageTRES in slurm.conf.",
    ),
    WholeNodes.TYPE_NOT_TRACKED: (
        "AccountingStorageTRES does not have the type of their GPUs",
        "Add gres/gpu:TYPE to AccountingStorageTRES in slurm.conf.",
    ),
    WholeNodes.TYPES: (
        "They have GPUs of several types, or some without a type",
        "",
    ),
    WholeNodes.NO_CORES: (
        "gres.conf does not name the processors near their GPUs, so a reservation of "
        "one GPU would take all processors",
        "Set Cores= (or AutoDetect=nvml) in gres.conf.",
    ),
}


def _rights(facts: SlurmFacts) -> Diagnosis:
    user = facts.user
    private = facts.config.get("PrivateData", "none").split(",")
    hidden = sorted(HIDING & {word.strip() for word in private})
    if facts.may_reserve:
        return well("rights", f"{user} may see and reserve everything")
    if hidden:
        words = ", ".join(hidden)
        return problem(
            "rights",
            f"{user} is no operator, and PrivateData hides from it what others have: "
            f"{words}",
            facts.remedy,
        )
    fact = f"{user} is no operator: it may see everything, and may not reserve"
    return Diagnosis("rights", CheckState.NOTE, fact, facts.remedy)


def _reading(facts: SlurmFacts) -> Iterator[Diagnosis]:
    found = facts.reading
    if found is None:
        yield problem("board", "the portal has not read the cluster yet", WORKERS)
        return
    age_seconds = found.age_seconds
    if found.failure:
        yield problem("board", f"the last reading failed: {found.failure}", WORKERS)
    elif age_seconds is None or age_seconds > OLD_SECONDS:
        ago = "never" if age_seconds is None else f"{format_duration(age_seconds)} ago"
        yield problem("board", f"the last reading was {ago}", WORKERS)
    else:
        yield well("board", f"read {format_duration(age_seconds)} ago")
    for node, why in found.skipped[:MOST_NAMES]:
        yield problem(
            f"node {node}",
            f"the board does not show it: {why}",
            "A node has one engine: rename it, or give it to one of the two.",
        )
    if len(found.skipped) > MOST_NAMES:
        more = len(found.skipped) - MOST_NAMES
        yield note("nodes", f"the board leaves out {more} more")
    if found.imports:
        yield _import(found, facts.manage_command)


def _booking(facts: SlurmFacts, found: SlurmBooking) -> Iterator[Diagnosis]:
    if not (facts.may_reserve or facts.failure):
        yield problem(
            "booking",
            f"{facts.user} may not reserve nodes, so every booking is refused",
            facts.remedy,
        )
    elif found.failures:
        name, why = found.failures[0]
        yield problem(
            "booking",
            f"{len(found.failures)} reservations are not as booked. {name}: {why}",
            "The portal asks again every 15 seconds. Remove what holds the nodes in "
            "Slurm (scontrol show reservations).",
        )
    else:
        yield well("booking", f"reservations of the portal in Slurm: {found.held}")
    yield from _short_memory(facts)
    yield _agent(found)


def _short_memory(facts: SlurmFacts) -> Iterator[Diagnosis]:
    """Report that Slurm forgets ended jobs before the portal has seen them."""
    seconds = facts.config.get("MinJobAge", "").split()[:1]
    if seconds and seconds[0].isdecimal() and int(seconds[0]) < SHORTEST_JOB_AGE:
        yield Diagnosis(
            "short jobs",
            CheckState.NOTE,
            f"MinJobAge is {seconds[0]} s, so a short job may not check its holder in",
            f"Set MinJobAge={SHORTEST_JOB_AGE} or more in slurm.conf. The default is "
            "300.",
        )


def _strange(names: tuple[str, ...]) -> Diagnosis:
    more = len(names) - MOST_NAMES
    shown = ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    return Diagnosis(
        "other reservations",
        CheckState.NOTE,
        f"this portal does not know {shown}, and stops nothing in them",
        "If no other portal made them, delete them with scontrol delete "
        "ReservationName=NAME.",
    )


def _agent(found: SlurmBooking) -> Diagnosis:
    if not found.agent:
        return note("jobs", "SLURM_AGENT is not set. Students submit jobs with sbatch")
    if found.agent_age_seconds is None or found.agent_age_seconds > AGENT_OLD_SECONDS:
        return problem(
            "jobs",
            f"the agent {found.agent} does not report",
            f"Enrol a node {found.agent} and run its worker on a host of Slurm, with "
            "GPUPORTAL_BACKEND=none if it has no GPUs (docs/slurm.md#run).",
        )
    if not found.agent_isolates:
        return problem(
            "jobs",
            f"the agent {found.agent} cannot become other Unix users",
            "Run its worker as root.",
        )
    return well("jobs", f"the agent {found.agent} submits them")


def _import(found: SlurmReading, manage_command: str) -> Diagnosis:
    age_seconds = found.import_age_seconds
    if found.import_failure:
        return problem(
            "import",
            f"the last import did not read everything: {found.import_failure}",
            f"Run `{manage_command} slurm import` after the repair. It says what is "
            "left out.",
        )
    if age_seconds is None:
        return note("import", "no usage is imported yet. It is imported every hour")
    ago = format_duration(age_seconds)
    if age_seconds > IMPORT_OLD_SECONDS:
        return problem("import", f"the last import was {ago} ago", WORKERS)
    return well("import", f"usage was imported {ago} ago")
