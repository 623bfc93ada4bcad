"""The users of nodes on the broker, made by its user `admin`.

``deploy/acl.sh`` is the one place that says what a node's user may do.
"""

import secrets
import subprocess
from dataclasses import dataclass
from datetime import UTC, tzinfo
from http import HTTPStatus
from urllib.parse import SplitResult, quote, urlsplit, urlunsplit

import redis
from django.conf import settings

from gpuportal.broker import is_unencrypted
from telemetry import paths
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import sentence

SECONDS = 5.0


@dataclass(eq=False)
class BrokerUsersUnusable(CodedError):
    """The portal cannot make a node's user on the broker."""

    code = "broker-users-unusable"
    status = HTTPStatus.SERVICE_UNAVAILABLE
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return self.why


def node_password(name: str) -> str:
    """Give a node a user with a new password on the broker. Return the password.

    The broker ends a previous password of this node at once, and keeps the user over a
    restart.

    Raises:
        BrokerUsersUnusable: with the reason.
    """
    return set_node_password(name, admin_password())


def set_node_password(name: str, admin: str) -> str:
    """Do the same with a given password of the user `admin`.

    Raises:
        BrokerUsersUnusable: with the reason.
    """
    password = secrets.token_hex(24)
    client = _client(admin)
    try:
        client.execute_command(*_set_user(name, password))  # type: ignore[no-untyped-call]
        client.execute_command("ACL", "SAVE")  # type: ignore[no-untyped-call]
    except redis.RedisError as error:
        raise BrokerUsersUnusable(_refusal(error)) from error
    finally:
        client.close()
    return password


def why_no_users() -> str:
    """Return why the portal cannot make users of nodes; "" if it can."""
    try:
        client = _client(admin_password())
    except BrokerUsersUnusable as error:
        return error.why
    try:
        client.ping()
    except redis.RedisError as error:
        return _refusal(error)
    finally:
        client.close()
    return ""


def admin_password() -> str:
    """Read the password of the broker's user `admin`.

    Raises:
        BrokerUsersUnusable: with the reason.
    """
    file = settings.BROKER_ADMIN_FILE
    try:
        password = str(file.read_text()).strip()
    except OSError as error:
        raise BrokerUsersUnusable(
            sentence("{file}: {why}", file=file, why=error.strerror)
        ) from error
    if not password:
        raise BrokerUsersUnusable(sentence("{file} is empty", file=file))
    return password


def node_broker_url(name: str, password: str) -> str:
    """Return the broker's address for one node."""
    parts = _reachable(settings.REDIS_URL)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, f"node-{name}:{password}@{place}", "/0", "", ""))


def _reachable(url: str) -> SplitResult:
    """Return the parts of the broker's address.

    Raises:
        BrokerUsersUnusable: nodes cannot reach it, or would send passwords in the open.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss") or url == paths.embedded_redis_url():
        raise BrokerUsersUnusable(
            sentence("REDIS_URL is no address of a broker that nodes can reach")
        )
    host = parts.hostname or "localhost"
    if host == "localhost" or host.startswith("127.") or host == "::1":
        raise BrokerUsersUnusable(
            sentence("REDIS_URL is {host}: nodes cannot reach that", host=host)
        )
    if is_unencrypted(url) and not settings.BROKER_PLAIN:
        raise BrokerUsersUnusable(
            sentence(
                "REDIS_URL begins with redis://, which sends passwords in the open: "
                "use rediss://, or set GPUPORTAL_BROKER_PLAIN='1' on a network of "
                "your own"
            )
        )
    return parts


def _client(admin: str) -> redis.Redis:
    parts = _reachable(settings.REDIS_URL)
    place = parts.netloc.rpartition("@")[2]
    netloc = f"admin:{quote(admin, safe='')}@{place}"
    url = urlunsplit(parts._replace(netloc=netloc))
    return redis.Redis.from_url(
        url, socket_timeout=SECONDS, socket_connect_timeout=SECONDS
    )


def _set_user(name: str, password: str) -> list[str]:
    """Return the broker's command as ``deploy/acl.sh`` prints it."""
    script = settings.BASE_DIR / "deploy" / "acl.sh"
    done = subprocess.run(
        ["sh", str(script), "--setuser", "node", name],
        input=password + "\n",
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    if done.returncode:
        raise BrokerUsersUnusable(done.stderr.strip().removeprefix("acl: "))
    return done.stdout.split()


def _refusal(error: redis.RedisError) -> str:
    return sentence("the broker does not answer admin: {why}", why=str(error))
