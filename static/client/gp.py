#!/usr/bin/env python3
"""GPU Portal from a shell: find a slot, book, run, follow, extend, give back.

One file, Python 3.9 or newer, standard library only. Create a token on the portal's
page "Settings" with the permissions read, book and job. Then:

    gp.py login https://portal.example          asks for the token, saves it (mode 600)
    gp.py find --gpus 2 --hours 8               lists the first slots that fit
    gp.py book --gpus 2 --hours 8 --for "thesis, run 3"
    gp.py mine                                  lists your reservations
    gp.py run train.py --reservation 17 --follow -- --epochs 3
    gp.py run train.py --reservation 17 --env /home/you/venv --launcher torchrun
    gp.py run test.py --reservation 17 --after 5
    gp.py run --recipe burn-in --set seconds=60 --reservation 17
    gp.py jobs | log 5 --follow | stop 5
    gp.py files 5 | files 5 --get --to results/
    gp.py extend 17 --hours 2 | release 17
    gp.py ssh 17 [-- nvidia-smi]                a shell on the node of reservation 17
    gp.py keys | keys add ~/.ssh/id_ed25519.pub | keys remove 4
    gp.py config-ssh                            ssh r17.gpuportal, scp and VS Code

The variables GPUPORTAL_URL and GPUPORTAL_TOKEN override the saved login. Exit status:
0 done, 1 the portal refused (its reason is printed) or the job failed, 2 wrong use or
bad input, 3 the portal cannot be reached. "log --follow" waits until it can.
"""

import argparse
import base64
import getpass
import hashlib
import http.client
import json
import os
import re
import select
import shlex
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path

KEPT = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "gpuportal"
TIMEOUT_SECONDS = 30
JSON = "application/json"
SAFE = ("https://", "http://127.", "http://localhost", "http://[::1]")
FOLLOW_SECONDS = 1.0
PATIENCE_SECONDS = 1800
"""How long a followed log waits for a portal that is away."""
LONGEST_WAIT_SECONDS = 15
UTC = timezone.utc  # noqa: UP017 (datetime.UTC is of Python 3.11)
LAUNCHERS = ("none", "python", "torchrun", "accelerate", "deepspeed")
LIVE = ("queued", "starting", "running", "moving", "stopping")
HOST = re.compile(r"r([1-9][0-9]{0,17})(?:\.([A-Za-z0-9_-]+))?\.gpuportal")
"""Host of a reservation: r17.gpuportal, or r17.node-a.gpuportal."""
KEYS = KEPT / "ssh"
"""This machine's ssh key, its certificates, and the portal's authority."""
FRESH_SECONDS = 300
"""How long a certificate is used again before the portal makes another one."""
KEPT_SECONDS = 7 * 86_400
"""How long files about a host stay after its last certificate."""
PIECE_BYTES = 32 * 1024
MOST_FRAME_BYTES = 2**20
ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""What a server of websockets must mix into its answer (RFC 6455)."""
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


LOST = "lost"
"""Code of a request of which it is not known whether the portal handled it."""
PAUSES_SECONDS = (1, 2, 4)
"""Before a request whose answer is lost is sent again."""


class Refused(Exception):
    """The command failed: 1 the portal refuses, 2 wrong use, 3 it is not reachable."""

    def __init__(self, words, status=1, code=""):
        super().__init__(words)
        self.status = status
        self.code = code


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token must not travel to wherever an answer points."""

    def redirect_request(self, *_args):
        return None


