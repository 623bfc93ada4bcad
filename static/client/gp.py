#!/usr/bin/env python3
"""GPU Portal from a shell: find a slot, book, run, follow, extend, give back.

One file, Python 3.9 or newer, standard library only. Make a token on the portal's
page "Me" with the scopes read, book and job, then:

    gp.py login https://portal.example          asks for the token, keeps it mode 600
    gp.py find --gpus 2 --hours 8               the first slots that fit
    gp.py book --gpus 2 --hours 8 --for "thesis, run 3"
    gp.py mine                                  own reservations
    gp.py run train.sh --reservation 17 --follow -- --epochs 3
    gp.py jobs | log 5 --follow | stop 5
    gp.py extend 17 --hours 2 | release 17

GPUPORTAL_URL and GPUPORTAL_TOKEN go before what was kept. Exit status: 0 done, 1 the
portal says no (its reason is printed), 2 wrong use, 3 the portal cannot be reached.
"""

import argparse
import getpass
import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from datetime import datetime, timedelta, timezone
from pathlib import Path

KEPT = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "gpuportal"
TIMEOUT_SECONDS = 30
FOLLOW_SECONDS = 1.0
UTC = timezone.utc  # noqa: UP017 (datetime.UTC is of Python 3.11)
LIVE = ("queued", "starting", "running", "moving", "stopping")


class Refused(Exception):
    """The portal answered and says no."""


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token must not travel to wherever an answer points."""

    def redirect_request(self, *_args):
        return None


class Portal:
    """The portal's JSON API, with one person's token."""

    def __init__(self, url, token):
        if not url.startswith(
            ("https://", "http://127.", "http://localhost", "http://[::1]")
        ):
            raise Refused("the address must begin with https://, or be of this machine")
        self.url, self.token = url.rstrip("/"), token
        self.opener = urllib.request.build_opener(NoRedirect())

    def ask(self, method, path, body=None, **query):
        """Return the answer's JSON."""
        known = {name: value for name, value in query.items() if value is not None}
        address = f"{self.url}/api/v1{path}"
        if known:
            address += "?" + urllib.parse.urlencode(known)
        request = urllib.request.Request(
            address,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={
                "Authorization": f"Bearer {self.token}",
                "Content-Type": "application/json",
                "Accept": "application/json",
            },
        )
        try:
            with self.opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise Refused(words_of(error)) from None


def words_of(error):
    """Return what a refusal says: its sentence, its fields, the next slot."""
    try:
        said = json.loads(error.read())
    except ValueError:
        return f"{error.code} {error.reason}"
    lines = [str(said.get("detail") or said.get("title") or error.code)]
    lines += [f"  {name}: {why}" for name, why in (said.get("fields") or {}).items()]
    slot = said.get("next_slot")
    if slot:
        lines.append(f"  the next that works: {span(slot)}, GPUs {slot['gpu_ids']}")
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
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone()
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time like 2026-11-21T14:00"
        ) from None


def login(args):
    """Keep address and token, after one look whether they work."""
    token = os.environ.get("GPUPORTAL_TOKEN") or getpass.getpass("Token: ").strip()
    Portal(args.url, token).ask("GET", "/standing")
    KEPT.mkdir(parents=True, exist_ok=True)
    draft = KEPT / "login.json.part"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        json.dump({"url": args.url, "token": token}, file)
    draft.replace(KEPT / "login.json")
    print(f"kept in {KEPT / 'login.json'}")


def portal():
    """Return the portal of the environment, or the one that was kept."""
    url, token = os.environ.get("GPUPORTAL_URL"), os.environ.get("GPUPORTAL_TOKEN")
    if not (url and token):
        try:
            kept = json.loads((KEPT / "login.json").read_text())
        except (OSError, ValueError):
            raise Refused("not signed in: gp.py login https://the.portal") from None
        url, token = url or kept["url"], token or kept["token"]
    return Portal(url, token)


def slots_of(args, to):
    """Return the first slots that fit what is asked for."""
    return to.ask(
        "GET", "/slots", count=args.gpus, hours=args.hours, min_memory_gib=args.memory,
        gpu_class=args.gpu_class, earliest=iso(args.at) if args.at else None,
    )["slots"]  # fmt: skip


def find(args):
    """Print the first slots."""
    slots = slots_of(args, portal())
    for slot in slots:
        print(f"{span(slot)}  {slot.get('kind') or ''}  GPUs {slot['gpu_ids']}")
    if not slots:
        raise Refused("no slot fits; ask for fewer GPUs or hours, or wait on the page")


def book(args):
    """Book the first slot that fits."""
    to = portal()
    slots = slots_of(args, to)
    if not slots:
        raise Refused("no slot fits; ask for fewer GPUs or hours, or wait on the page")
    slot = slots[0]
    if args.at and abs(when(slot["start"]) - args.at) > timedelta(minutes=1):
        raise Refused(f"not at that time; the first that works: {span(slot)}")
    wanted = {name: slot[name] for name in ("gpu_ids", "start", "end")}
    made = to.ask("POST", "/reservations", wanted | {"purpose": args.purpose})
    print(f"reservation {made['id']}: {span(made)}, {made['kind']}")


def own(to):
    """Return one's own reservations of now and the next two weeks."""
    now = datetime.now(UTC)
    found = to.ask(
        "GET",
        "/calendar",
        start=iso(now - timedelta(days=2)),
        end=iso(now + timedelta(days=15)),
    )
    return [row for row in found["reservations"] if row["mine"]]


def mine(_args):
    """Print own reservations."""
    for row in own(portal()):
        about = f"{row['id']:>6}  {row['state']:9}  {row['kind']:4}  {span(row)}"
        print(f"{about}  GPUs {row['gpu_ids']}  {row['purpose'] or ''}")


