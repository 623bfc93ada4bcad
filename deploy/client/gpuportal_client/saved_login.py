"""The portal's address and the token, which a login saves."""

import getpass
import json
import os
import re
import time
from pathlib import Path

from gpuportal_client import __version__, program
from gpuportal_client.portal_api import Portal, Refused

KEPT = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "gpuportal"
DAY_SECONDS = 86_400


def login(args):
    """Check the address and the token, and save them."""
    to = Portal(args.url, os.environ.get("GPUPORTAL_TOKEN"))
    try:
        to.token = to.token or getpass.getpass("Token: ").strip()
    except EOFError:
        raise Refused(
            "no token was entered; create one on the page Settings, "
            "or set GPUPORTAL_TOKEN",
            2,
        ) from None
    to.ask("GET", "/standing")
    KEPT.mkdir(parents=True, exist_ok=True)
    replaced(KEPT / "login.json", json.dumps({"url": to.url, "token": to.token}))
    print(f"saved in {KEPT / 'login.json'}")


def portal():
    """Return the portal of the environment, or the one that was kept."""
    url, token = os.environ.get("GPUPORTAL_URL"), os.environ.get("GPUPORTAL_TOKEN")
    if not (url and token):
        try:
            kept = json.loads((KEPT / "login.json").read_text())
            url, token = url or kept["url"], token or kept["token"]
        except (OSError, ValueError, KeyError, TypeError):
            words = f"not signed in: {program()} login https://your.portal"
            raise Refused(words, 2) from None
    return Portal(url, token)


def replaced(path, text):
    """Write a file whole, for its owner only. A link stays a link."""
    path = path.resolve()
    draft = path.with_name(path.name + ".part")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    draft.replace(path)


def newer_version():
    """Return the version that the portal offers, if it is newer. "": say nothing.

    A newer version is reported once a day at most.
    """
    offered, stamp = Portal.offered, KEPT / "newer-version"
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6}){1,3}", offered):
        return ""
    known, here = (tuple(map(int, text.split("."))) for text in (offered, __version__))
    try:
        if known <= here or 0 <= time.time() - stamp.stat().st_mtime < DAY_SECONDS:
            return ""
    except FileNotFoundError:
        pass
    try:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()
    except OSError:
        # Without a place to note it, it would be reported each time.
        return ""
    return offered


def declare(word):
    """Add the commands of this module."""
    word(login).add_argument("url", help="address of the portal: https://...")