class Portal:
    """The portal's JSON API, with one person's token."""

    def __init__(self, url, token):
        if not url.startswith(SAFE):
            raise Refused("the address must begin with https://", 2)
        self.url, self.token, self.known = url.rstrip("/"), token, None
        self.opener = urllib.request.build_opener(NoRedirect())

    def ask(self, method, path, body=None, *, key=None, **query):
        """Return the answer's JSON."""
        with self.open(method, path, body, key=key, **query) as answer:
            try:
                return json.loads(answer.read() or b"null")
            except ValueError:
                raise Refused(f"{self.url} is not a GPU Portal", 2) from None
            except (OSError, http.client.HTTPException) as error:
                words = f"the answer is incomplete: {error!r}"
                raise Refused(words, 3, LOST) from None

    def create(self, path, body):
        """Return the answer's JSON. Send the request again if the answer is lost.

        The portal does the request once, because it has the same key each time.
        """
        key = str(uuid.uuid4())
        for pause_seconds in PAUSES_SECONDS:
            try:
                return self.ask("POST", path, body, key=key)
            except Refused as error:
                if error.code not in (LOST, "request-running"):
                    raise
            time.sleep(pause_seconds)
        return self.ask("POST", path, body, key=key)

    def cards(self, numbers):
        """Return Gpus as people know them: node-a:0, node-a:1."""
        if self.known is None:
            rows = self.ask("GET", "/gpus")["gpus"]
            self.known = {row["id"]: f"{row['node']}:{row['index']}" for row in rows}
        return ", ".join(self.known.get(number, f"#{number}") for number in numbers)

    def open(self, method, path, body=None, *, key=None, **query):
        """Return the answer to be read; raise what it says where it is no answer."""
        known = {name: value for name, value in query.items() if value is not None}
        address = f"{self.url}/api/v1{path}"
        if known:
            address += "?" + urllib.parse.urlencode(known)
        request = urllib.request.Request(
            address,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Authorization": f"Bearer {self.token}", "Accept": JSON}
            | ({} if body is None else {"Content-Type": JSON})
            | ({} if key is None else {"Idempotency-Key": f'"{key}"'}),
        )
        try:
            return self.opener.open(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            said = problem_of(error)
            words, code = words_of(said, error, self), str(said.get("code"))
            if error.code in (429, 500, 502, 503, 504):
                code = LOST if error.code > 500 else code
                words = f"the portal answers {error.code}: {words}"
                raise Refused(words, 3, code) from None
            wrong = error.code in (400, 413, 415, 422) or 300 <= error.code < 400
            raise Refused(words, 2 if wrong else 1, code) from None
        except urllib.error.URLError as error:
            words = f"the portal cannot be reached: {error.reason}"
            raise Refused(words, 3, LOST) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            words = f"the portal cannot be reached: {error}"
            raise Refused(words, 3, LOST) from None


def problem_of(error):
    """Return the fields of a refusal's problem+json; {} for another body."""
    try:
        said = json.loads(error.read(2**16))
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    return said if isinstance(said, dict) else {}


def words_of(said, error, to):
    """Return a refusal as text: its sentence, its fields, the next slot."""
    if not said:
        return f"{error.code} {error.reason}"
    lines = [str(said.get("detail") or said.get("title") or error.code)]
    fields = (said.get("fields") or {}).items()
    lines += [f"  {name}: {why}" for name, why in fields if why not in lines[0]]
    slot = said.get("next_slot")
    if slot:
        lines.append(f"  free: {span(slot)}, {to.cards(slot['gpu_ids'])}")
    fewer = said.get("works_instead")
    if fewer:
        count = len(fewer["gpu_ids"])
        cards = to.cards(fewer["gpu_ids"])
        lines.append(f"  {count} would work: {span(fewer)}, {cards}")
    return "\n".join(lines)


def when(text):
    """Return an instant of the portal as this machine's local time."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone()


def span(row):
    """Return "Mon 12:00 to 20:00"."""
    start, end = when(row["start"]), when(row["end"])
    last = f"{end:%H:%M}" if end.date() == start.date() else f"{end:%a %H:%M}"
    return f"{start:%a %d %b %H:%M} to {last}"


def iso(at):
    """Return an instant as the portal reads it."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def local(text):
    """Return an instant typed as 2026-11-21T14:00, in local time if no zone is said."""
    try:
        return when(text)
    except ValueError:
        wrong = f"{text!r} is not a time, such as 2026-11-21T14:00"
        raise argparse.ArgumentTypeError(wrong) from None


def hours(text):
    """Return a length in hours that is a number, and one of this world."""
    value = float(text)
    if not -100_000 < value < 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hours")
    return value


def login(args):
    """Check the address and the token, and save them."""
    to = Portal(args.url, os.environ.get("GPUPORTAL_TOKEN"))
    try:
        to.token = to.token or getpass.getpass("Token: ").strip()
    except EOFError:
        raise Refused("no token; you can also set GPUPORTAL_TOKEN", 2) from None
    to.ask("GET", "/standing")
    KEPT.mkdir(parents=True, exist_ok=True)
    draft = KEPT / "login.json.part"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        json.dump({"url": to.url, "token": to.token}, file)
    draft.replace(KEPT / "login.json")
    print(f"saved in {KEPT / 'login.json'}")


def portal():
    """Return the portal of the environment, or the one that was kept."""
    url, token = os.environ.get("GPUPORTAL_URL"), os.environ.get("GPUPORTAL_TOKEN")
    if not (url and token):
        try:
            kept = json.loads((KEPT / "login.json").read_text())
            url, token = url or kept["url"], token or kept["token"]
        except (OSError, ValueError, KeyError, TypeError):
            raise Refused("not signed in: gp.py login https://your.portal", 2) from None
    return Portal(url, token)


def slots_of(args, to):
    """Return the first slots that fit what is asked for."""
    found = to.ask(
        "GET",
        "/slots",
        count=args.gpus,
        hours=args.hours,
        min_memory_gib=args.memory,
        gpu_class=args.gpu_class,
        earliest=iso(args.at) if args.at else None,
    )["slots"]
    if not found:
        raise Refused("no free slot; try fewer GPUs or hours, or the waitlist")
    return found


def find(args):
    """List the first slots that fit."""
    for slot in slots_of(args, to := portal()):
        print(f"{span(slot)}  {slot.get('kind') or ''}  {to.cards(slot['gpu_ids'])}")


def book(args):
    """Book the first slot that fits."""
    to = portal()
    slot = slots_of(args, to)[0]
    if args.at and abs(when(slot["start"]) - args.at) > timedelta(minutes=1):
        raise Refused(f"not free at that time; first free: {span(slot)}")
    wanted = {name: slot[name] for name in ("gpu_ids", "start", "end")}
    made = to.create("/reservations", wanted | {"purpose": args.purpose})
    where = f"{made['kind']}, {to.cards(made['gpu_ids'])}"
    print(f"reservation {made['id']}: {span(made)}, {where}")


def own(to):
    """Return one's own reservations of now and the next two weeks."""
    now = datetime.now(UTC)
    start, end = now - timedelta(days=2), now + timedelta(days=15)
    found = to.ask("GET", "/calendar", start=iso(start), end=iso(end))
    return [row for row in found["reservations"] if row["mine"]]


def mine(_args):
    """List your reservations."""
    for row in own(to := portal()):
        about = f"{row['id']:>6}  {row['state']:9}  {row['kind']:4}  {span(row)}"
        print(f"{about}  {to.cards(row['gpu_ids'])}  {row['purpose'] or ''}")


def what_runs(args):
    """Return what a job is made of: a script, or a ready recipe with its settings."""
    if (args.script is None) == (args.recipe is None):
        raise Refused("give a script or --recipe", 2)
    if args.recipe is None:
        if args.set:
            raise Refused("--set is for --recipe", 2)
        script = Path(args.script)
        text = script.read_text()
        launcher = args.launcher
        if launcher is None:
            # A #! line says what starts the script.
            typed = script.suffix == ".py" and not text.startswith("#!")
            launcher = "python" if typed else "none"
        return {
            "name": args.name or script.name,
            "kind": "script",
            "script": text,
            "arguments": args.arguments,
            "launcher": "" if launcher == "none" else launcher,
            "environment_folder": args.env,
        }
    if args.env or args.launcher is not None:
        raise Refused("--env and --launcher are for a script", 2)
    if args.arguments:
        raise Refused("a recipe has no arguments; use --set NAME=VALUE", 2)
    return {
        "name": args.name or args.recipe,
        "kind": "recipe",
        "recipe": args.recipe,
        "recipe_settings": dict(args.set),
    }


def setting(text):
    """Return (name, value) of NAME=VALUE; a number where the value is one."""
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        known = json.loads(value)
    except ValueError:
        return name, value
    number = isinstance(known, (int, float)) and not isinstance(known, bool)
    return name, known if number else value


def run(args):
    """Start a script or a ready recipe."""
    to = portal()
    if (args.reservation is None) != args.gaps:
        raise Refused("give --reservation NUMBER or --gaps", 2)
    body = what_runs(args) | {
        "reservation": args.reservation,
        "gpus": args.gpus,
        "retries": args.retries,
        "retry_failed": args.retry_failed,
        "plan": args.plan,
        "after": args.after,
    }
    if args.gaps:
        wish = {
            "shortest_minutes": args.shortest,
            "total_hours": args.total,
            "min_memory_gib": args.memory,
        }
        made = to.create("/jobs", body | {"backfill": wish})["backfill"]
        print(f"gap job {made['id']}: {made['state']}")
        return
    made = to.create("/jobs", body)
    print(f"job {made['id']}: {made['state']}", file=sys.stderr)
    if args.follow:
        read_log(to, made["id"], follow=True)
    else:
        print(made["id"])


def jobs(_args):
    """List the newest jobs."""
    for row in portal().ask("GET", "/jobs", limit=30)["jobs"]:
        about = f"{row['id']:>6}  {row['state']:9}  {row['node']:12}  {row['name']}"
        print(f"{about}  {row.get('waits') or ''}".rstrip())


def gaps(args):
    """List your jobs in gaps; --stop ends one of them."""
    to = portal()
    if args.stop is not None:
        made = to.ask("POST", f"/jobs/gaps/{args.stop}/stop", {"reason": ""})
        print(made["state"])
        return
    for row in to.ask("GET", "/jobs/gaps")["gaps"]:
        last = f"job {row['jobs'][-1]}" if row["jobs"] else "no job yet"
        about = f"{row['id']:>6}  {row['state']:9}  {last:12}  {row['name']}"
        print(f"{about}  {row['reason']}")


def log(args):
    """Print a job's log."""
    read_log(portal(), args.job, follow=args.follow)


def read_log(to, job, *, follow):
    """Print a log, until its job has ended where it is followed: that end decides the
    exit status. Where the portal goes away it goes on at the same byte afterwards."""
    offset = 0
    patience = PATIENCE_SECONDS if follow else 0
    while True:
        one = patiently(to, patience, f"/jobs/{job}")
        piece = patiently(to, patience, f"/jobs/{job}/log", offset=offset)
        sys.stdout.write(piece["data"])
        sys.stdout.flush()
        offset = piece["offset"] + piece["bytes"]
        whole = offset >= max(piece["size"], one["log_bytes"])
        if follow and whole and one["state"] not in LIVE:
            if one["state"] != "done":
                raise Refused(f"job {job} {one['state']}: {one['reason']}")
            return
        if not follow and (not piece["bytes"] or offset >= piece["size"]):
            return
        if not piece["bytes"]:
            time.sleep(FOLLOW_SECONDS)


def patiently(to, seconds, path, **query):
    """Ask, and again for so many seconds while the portal is away."""
    until, wait = time.monotonic() + seconds, FOLLOW_SECONDS
    while True:
        try:
            return to.ask("GET", path, **query)
        except Refused as error:
            if error.status != 3 or time.monotonic() + wait > until:
                raise
            if wait == FOLLOW_SECONDS:
                print(f"gp.py: {error}; waiting", file=sys.stderr)
            time.sleep(wait)
            wait = min(LONGEST_WAIT_SECONDS, 2 * wait)


def files(args):
    """List the files in a job's results folder; --get downloads them."""
    to = portal()
    found = to.ask("GET", f"/jobs/{args.job}/files")["files"]
    if unknown := set(args.name) - {row["path"] for row in found}:
        raise Refused(f"job {args.job} has no file {min(unknown)}", 2)
    for row in found:
        if args.name and row["path"] not in args.name:
            continue
        if args.get and row["state"] == "here":
            print(fetch(to, args.job, row, Path(args.to)))
        else:
            why = f"{row['state']}{': ' if row['reason'] else ''}{row['reason']}"
            print(f"{row['size_bytes']:>14,}  {row['path']}  {why}")


def fetch(to, job, row, folder):
    """Bring one file here whole, checked by its sum; return where it lies."""
    parts = row["path"].split("/")
    if any(part in ("", ".", "..") or "\\" in part for part in parts):
        raise Refused(f"{row['path']} is not a valid file name")
    place = folder.joinpath(*parts)
    if place.exists():
        raise Refused(f"{place} exists already", 2)
    place.parent.mkdir(parents=True, exist_ok=True)
    draft, digest = place.with_name(place.name + ".part"), hashlib.sha256()
    try:
        address = f"/jobs/{job}/files/{row['id']}"
        with to.open("GET", address) as answer, draft.open("wb") as file:
            while piece := answer.read(2**20):
                file.write(piece)
                digest.update(piece)
    except http.client.HTTPException as error:
        raise Refused(f"{row['path']} is incomplete: {error!r}", 3) from None
    if digest.hexdigest() != row["sha256"]:
        draft.unlink()
        raise Refused(f"{row['path']} is incomplete; try again", 3)
    draft.replace(place)
    return place


def stop(args):
    """Stop a job."""
    print(portal().ask("POST", f"/jobs/{args.job}/stop", {"reason": ""})["state"])


def of_own(to, number):
    """Return one of one's own reservations."""
    row = next((row for row in own(to) if row["id"] == number), None)
    if row is None:
        raise Refused(f"you have no reservation {number}")
    return row


def extend(args):
    """Make a reservation longer."""
    to = portal()
    row = of_own(to, args.reservation)
    end = when(row["end"]) + timedelta(hours=args.hours)
    body = {"end": iso(end), "version": row["version"]}
    made = to.ask("PATCH", f"/reservations/{row['id']}", body)
    print(f"reservation {made['id']}: {span(made)}")


def release(args):
    """Give a reservation back: cancel it, or release it if it runs."""
    to = portal()
    act = "release" if of_own(to, args.reservation)["state"] == "active" else "cancel"
    print(to.ask("POST", f"/reservations/{args.reservation}/{act}", {})["state"])


class Socket:
    """A websocket to the portal (RFC 6455), with the token, for one thread."""

    def __init__(self, to, path):
        self.line, self.kept, self.parts = _connected(to), b"", b""
        key = base64.b64encode(os.urandom(16))
        parts = urllib.parse.urlsplit(to.url)
        lines = [
            f"GET {parts.path}{path} HTTP/1.1",
            f"Host: {parts.netloc}",
            f"Origin: {parts.scheme}://{parts.netloc}",
            f"Authorization: Bearer {to.token}",
            f"Accept: {JSON}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key.decode()}",
            "Sec-WebSocket-Version: 13",
        ]
        try:
            self.line.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
            answer = http.client.HTTPResponse(Unread(self.line))  # type: ignore[arg-type]
            answer.begin()
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Refused(f"the portal cannot be reached: {error}", 3) from None
        if answer.status != 101:
            raise Refused(
                words_of(problem_of(answer), answer, to),
                3 if answer.status >= 500 else 1,
            )
        digest = hashlib.sha1(key + ACCEPT, usedforsecurity=False).digest()
        if answer.headers["Sec-WebSocket-Accept"] != base64.b64encode(digest).decode():
            raise Refused(f"{to.url} is not a GPU Portal", 2)

    def send(self, kind, data):
        """Send one message. Clients must mask theirs."""
        size = len(data)
        head = struct.pack(">BB", 0x80 | kind, 0x80 | min(size, 126))
        if size >= 126:
            head = struct.pack(">BBH", 0x80 | kind, 0x80 | 126, size)
        mask = os.urandom(4)
        # One large number is much faster than byte after byte.
        wide = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        masked = (int.from_bytes(data, "big") ^ wide).to_bytes(size, "big")
        self.line.sendall(head + mask + masked)

    def messages(self):
        """Return the messages that have come: (kind, data). Never waits."""
        self.line.settimeout(0)
        try:
            data = self.line.recv(65_536)
        except (BlockingIOError, ssl.SSLWantReadError):
            # Of an encrypted connection: something came that is no data.
            return []
        finally:
            self.line.settimeout(None)
        if not data:
            raise Refused("the portal closed the connection", 3)
        self.kept += data
        found = []
        while (frame := self._frame()) is not None:
            last, kind, data = frame
            if kind < CLOSE:
                self.parts += data
                data = self.parts
                if not last:
                    continue
                self.parts = b""
            found.append((kind or BINARY, data))
        return found

    def waits(self):
        """Return whether bytes have come that select does not see."""
        return getattr(self.line, "pending", int)() > 0

    def _frame(self):
        """Return the next whole frame: (whether it is the last, kind, data)."""
        size, start = (self.kept[1] & 0x7F if len(self.kept) > 1 else 0), 2
        for mark, form in ((126, ">H"), (127, ">Q")):
            if size == mark:
                start += struct.calcsize(form)
                if len(self.kept) < start:
                    return None
                (size,) = struct.unpack(form, self.kept[2:start])
                break
        if size > MOST_FRAME_BYTES:
            raise Refused("the portal's answer is not valid", 3)
        if len(self.kept) < start + size:
            return None
        lead, data = self.kept[0], self.kept[start : start + size]
        self.kept = self.kept[start + size :]
        return bool(lead & 0x80), lead & 0x0F, data


class Unread:
    """Reads an answer to its end and no byte further: behind it are messages."""

    def __init__(self, line):
        self.line = line

    def makefile(self, *_mode):
        """Return what is read from: itself."""
        return self

    def readline(self, most=-1):
        """Return one line, with its end."""
        found = b""
        while not found.endswith(b"\n") and len(found) != most:
            byte = self.line.recv(1)
            if not byte:
                break
            found += byte
        return found

    def read(self, size=-1):
        """Return so many bytes, or all that come."""
        found = b""
        while size < 0 or len(found) < size:
            data = self.line.recv(65_536 if size < 0 else size - len(found))
            if not data:
                break
            found += data
        return found

    def flush(self):
        """Do nothing: there is nothing to write."""

    def close(self):
        """Leave the connection open."""


def _connected(to):
    """Return a connection to the portal, encrypted where its address says so."""
    parts = urllib.parse.urlsplit(to.url)
    secure = parts.scheme == "https"
    try:
        place = (parts.hostname, parts.port or (443 if secure else 80))
        line = socket.create_connection(place, timeout=TIMEOUT_SECONDS)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if secure:
            context = ssl.create_default_context()
            line = context.wrap_socket(line, server_hostname=parts.hostname)
        return line
    except (OSError, ValueError) as error:
        raise Refused(f"the portal cannot be reached: {error}", 3) from None


def tunnel(args):
    """Connect standard input and output to the ssh server of a host's node."""
    found = HOST.fullmatch(args.host)
    if not found:
        words = f"{args.host!r} is not a host such as r17.gpuportal"
        raise Refused(words, 2)
    node = urllib.parse.urlencode({"node": found[2]} if found[2] else {})
    line = Socket(portal(), f"/ws/ssh/{found[1]}/{'?' if node else ''}{node}")
    line.line.settimeout(None)
    # A thread reads what is typed, because select takes no pipe on every system, and
    # only this one uses the connection: an encrypted one is not for two.
    here, there = socket.socketpair()
    reading = threading.Thread(target=_copy_input, args=(there,), daemon=True)
    reading.start()
    typed, over = [here], False
    while not over:
        ready = [line.line] if line.waits() else []
        if not ready:
            ready, _, _ = select.select([line.line, *typed], [], [])
        if here in ready:
            data = here.recv(PIECE_BYTES)
            line.send(BINARY if data else TEXT, data or b"end")
            typed = typed if data else []
        if line.line in ready:
            over = any([_passed_on(line, *one) for one in line.messages()])


def _copy_input(there):
    """Pass on standard input until its end."""
    with there:
        while data := os.read(0, PIECE_BYTES):
            there.sendall(data)


def _passed_on(line, kind, data):
    """Handle one message of the portal. Return whether it was the last."""
    if kind == PING:
        line.send(PONG, data)
    elif kind == BINARY:
        while data:
            data = data[os.write(1, data) :]
    elif kind == CLOSE:
        code = struct.unpack(">H", data[:2])[0] if len(data) > 1 else 1000
        if code != 1000:
            words = data[2:].decode(errors="replace") or f"it gave the code {code}"
            raise Refused(f"the connection has ended: {words}")
        return True
    return False


def _program():
    """Return the command line that starts this file again."""
    return [sys.executable or "python3", str(Path(__file__).resolve())]


def _command(*words):
    """Return the command line that starts this file again, for ssh's settings.

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
        # One that is named replaces those that ssh tries by itself.
        *[("IdentityFile", _quoted(path)) for path in usual if path.exists()],
        ("UserKnownHostsFile", known),
    ]


def _own_key(to):
    """Return this machine's public key. It is made and stored at the first time."""
    private, public = KEYS / "id_ed25519", KEYS / "id_ed25519.pub"
    if not public.exists():
        KEYS.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = KEYS / f"draft{os.getpid()}"
        name = f"gp.py on {socket.gethostname()}"[:60]
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
    key, kept = _own_key(to), KEYS / f"{host}.json"
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
    _replaced(KEYS / f"{host}-cert.pub", facts["certificate"] + "\n")
    authority = f"@cert-authority {facts['hosts']} {facts['authority']}\n"
    _replaced(KEYS / "known_hosts", authority)
    lines = [f"Host {host}", f"    HostKeyAlias {facts['host_key_alias']}"]
    lines.append(f"    User {facts['user']}")
    _replaced(KEYS / f"{host}.conf", "\n".join(lines) + "\n")
    _replaced(kept, json.dumps({**facts, "url": to.url, "key": key}))
    return facts


def certificate(args):
    """Fetch the certificate of a host; ssh's settings call it."""
    _certified(args.host)


def ssh(args):
    """Open a shell on a reservation's node, or run what follows --."""
    node = f".{args.node}" if args.node else ""
    host = f"r{args.reservation}{node}.gpuportal"
    options = _options()
    try:
        facts = _certified(host)
    except Refused as refusal:
        # Without an account in the portal: the user's own key or password on the node.
        if refusal.code != "ssh-no-account" or not args.user:
            raise
        facts = {}
    else:
        alias = ("HostKeyAlias", facts["host_key_alias"])
        options += [*_certificate_options(host), alias]
    words = ["ssh"]
    for name, value in options:
        words += ["-o", f"{name}={value}"]
    words += ["-l", args.user or facts["user"], host, *args.arguments]
    try:
        status = subprocess.call(words)
    except FileNotFoundError:
        raise Refused("there is no program ssh here", 2) from None
    sys.exit(status if status >= 0 else 255)


def keys(args):
    """List your ssh public keys; add a file, or remove a number."""
    to = portal()
    if args.what == "list":
        for row in to.ask("GET", "/ssh-keys")["ssh_keys"]:
            print(f"{row['id']:>6}  {row['fingerprint']}  {row['name']}")
        return
    if args.value is None:
        raise Refused(f"keys {args.what} needs a file or a number", 2)
    if args.what == "remove":
        if not args.value.isdecimal():
            raise Refused(f"{args.value!r} is not a number of gp.py keys", 2)
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
        "# Written by gp.py config-ssh, which writes it again.",
        "Host *.gpuportal",
    ]
    if args.user:
        lines.append(f"    User {args.user}")
    lines += [f"    {name} {value}" for name, value in _options()]
    lines.append(f'Match host *.gpuportal exec "{_command("certificate", "%h")}"')
    lines += [f"    {name} {value}" for name, value in _certificate_options("%n")]
    lines.append(f"    Include {_quoted(KEYS / '*.conf')}")
    own, main = folder / "gpuportal.config", folder / "config"
    _replaced(own, "\n".join(lines) + "\n")
    include = f"Include {own.name}"
    text = main.read_text() if main.exists() else ""
    if include not in text.splitlines():
        # Before everything else: below a Host line it would count for that host only.
        _replaced(main, f"{include}\n\n{text}" if text else f"{include}\n")
    print(f"wrote {own}; try: ssh r17.gpuportal")


