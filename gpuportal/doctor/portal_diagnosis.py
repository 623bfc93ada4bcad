"""Checks of the portal, of the facts that `portal_facts` read."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpuportal.doctor.diagnosis import Diagnosis, note, problem, well
from telemetry.protocol.units import GIB_BYTES, format_duration

BACKUP_UNVERIFIED_SECONDS = 8 * 86400.0
"""A backup that was not verified for a week and a day."""
MOST_NAMES = 3
"""A line names so many migrations or tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingFault:
    """A message of Django's checks."""

    number: str
    """`gpuportal.E002`."""
    fact: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node in service, by its last reports."""

    name: str
    silent_seconds: float | None
    """Seconds since its last report; None: it never reported."""
    silent: bool
    """Whether that is too long ago."""
    maintenance: bool
    driver: str
    channel: str
    """Why its channel does not work; "" if it does, or is not known."""
    gate: str
    """Why its gate does not work; "" if it does, or is open."""
    warnings: tuple[str, ...] = ()
    """Faults of its machine: a cloned disk, for example."""
    token_age_seconds: float | None = None
    """Age of its short token; None: it has that of its enrolment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginState:
    """An identity provider or the directory of the site, as it was just read."""

    name: str
    address: str
    fault: str
    """Why nobody can sign in with it; "" if they can."""
    answer: str = "the provider answers"
    fix: str = ""
    """The remedy for the fault; "": check the address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenidState:
    """The portal as an OpenID provider."""

    fault: str
    """Why services cannot verify its tokens; "" if they can."""
    services: int
    """That are switched on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortalFacts:
    """The state of a portal. Ages are seconds; None: never, or not known."""

    database: bool
    waiting: tuple[str, ...]
    """Migrations that are not applied."""
    broker: bool
    broker_user: str
    """The user as which the portal signs in; "" if the broker does not say."""
    broker_embedded: bool
    late: tuple[str, ...]
    """Periodic tasks that are late."""
    clock_synchronized: bool | None
    disk_free_bytes: int
    disk_short: bool
    folder: str
    readable: tuple[str, ...]
    """Files with secrets that other users can read."""
    settings: tuple[SettingFault, ...]
    production: bool
    mail: str | None
    """Why the mail server does not answer; "" if it does; None: mail is off."""
    logins: tuple[LoginState, ...]
    openid: OpenidState | None
    """None: the site does not offer it."""
    backup_failure: str
    backup_age_seconds: float | None
    backup_late: bool
    verified_age_seconds: float | None
    bundled: bool
    nodes: tuple[NodeState, ...]
    manage_command: str = "gpuportal-manage"
    """The program that runs the management commands of this installation."""
    sign_up_domains: int = 0
    """Mail domains whose people may make an account."""
    sign_up_possible: bool = True
    """Whether the site has what a sign-up needs."""
    shared_logins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The Unix logins that several people have, with their user names."""


def portal_report(facts: PortalFacts) -> Iterator[Diagnosis]:
    """Check everything."""
    yield from _database(facts)
    yield from _broker(facts)
    if facts.late and facts.broker:
        names = _first(facts.late)
        fix = "systemctl status gpuportal-worker gpuportal-beat"
        yield problem("tasks", f"periodic tasks are late: {names}", fix)
    elif facts.broker:
        yield well("tasks", "worker and beat do every periodic task in time")
    yield _clock(facts)
    free = f"{facts.disk_free_bytes / GIB_BYTES:.1f} GiB free in {facts.folder}"
    if facts.disk_short:
        yield problem("disk", free, "Make room: logs, results and uploads lie there.")
    else:
        yield well("disk", free)
    if facts.readable:
        names = " ".join(facts.readable)
        yield problem("secrets", f"others can read {names}", f"chmod 600 {names}")
    else:
        yield well("secrets", "only their owner can read them")
    yield from _settings(facts)
    if facts.mail is None:
        yield note("mail", "off (EMAIL_URL)")
    elif facts.mail:
        yield problem("mail", facts.mail, "Check EMAIL_URL in portal.env.")
    else:
        yield well("mail", "the server answers")
    if facts.sign_up_domains and not facts.sign_up_possible:
        why = "mail domains are listed, but nobody can sign up"
        fix = "Set EMAIL_URL and PORTAL_URL in portal.env, and password in LOGIN."
        yield problem("sign-up", why, fix)
    elif facts.sign_up_domains:
        yield well("sign-up", f"mail domains that may: {facts.sign_up_domains}")
    for login in facts.logins:
        check = f"login {login.name}"
        if login.fault:
            fix = f"Check the address {login.address}, and the network to it."
            yield problem(check, login.fault, login.fix or fix)
        else:
            yield well(check, login.answer)
    yield _openid(facts.openid)
    yield _backup(facts)
    if facts.bundled:
        yield well("scripts", "the scripts of pages are bundled")
    else:
        fix = "make setup, then collectstatic in production"
        yield problem("scripts", "pages load their scripts one by one", fix)
    for unix_login, people in facts.shared_logins.items():
        yield note(
            f"unix user {unix_login}",
            f"{_first(people)} share it, so their processes are not told apart",
        )
    yield from _nodes(facts.nodes)


def _first(names: tuple[str, ...]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - MOST_NAMES
    shown = ", ".join(names[:MOST_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown


def _database(facts: PortalFacts) -> Iterator[Diagnosis]:
    if not facts.database:
        fix = "Check DATABASE_URL, and whether the server runs."
        yield problem("database", "it does not answer", fix)
        return
    yield well("database", "it answers")
    if facts.waiting:
        names = _first(facts.waiting)
        fix = f"{facts.manage_command} migrate"
        yield problem("migrations", f"not applied: {names}", fix)
    else:
        yield well("migrations", "all are applied")


def _broker(facts: PortalFacts) -> Iterator[Diagnosis]:
    if not facts.broker:
        fix = "Check REDIS_URL, and whether the server runs."
        yield problem("broker", "it does not answer", fix)
        return
    if facts.broker_embedded:
        yield well("broker", "the embedded one answers")
        yield note("broker users", "the embedded broker serves this machine only")
        return
    yield well("broker", "it answers")
    if facts.broker_user == "default":
        yield problem(
            "broker users",
            "the portal signs in without a user, so every client may do everything",
            "Make the users of deploy/acl.sh (docs/broker.md).",
        )
    elif not facts.broker_user:
        yield note(
            "broker users", "the broker does not say as whom the portal signs in"
        )
    else:
        yield well("broker users", f"the portal signs in as {facts.broker_user}")


def _clock(facts: PortalFacts) -> Diagnosis:
    if facts.clock_synchronized is None:
        return note("clock", "this machine does not say whether it is synchronized")
    if facts.clock_synchronized:
        return well("clock", "synchronized")
    return problem("clock", "not synchronized", "timedatectl set-ntp true")


def _settings(facts: PortalFacts) -> Iterator[Diagnosis]:
    for fault in facts.settings:
        yield problem(f"settings {fault.number}", fault.fact, fault.fix)
    if not facts.production:
        yield note("settings", "for development (GPUPORTAL_PRODUCTION is not set)")
    elif not facts.settings:
        yield well("settings", "host names, cookies and headers are for production")


def _openid(openid: OpenidState | None) -> Diagnosis:
    check = "sign-in to services"
    if openid is None:
        return note(check, "off (OPENID_PROVIDER)")
    if openid.fault:
        fix = "Restore the file of the key, or remove it to get a new key."
        return problem(check, openid.fault, fix)
    if not openid.services:
        return note(check, "on, and no service is registered (Manage, People)")
    return well(check, f"on, for {openid.services} registered, with a signing key")


def _backup(facts: PortalFacts) -> Diagnosis:
    fix = f"{facts.manage_command} backup FOLDER --verify"
    if facts.backup_failure:
        return problem("backup", f"the last one failed: {facts.backup_failure}", fix)
    if facts.backup_age_seconds is None:
        if facts.production:
            return problem("backup", "no backup was made with this command", fix)
        return note("backup", "no backup was made with this command")
    made = f"made {format_duration(facts.backup_age_seconds)} ago"
    if facts.backup_late:
        return problem("backup", f"the last one was {made}", fix)
    age_seconds = facts.verified_age_seconds
    if age_seconds is None:
        return problem("backup", f"{made}, and no backup was ever verified", fix)
    verified = f"verified {format_duration(age_seconds)} ago"
    if age_seconds > BACKUP_UNVERIFIED_SECONDS:
        return problem("backup", f"{made}, and last {verified}", fix)
    return well("backup", f"{made}, {verified}")


def _nodes(nodes: Iterable[NodeState]) -> Iterator[Diagnosis]:
    nodes = tuple(nodes)
    if not nodes:
        yield note("nodes", "no node is enrolled")
    for node in nodes:
        check = f"node {node.name}"
        seconds = node.silent_seconds
        fix = f"On {node.name}: gpuportal-node doctor"
        if node.maintenance:
            yield note(check, "in maintenance")
        elif seconds is None:
            yield problem(check, "it never reported", fix)
        elif node.silent:
            ago = format_duration(seconds)
            yield problem(check, f"its last report came {ago} ago", fix)
        elif node.channel:
            yield problem(check, node.channel, fix)
        elif node.gate:
            yield problem(check, node.gate, "Set its gate to open, or see its page.")
        elif node.warnings:
            yield problem(check, " ".join(node.warnings), "")
        else:
            age_seconds = node.token_age_seconds
            token = "" if age_seconds is None else format_duration(age_seconds)
            words = f", token {token} old" if token else ""
            yield well(check, f"live, driver {node.driver or 'unknown'}{words}")
