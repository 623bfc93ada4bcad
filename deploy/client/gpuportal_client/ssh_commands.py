"""Commands for ssh to the nodes of a reservation, through the portal."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

from gpuportal_client import program
from gpuportal_client.instants import UTC, clock, when
from gpuportal_client.listing import JSON_OPTION, show
from gpuportal_client.portal_api import Refused
from gpuportal_client.saved_login import KEPT, portal, replaced
from gpuportal_client.ssh_tunnel import HOST, LOST_FILE, OPEN_NAME

KEYS = KEPT / "ssh"
"""This machine's ssh key, its certificates, and the portal's authority."""
FRESH_SECONDS = 300
"""How long a certificate is used again before the portal makes another one."""
KEPT_SECONDS = 7 * 86_400
"""How long files about a host stay after its last certificate."""
IN_TMUX = ("tmux", "new-session", "-A", "-s", "gp")
"""Opens the user's session "gp", which is made at the first time."""
NO_COMMAND = 127
AGAIN_SECONDS = 120
"""How long `ssh` tries to connect again."""
LASTED_SECONDS = 10
"""If the node answered longer ago than this, the next loss is a new one."""
PAUSE_SECONDS = 2
LEAVE_SCREEN = "\x1b[?1049l\x1b[?25h"
"""Brings a terminal back from a full screen that was cut off."""


def _program():
    """Return the command line that starts this client again: its file or its folder."""
    package = Path(__file__).resolve().parent
    place = package.parent if package.parent.is_file() else package
    return [sys.executable or "python3", str(place)]


def _command(*words):
    """Return the command line that starts this client again, for ssh's settings.

    Quotes go around %h, too. ssh puts a host's name there, and a shell reads the line.
    """
    quoted = [
        f"'{word}'" if word.startswith("%") else shlex.quote(word)
        for word in [*_program(), *words]
    ]
    return " ".join(quoted)


def _quoted(path):
    """Return a path as ssh's settings want it."""
    return '"' + str(path).replace("%", "%%") + '"'


def _options():
    """Return the settings of ssh for hosts of reservations, in pairs."""
    proxy = ("ProxyCommand", _command("tunnel", "%h"))
    return [proxy, ("ServerAliveInterval", "30")]


def _certificate_options(host):
    """Return ssh's settings of the key, its certificate and the portal's authority."""
    home = Path.home() / ".ssh"
    known = f"{_quoted(home / 'known_hosts')} {_quoted(KEYS / 'known_hosts')}"
    usual = [home / f"id_{kind}" for kind in ("ed25519", "ecdsa", "rsa")]
    return [
        ("CertificateFile", f'"{KEYS}/{host}-cert.pub"'),
        ("IdentityFile", _quoted(KEYS / "id_ed25519")),
        # A key that is named replaces those that ssh tries by default.
        *[("IdentityFile", _quoted(path)) for path in usual if path.exists()],
        ("UserKnownHostsFile", known),
    ]


def _check_runs(to, number):
    """Refuse a reservation that the person cannot enter now.

    A token that may not read learns it from the portal later.
    """
    from gpuportal_client.booking_commands import rows_of

    try:
        rows = rows_of(to, 15)["reservations"]
    except Refused as refused:
        if refused.code == "scope-missing":
            return
        raise
    row = next((row for row in rows if row["id"] == number), None)
    if row is None or not (row["mine"] or row.get("shared")):
        raise Refused(f"you have no reservation {number}")
    if row["state"] == "confirmed":
        raise Refused(f"reservation {number} begins {clock(row['start'])}")
    if row["state"] != "active":
        raise Refused(f"reservation {number} is over")


def _own_key(to, number):
    """Return this machine's public key. It is made and stored at the first time.

    It is only made for a reservation that runs.
    """
    private, public = KEYS / "id_ed25519", KEYS / "id_ed25519.pub"
    if not public.exists():
        _check_runs(to, number)
        KEYS.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = KEYS / f"draft{os.getpid()}"
        name = f"{program()} on {socket.gethostname()}"[:60]
        made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name]
        try:
            subprocess.run(
                [*made, "-f", str(draft)], check=True, stdin=subprocess.DEVNULL
            )
        except (FileNotFoundError, subprocess.CalledProcessError):
            raise Refused("ssh-keygen cannot make a key here", 2) from None
        drafted = draft.with_name(draft.name + ".pub")
        try:
            body = {"public_key": drafted.read_text(), "name": name}
            to.ask("POST", "/ssh-keys", body)
        except Refused:
            draft.unlink()
            drafted.unlink()
            raise
        draft.replace(private)
        drafted.replace(public)
    return public.read_text()