def _replaced(path, text):
    """Write a file whole, for its owner only. A link stays a link."""
    path = path.resolve()
    draft = path.with_name(path.name + ".part")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    draft.replace(path)


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def parser():
    """Return what understands the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    made = Parser(prog="gp.py", description=__doc__, formatter_class=raw)
    words = made.add_subparsers(dest="word", required=True)

    def word(act, *numbers, **options):
        name = act.__name__.replace("_", "-")
        one = words.add_parser(name, help=act.__doc__)
        one.set_defaults(act=act)
        for name in numbers:
            one.add_argument(name, type=int, help=f"number of the {name}")
        for name, given in options.items():
            one.add_argument(f"--{name.replace('_', '-')}", **given)
        return one

    word(login).add_argument("url", help="address of the portal: https://...")
    wish = {
        "gpus": {"type": int, "default": 1, "help": "how many GPUs (default: 1)"},
        "hours": {"type": hours, "required": True, "help": "length in hours"},
        "memory": {"type": float, "default": 0, "help": "least GiB of each GPU"},
        "gpu_class": {"help": "name of a pool, as on the board"},
        "at": {"type": local, "help": "earliest start (book: exact start)"},
    }
    word(find, **wish)
    word(book, **wish).add_argument(
        "--for", dest="purpose", default="", help="what the booking is for"
    )
    word(mine)
    runs = word(
        run,
        reservation={"type": int, "help": "number of the reservation to run in"},
        name={"default": "", "help": "name of the job"},
        gpus={"type": int, "help": "how many of its GPUs (default: all)"},
        retries={"type": int, "default": 0, "help": "restarts if the node fails"},
        retry_failed={
            "action": "store_true",
            "help": "restart also when the script failed",
        },
        launcher={
            "choices": LAUNCHERS,
            "help": "what starts the script (default: python for .py)",
        },
        env={
            "default": "",
            "metavar": "ENVIRONMENT",
            "help": "folder of a venv, conda environment or uv project on the node, "
            "or a conda environment's name",
        },
        after={
            "type": int,
            "metavar": "JOB",
            "help": "begin once that job is done",
        },
        plan={"type": int, "metavar": "NUMBER", "help": "number of a saved plan"},
        follow={"action": "store_true", "help": "print the log until the job ends"},
        gaps={"action": "store_true", "help": "run whenever GPUs are unbooked"},
        shortest={
            "type": float,
            "default": 30,
            "help": "with --gaps: shortest useful time in minutes (default: 30)",
        },
        total={"type": float, "help": "with --gaps: total hours"},
        memory={
            "type": float,
            "default": 0,
            "help": "with --gaps: least GiB of each GPU",
        },
    )
    runs.add_argument(
        "--recipe", help="a ready recipe instead of a script, such as burn-in"
    )
    runs.add_argument(
        "--set",
        type=setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the recipe",
    )
    runs.add_argument(
        "script", nargs="?", help="the script; its arguments follow after --"
    )
    word(jobs)
    word(gaps, stop={"type": int, "metavar": "NUMBER", "help": "end this one"})
    word(
        log,
        "job",
        follow={"action": "store_true", "help": "go on until the job ends"},
    )
    word(stop, "job")
    brought = word(
        files,
        "job",
        get={"action": "store_true", "help": "download the files"},
        to={"default": ".", "metavar": "FOLDER", "help": "download into this folder"},
    )
    brought.add_argument("name", nargs="*", help="names of the files (default: all)")
    word(
        extend,
        "reservation",
        hours={"type": hours, "required": True, "help": "by how many hours"},
    )
    word(release, "reservation")
    user = {"default": "", "help": "your name on the node (default: the one here)"}
    nodes = {"default": "", "help": "one of its nodes (default: the first)"}
    word(ssh, "reservation", node=nodes, user=user)
    stored = word(keys, name={"default": "", "help": "with add: name of the key"})
    actions = ("list", "add", "remove")
    stored.add_argument("what", nargs="?", default="list", choices=actions)
    stored.add_argument("value", nargs="?", help="a .pub file, or a key's number")
    word(config_ssh, user=user)
    word(certificate).add_argument("host", help="r17.gpuportal, or r17.NODE.gpuportal")
    word(tunnel).add_argument("host", help="r17.gpuportal, or r17.NODE.gpuportal")
    return made


def main(argv=None):
    """Do what the command line says; return the exit status."""
    words = sys.argv[1:] if argv is None else argv
    cut = words.index("--") if "--" in words else len(words)
    args = parser().parse_args(words[:cut])
    args.arguments = words[cut + 1 :]
    # A terminal that knows few characters is no reason to fail.
    getattr(sys.stdout, "reconfigure", lambda **_: None)(errors="replace")
    try:
        args.act(args)
        sys.stdout.flush()
    except Refused as refused:
        print(f"gp.py: {refused}", file=sys.stderr)
        return refused.status
    except BrokenPipeError:
        # Who reads has read enough: gp.py log 5 | head.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, UnicodeDecodeError) as error:
        binary = isinstance(error, ValueError)
        name = getattr(args, "script", None) or getattr(args, "value", "")
        words = f"{name} is not a text file" if binary else error
        print(f"gp.py: {words}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
