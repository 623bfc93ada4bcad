"""The folder in which the portal keeps its files. Secrets have mode 600.

No Django here, because the node settings and the supervisor read it too.
"""

import hashlib
import os
import secrets
import tempfile
import tomllib
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
# struct sockaddr_un.sun_path holds 108 bytes with the closing zero (unix(7)).
UNIX_SOCKET_PATH_MAX = 107


def var_dir() -> Path:
    """Return the folder of every file that the portal makes and does not commit."""
    return Path(os.environ.get("GPUPORTAL_VAR") or BASE_DIR / "var").resolve()


def release() -> str:
    """Return the release of this code, from pyproject.toml; "" if it is not there.

    A node that joined with an older portal has no such file.
    """
    try:
        project = tomllib.loads((BASE_DIR / "pyproject.toml").read_text())["project"]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return ""
    return str(project["version"])


def secret_file(name: str) -> Path:
    """Return the path of one secret, whether it exists or not."""
    return var_dir() / "secret" / name


def read_secret(name: str) -> str:
    """Return a secret's text, or "" if it was never made."""
    try:
        return secret_file(name).read_text().strip()
    except FileNotFoundError:
        return ""


def make_secret(name: str, text: str = "") -> str:
    """Write a secret once, mode 600, and return the content of the file.

    Two processes that start together get the same secret: the file is created
    exclusively, and the slower process reads it.
    """
    path = secret_file(name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.parent.chmod(0o700)
    draft = path.with_name(f".{name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text or secrets.token_urlsafe(50))
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return path.read_text().strip()


def embedded_socket() -> Path:
    """Return the embedded Valkey's socket.

    A checkout whose path is too long for a Unix socket gets a private folder below the
    temporary folder instead. The folder is named after the checkout.
    """
    near = var_dir() / "run" / "valkey.sock"
    if len(os.fsencode(near)) <= UNIX_SOCKET_PATH_MAX:
        return near
    tag = hashlib.sha256(os.fsencode(var_dir())).hexdigest()[:16]
    private = Path(tempfile.gettempdir()) / f"gpuportal-{os.getuid()}-{tag}"
    return private / "valkey.sock"


def embedded_redis_url() -> str:
    """Return the address of the embedded Valkey."""
    return f"unix://{embedded_socket()}?db=0"


def celery_url(redis_url: str) -> str:
    """Return a Redis address as kombu writes it (sockets differ)."""
    if redis_url.startswith("unix://"):
        path, _, query = redis_url.removeprefix("unix://").partition("?")
        database = query.removeprefix("db=") or "0"
        return f"redis+socket://{path}?virtual_host={database}"
    return redis_url