def _certified(host):
    """Return facts about a host, such as the account, once its certificate is here.

    One that was fetched a moment ago is used again: VS Code connects several times.
    """
    to = portal()
    found = HOST.fullmatch(host)
    if not found:
        raise Refused(f"{host!r} is not a host such as r17.gpuportal", 2)
    key, kept = _own_key(to, int(found[1])), KEYS / f"{host}.json"
    try:
        facts = json.loads(kept.read_text())
        fresh = 0 <= time.time() - kept.stat().st_mtime < FRESH_SECONDS
        left = when(facts["until"]) - datetime.now(UTC)
        same = facts["url"] == to.url and facts["key"] == key
        if fresh and same and left > timedelta(minutes=1):
            return facts
    except (OSError, ValueError, KeyError, TypeError):
        pass
    for path in KEYS.glob("r*.gpuportal*"):
        if time.time() - path.stat().st_mtime > KEPT_SECONDS:
            path.unlink()
    body = {"reservation": int(found[1]), "node": found[2] or "", "public_key": key}
    facts = to.ask("POST", "/ssh-certificates", body)
    for name in ("certificate", "user", "hosts", "authority", "host_key_alias"):
        # They go into ssh's settings, where a line break would begin another setting.
        if not re.fullmatch(r"[\w@.*+/=-][\w@.*+/= -]*", str(facts.get(name))):
            raise Refused(f"the portal's answer has an invalid {name}", 3)
    replaced(KEYS / f"{host}-cert.pub", facts["certificate"] + "\n")
    authority = f"@cert-authority {facts['hosts']} {facts['authority']}\n"
    replaced(KEYS / "known_hosts", authority)
    lines = [f"Host {host}", f"    HostKeyAlias {facts['host_key_alias']}"]
    lines.append(f"    User {facts['user']}")
    replaced(KEYS / f"{host}.conf", "\n".join(lines) + "\n")
    replaced(kept, json.dumps({**facts, "url": to.url, "key": key}))
    return facts


def certificate(args):
    """Fetch the certificate of a host. Ssh's settings call it."""
    _certified(args.host)


def ssh(args):
    """Open a shell on a reservation's node, or run what follows --."""
    node = f".{args.node}" if args.node else ""
    host = f"r{args.reservation}{node}.gpuportal"
    if args.tmux and args.arguments:
        raise Refused("--tmux opens a shell: leave out what follows --", 2)
    again = f"{program()} ssh {shlex.join(_words(args))}"
    with tempfile.TemporaryDirectory() as folder:
        lost, give_up = Path(folder) / "lost", None
        opened = lost.with_name(OPEN_NAME)
        while True:
            status = _connected(args, host, lost, quiet=give_up is not None)
            if status != 255 or not lost.exists():
                break
            why = lost.read_text(encoding="utf-8")
            lost.unlink()
            now = time.monotonic()
            if opened.exists():
                if time.time() - opened.stat().st_mtime > LASTED_SECONDS:
                    give_up = None
                opened.unlink()
            if not args.tmux or (give_up is not None and now > give_up):
                raise Refused(f"{why.rstrip('.')}. Go on with: {again}", 3)
            if give_up is None:
                give_up = now + AGAIN_SECONDS
                left = LEAVE_SCREEN if sys.stdout.isatty() else ""
                words = f"{why.rstrip('.')}. Connecting again ..."
                print(f"{left}{program()}: {words}", file=sys.stderr)
            time.sleep(PAUSE_SECONDS)
    if args.tmux and status == NO_COMMAND:
        raise Refused("the node has no tmux: leave out --tmux")
    sys.exit(status if status >= 0 else 255)