def run(args):
    """Launch a script into a reservation."""
    to = portal()
    if (args.reservation is None) != args.gaps:
        raise Refused("name --reservation, or ask for --gaps")
    body = {
        "reservation": args.reservation, "name": args.name or Path(args.script).name,
        "kind": "script", "script": Path(args.script).read_text(),
        "arguments": args.arguments, "gpus": args.gpus, "retries": args.retries,
    }  # fmt: skip
    if args.gaps:
        wish = {"shortest_minutes": args.shortest, "total_hours": args.total,
                "min_memory_gib": args.memory}  # fmt: skip
        made = to.ask("POST", "/jobs", body | {"backfill": wish})["backfill"]
        print(f"gap job {made['id']}: {made['state']}")
        return
    made = to.ask("POST", "/jobs", body)
    print(f"job {made['id']}: {made['state']}", file=sys.stderr)
    if args.follow:
        follow(to, made["id"])
    else:
        print(made["id"])


def jobs(_args):
    """Print the newest jobs."""
    for row in portal().ask("GET", "/jobs", limit=30)["jobs"]:
        print(f"{row['id']:>6}  {row['state']:9}  {row['node']:12}  {row['name']}")


def gaps(args):
    """Print what runs in gaps or waits for one; --stop ends one of them."""
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
    to = portal()
    if args.follow:
        follow(to, args.job)
        return
    offset = 0
    while True:
        piece = to.ask("GET", f"/jobs/{args.job}/log", offset=offset)
        sys.stdout.write(piece["data"])
        offset = piece["offset"] + piece["bytes"]
        if not piece["bytes"] or offset >= piece["size"]:
            return


def follow(to, job):
    """Print a job's log until it has ended; its end decides the exit status."""
    offset = 0
    while True:
        one = to.ask("GET", f"/jobs/{job}")
        piece = to.ask("GET", f"/jobs/{job}/log", offset=offset)
        sys.stdout.write(piece["data"])
        sys.stdout.flush()
        offset = piece["offset"] + piece["bytes"]
        if one["state"] not in LIVE and offset >= max(piece["size"], one["log_bytes"]):
            if one["state"] != "done":
                raise Refused(f"job {job} {one['state']}: {one['reason']}")
            return
        if not piece["bytes"]:
            time.sleep(FOLLOW_SECONDS)


def stop(args):
    """Stop a job."""
    print(portal().ask("POST", f"/jobs/{args.job}/stop", {"reason": ""})["state"])


def extend(args):
    """Move a reservation's end."""
    to = portal()
    row = next((row for row in own(to) if row["id"] == args.reservation), None)
    if row is None:
        raise Refused(f"there is no reservation {args.reservation} of yours")
    end = when(row["end"]) + timedelta(hours=args.hours)
    body = {"end": iso(end), "version": row["version"]}
    made = to.ask("PATCH", f"/reservations/{row['id']}", body)
    print(f"reservation {made['id']}: {span(made)}")


def release(args):
    """Give a reservation back: cancel it, or release it if it runs."""
    to = portal()
    row = next((row for row in own(to) if row["id"] == args.reservation), None)
    act = "release" if row and row["state"] == "active" else "cancel"
    made = to.ask("POST", f"/reservations/{args.reservation}/{act}", {})
    print(made["state"])


def parser():
    """Return what understands the command line."""
    made = argparse.ArgumentParser(
        prog="gp.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    words = made.add_subparsers(dest="word", required=True)

    def word(act, *numbers, **options):
        one = words.add_parser(act.__name__, help=act.__doc__)
        one.set_defaults(act=act)
        for name in numbers:
            one.add_argument(name, type=int)
        for name, given in options.items():
            one.add_argument(f"--{name.replace('_', '-')}", **given)
        return one

    word(login).add_argument("url")
    wish = {
        "gpus": {"type": int, "default": 1},
        "hours": {"type": float, "required": True},
        "memory": {"type": float, "default": 0, "help": "GiB of each GPU, at least"},
        "gpu_class": {"help": "the pool's name"},
        "at": {"type": local, "help": "from then on (book: exactly then)"},
    }
    word(find, **wish)
    word(book, **wish).add_argument("--for", dest="purpose", default="")
    word(mine)
    runs = word(
        run, reservation={"type": int}, name={"default": ""},
        gpus={"type": int}, retries={"type": int, "default": 0},
        follow={"action": "store_true"},
        gaps={"action": "store_true", "help": "between reservations, instead of one"},
        shortest={"type": float, "default": 30, "help": "minutes (--gaps)"},
        total={"type": float, "help": "hours in all (--gaps)"},
        memory={"type": float, "default": 0, "help": "GiB of each GPU (--gaps)"},
    )  # fmt: skip
    runs.add_argument("script", help="and its arguments after --")
    word(jobs)
    word(gaps, stop={"type": int, "metavar": "NUMBER"})
    word(log, "job", follow={"action": "store_true"})
    word(stop, "job")
    word(extend, "reservation", hours={"type": float, "required": True})
    word(release, "reservation")
    return made


def main(argv=None):
    """Do what the command line says; return the exit status."""
    words = sys.argv[1:] if argv is None else argv
    cut = words.index("--") if "--" in words else len(words)
    args = parser().parse_args(words[:cut])
    args.arguments = words[cut + 1 :]
    try:
        args.act(args)
    except Refused as refused:
        print(f"gp.py: {refused}", file=sys.stderr)
        return 1
    except UnicodeDecodeError as error:
        print(f"gp.py: {error}", file=sys.stderr)
        return 2
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        print(f"gp.py: the portal cannot be reached: {error}", file=sys.stderr)
        return 3
    except OSError as error:
        print(f"gp.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