def _words(args):
    """Return the words of the command line that connects again."""
    node = ["--node", args.node] if args.node else []
    user = ["--user", args.user] if args.user else []
    words = [str(args.reservation), *node, *user, *(["--tmux"] if args.tmux else [])]
    return [*words, "--", *args.arguments] if args.arguments else words


def _connected(args, host, lost, quiet):
    """Run ssh once. Return its exit status.

    `lost` is the file for the reason of a lost connection.
    """
    options = _options()
    try:
        facts = _certified(host)
    except Refused as refusal:
        if quiet and refusal.status == 3:
            # The portal is not back yet.
            lost.write_text(str(refusal), encoding="utf-8")
            return 255
        # Without an account in the portal: the user's own key or password on the node.
        if refusal.code != "ssh-no-account" or not args.user:
            raise
        facts = {}
    else:
        alias = ("HostKeyAlias", facts["host_key_alias"])
        options += [*_certificate_options(host), alias]
    words = ["ssh", *(["-q"] if quiet else []), *(["-t"] if args.tmux else [])]
    for name, value in options:
        words += ["-o", f"{name}={value}"]
    what = IN_TMUX if args.tmux else args.arguments
    words += ["-l", args.user or facts["user"], host, *what]
    try:
        return subprocess.call(words, env={**os.environ, LOST_FILE: str(lost)})
    except FileNotFoundError:
        raise Refused("there is no program ssh here", 2) from None


def keys(args):
    """List your ssh public keys. Add a file, or remove a number."""
    to = portal()
    if args.what == "list":
        answer = to.whole("/ssh-keys", "ssh_keys")
        rows = (
            (f"{row['id']:>6}", row["fingerprint"], row["name"])
            for row in answer["ssh_keys"]
        )
        show(args, answer, rows)
        return
    if args.value is None:
        raise Refused(f"keys {args.what} needs a file or a number", 2)
    if args.what == "remove":
        if not args.value.isdecimal():
            raise Refused(f"{args.value!r} is not a number of {program()} keys", 2)
        to.ask("DELETE", f"/ssh-keys/{args.value}")
        print(f"removed key {args.value}")
        return
    text = Path(args.value).expanduser().read_text()
    made = to.ask("POST", "/ssh-keys", {"public_key": text, "name": args.name})
    print(f"key {made['id']}: {made['fingerprint']}  {made['name']}")


def config_ssh(args):
    """Let ssh, scp and VS Code know hosts such as r17.gpuportal."""
    folder = Path.home() / ".ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    lines = [
        f"# Written by {program()} config-ssh, which writes it again.",
        "Host *.gpuportal",
    ]
    if args.user:
        lines.append(f"    User {args.user}")
    lines += [f"    {name} {value}" for name, value in _options()]
    lines.append(f'Match host *.gpuportal exec "{_command("certificate", "%h")}"')
    lines += [f"    {name} {value}" for name, value in _certificate_options("%n")]
    lines.append(f"    Include {_quoted(KEYS / '*.conf')}")
    own, main = folder / "gpuportal.config", folder / "config"
    replaced(own, "\n".join(lines) + "\n")
    include = f"Include {own.name}"
    text = main.read_text() if main.exists() else ""
    if include not in text.splitlines():
        # Before everything else: below a Host line it would count for that host only.
        replaced(main, f"{include}\n\n{text}" if text else f"{include}\n")
    print(f"wrote {own}; try: ssh r17.gpuportal")


def declare(word):
    """Add the commands of this module."""
    user = {"default": "", "help": "your name on the node (default: the one here)"}
    nodes = {"default": "", "help": "one of its nodes (default: the first)"}
    words = "work in tmux there, and connect again if the connection is lost"
    kept = {"action": "store_true", "help": words}
    word(ssh, "reservation", node=nodes, user=user, tmux=kept)
    named = {"default": "", "help": "with add: name of the key"}
    stored = word(keys, name=named, json=JSON_OPTION)
    actions = ("list", "add", "remove")
    stored.add_argument("what", nargs="?", default="list", choices=actions)
    stored.add_argument("value", nargs="?", help="a .pub file, or a key's number")
    word(config_ssh, user=user)
    word(certificate).add_argument("host", help="r17.gpuportal, or r17.NODE.gpuportal")
