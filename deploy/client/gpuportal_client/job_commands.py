"""Commands for jobs: start, follow, stop, download."""

import argparse
import hashlib
import http.client
import json
import sys
import time
from pathlib import Path

from gpuportal_client import program
from gpuportal_client.booking_commands import own
from gpuportal_client.instants import clock, span
from gpuportal_client.listing import JSON_OPTION, facts, show
from gpuportal_client.portal_api import Refused
from gpuportal_client.saved_login import portal
from gpuportal_client.script_folder import REQUIREMENTS, WORD, ScriptFolder

FOLLOW_SECONDS = 1.0
PATIENCE_SECONDS = 1800
"""How long a followed log waits for a portal that is away."""
LONGEST_WAIT_SECONDS = 15
LAUNCHERS = ("none", "python", "torchrun", "accelerate", "deepspeed")
USUAL_HEADS = ("#!/usr/bin/env python", "#!/usr/bin/env python3")
LIVE = ("queued", "starting", "running", "moving", "stopping")


def what_runs(args):
    """Return what a job is made of: a script, or a ready recipe with its settings."""
    if (args.script is None) == (args.recipe is None):
        raise Refused("give a script or --recipe", 2)
    if args.recipe is None:
        if args.set:
            raise Refused("--set is for --recipe", 2)
        script = Path(args.script)
        text = script.read_text()
        folder = ScriptFolder(script)
        named = environment(args.env, folder)
        what_goes_with(folder, text, args)
        launcher = args.launcher
        if launcher is None:
            # A #! line says what starts the script. The usual ones of Python only name
            # it, and a node may have only python3.
            head = text.lstrip("\ufeff").partition("\n")[0].strip()
            usual = not head.startswith("#!") or head in USUAL_HEADS
            launcher = "python" if script.suffix == ".py" and usual else "none"
        return {
            "name": args.name or script.name,
            "kind": "script",
            "script": text,
            "files": folder.files,
            "arguments": args.arguments,
            "launcher": "" if launcher == "none" else launcher,
            "environment_folder": named,
        }
    if args.env or args.launcher is not None:
        raise Refused("--env and --launcher are for a script", 2)
    if args.beside or args.alone:
        raise Refused("--beside and --alone are for a script", 2)
    if args.arguments:
        raise Refused("a recipe has no arguments; use --set NAME=VALUE", 2)
    return {
        "name": args.name or args.recipe,
        "kind": "recipe",
        "recipe": args.recipe,
        "recipe_settings": dict(args.set),
    }


def what_goes_with(folder, text, args):
    """Add the files beside a script that are sent. Print them, and what is not."""
    for path in args.beside:
        folder.add(Path(path))
    if not args.alone:
        if folder.name.endswith(".py"):
            folder.add_imports(text)
        else:
            folder.add_words(WORD.findall(text))
        folder.add_words(args.arguments)
    for line in folder.finish():
        print(line, file=sys.stderr)


def environment(name, folder):
    """Return how the portal names an environment.

    A requirements file that is here goes with the script, unless its path is absolute:
    then it is one of the node. A folder that is here gets absolute, because the home is
    often the same on the node. A conda environment's name stays.
    """
    path, is_requirements = Path(name), name.endswith(REQUIREMENTS)
    if is_requirements and not path.is_absolute():
        if not path.is_file():
            raise Refused(
                f"--env {name}: there is no such file here. For one on the node, give "
                "its absolute path",
                2,
            )
        return folder.add_requirements(path)
    is_path = "/" in name or name.startswith(".")
    return str(path.absolute()) if is_path and path.exists() else name


def setting(text):
    """Return (name, value) of NAME=VALUE. A number where the value is one."""
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        known = json.loads(value)
    except ValueError:
        return name, value
    number = isinstance(known, (int, float)) and not isinstance(known, bool)
    return name, known if number else value


def values(text):
    """Return (name, values) of NAME=VALUE,VALUE."""
    name, _, rest = text.partition("=")
    return name, [setting(f"{name}={value}")[1] for value in rest.split(",")]


def export(args):
    """Write a model as one ONNX file, in a job. `gp serve` takes the file."""
    to = portal()
    settings = {"model": args.model, "folder": args.folder, "seq": args.seq}
    body = {
        "name": args.name or "export to ONNX",
        "kind": "recipe",
        "recipe": "export-onnx",
        "recipe_settings": {key: one for key, one in settings.items() if one},
        "reservation": args.reservation,
        "gpus": 1,
    }
    made = to.create("/jobs", body)
    print(f"job {made['id']}: {made['state']}", file=sys.stderr)
    if args.follow:
        read_log(to, made["id"], follow=True)


def run(args):
    """Start a script or a ready recipe."""
    to = portal()
    if args.reservation is not None and args.gaps:
        raise Refused("give --reservation NUMBER or --gaps", 2)
    body = what_runs(args)
    number = args.reservation
    if number is None and not args.gaps:
        number = active_reservation(to)
    body |= {
        "reservation": number,
        "gpus": args.gpus,
        "retries": args.retries,
        "retry_failed": args.retry_failed,
        "plan": args.plan,
        "after": args.after,
    }
    if args.sweep:
        if args.gaps or args.follow:
            raise Refused("--sweep goes with --reservation, without --follow", 2)
        sweep = {name: values for name, values in args.sweep}
        made = to.create("/jobs/arrays", body | {"sweep": sweep})
        print(f"array {made['array']}: {len(made['jobs'])} jobs")
        return
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


def active_reservation(to):
    """Return the number of the user's only reservation that runs now, and print it.

    Raises:
        Refused: the user has no such reservation, or several, which it lists.
    """
    rows = [row for row in own(to) if row["state"] == "active"]
    told = [f"{row['id']:>6}  {span(row)}  {to.cards(row['gpu_ids'])}" for row in rows]
    if not rows:
        raise Refused(
            "none of your reservations runs now. Book one (gp book --hours 8), give "
            "--reservation NUMBER of a later one, or --gaps",
            2,
        )
    if len(rows) > 1:
        several = "\n".join(told)
        raise Refused(f"which one? Give --reservation NUMBER:\n{several}", 2)
    print(f"in reservation {told[0].strip()}", file=sys.stderr)
    return rows[0]["id"]


def jobs(args):
    """List the newest jobs."""
    answer = portal().ask(
        "GET", "/jobs", limit=30, state=args.state, reservation=args.reservation
    )
    show(
        args,
        answer,
        (
            (
                f"{row['id']:>6}",
                row["state"],
                row["node"],
                row["name"],
                row.get("waits"),
            )
            for row in answer["jobs"]
        ),
    )


def job(args):
    """Show one job."""
    facts(args, portal().ask("GET", f"/jobs/{args.job}"))


def array(args):
    """List the jobs of a sweep. --stop stops those that have not ended."""
    to = portal()
    if args.stop:
        made = to.ask("POST", f"/jobs/arrays/{args.array}/stop", {"reason": ""})
        print(f"stopped {made['stopped']} jobs")
        return
    answer = to.whole(f"/jobs/arrays/{args.array}", "jobs")
    rows = []
    for row in answer["jobs"]:
        values = " ".join(f"{name}={one}" for name, one in row["parameters"].items())
        rows.append((row["id"], row["state"], row["node"], values))
    show(args, answer, rows)


def gaps(args):
    """List your jobs in gaps. --stop ends one of them."""
    to = portal()
    if args.stop is not None:
        made = to.ask("POST", f"/jobs/gaps/{args.stop}/stop", {"reason": ""})
        print(made["state"])
        return
    answer = to.whole("/jobs/gaps", "gaps")
    rows = []
    for row in answer["gaps"]:
        last = f"job {row['jobs'][-1]}" if row["jobs"] else "no job yet"
        rows.append((row["id"], row["state"], last, row["name"], row["reason"]))
    show(args, answer, rows)


def moves(args):
    """List the proposed and past moves of a job. Accept or decline one."""
    to = portal()
    address = f"/jobs/{args.job}/moves"
    for act, number in (("accept", args.accept), ("decline", args.decline)):
        if number is not None:
            to.ask("POST", f"{address}/{number}/{act}", {})
            print(f"move {number}: {act}")
            return
    answer = to.whole(address, "moves")
    show(
        args,
        answer,
        (
            (row["id"], clock(row["at"]), row["state"], row["reason"])
            for row in answer["moves"]
        ),
    )


def log(args):
    """Print a job's log. --search prints only the lines with a text."""
    if args.search is None:
        read_log(portal(), args.job, follow=args.follow)
        return
    if args.follow:
        raise Refused("give --search or --follow", 2)
    to, offset = portal(), 0
    while offset is not None:
        address = f"/jobs/{args.job}/log/search"
        found = to.ask("GET", address, q=args.search, offset=offset)
        for line in found["hits"]:
            print(line["data"])
        offset = found["next_offset"]


def read_log(to, job, *, follow):
    """Print a log. With ``follow`` print until the job ends; its state decides the
    exit status. After an outage printing continues at the same byte."""
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
    """Send a request. Repeat it for some seconds while the portal cannot be reached."""
    until, wait = time.monotonic() + seconds, FOLLOW_SECONDS
    while True:
        try:
            return to.ask("GET", path, **query)
        except Refused as error:
            if error.status != 3 or time.monotonic() + wait > until:
                raise
            if wait == FOLLOW_SECONDS:
                print(f"{program()}: {error}; waiting", file=sys.stderr)
            time.sleep(wait)
            wait = min(LONGEST_WAIT_SECONDS, 2 * wait)


def files(args):
    """List the files in a job's results folder. --get downloads them."""
    to = portal()
    found = to.ask("GET", f"/jobs/{args.job}/files")["files"]
    if unknown := set(args.name) - {row["path"] for row in found}:
        raise Refused(f"job {args.job} has no file {min(unknown)}", 2)
    wanted = [row for row in found if not args.name or row["path"] in args.name]
    rows = []
    for row in wanted:
        if args.get and row["state"] == "here":
            print(fetch(to, args.job, row, Path(args.to)))
            continue
        why = f"{row['state']}{': ' if row['reason'] else ''}{row['reason']}"
        rows.append((f"{row['size_bytes']:>14,}", row["path"], why))
    if rows or not args.get:
        show(args, {"files": wanted}, rows)


def fetch(to, job, row, folder):
    """Download one file and check its SHA-256. Return its path."""
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


def declare(word):
    """Add the commands of this module."""
    runs = word(
        run,
        reservation={
            "type": int,
            "help": "number of the reservation to run in (default: your active one)",
        },
        name={"default": "", "help": "name of the job"},
        beside={
            "action": "append",
            "default": [],
            "metavar": "PATH",
            "help": "send this text file or folder of the script's folder too. Give it "
            "again for several (default: the modules that a .py file imports)",
        },
        alone={"action": "store_true", "help": "send only the script, no modules"},
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
            "help": "requirements file, which goes with the script, or folder of a "
            "venv, conda environment or uv project on the node, or a conda "
            "environment's name",
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
        "script", nargs="?", help="the script. Its arguments follow after --"
    )
    runs.add_argument(
        "--sweep",
        type=values,
        action="append",
        default=[],
        metavar="NAME=VALUE,VALUE",
        help="a job for each value, which {NAME} in the arguments stands for",
    )
    exported = word(
        export,
        reservation={
            "type": int,
            "required": True,
            "help": "number of the reservation to run in",
        },
        folder={"help": "folder of your code on the node, for module:callable"},
        seq={"type": int, "help": "most tokens of a sequence (default: 512)"},
        name={"help": "name of the job"},
        follow={"action": "store_true", "help": "print the log until the job ends"},
    )
    exported.add_argument(
        "model", help="folder on the node, name in the cache, or module:callable"
    )
    states = (*LIVE, "done", "failed", "stopped", "lost")
    word(
        jobs,
        state={"choices": states, "help": "only jobs in this state"},
        reservation={"type": int, "help": "only jobs of this reservation"},
        json=JSON_OPTION,
    )
    word(job, "job", json=JSON_OPTION)
    whole = {"action": "store_true", "help": "stop its jobs that have not ended"}
    word(array, "array", stop=whole, json=JSON_OPTION)
    ended = {"type": int, "metavar": "NUMBER", "help": "end this one"}
    word(gaps, stop=ended, json=JSON_OPTION)
    answer = {"type": int, "metavar": "MOVE"}
    word(
        moves,
        "job",
        accept={**answer, "help": "accept this proposal"},
        decline={**answer, "help": "decline this proposal"},
        json=JSON_OPTION,
    )
    word(
        log,
        "job",
        follow={"action": "store_true", "help": "go on until the job ends"},
        search={"metavar": "TEXT", "help": "only lines with this text"},
    )
    word(stop, "job")
    brought = word(
        files,
        "job",
        get={"action": "store_true", "help": "download the files"},
        to={"default": ".", "metavar": "FOLDER", "help": "download into this folder"},
        json=JSON_OPTION,
    )
    brought.add_argument("name", nargs="*", help="names of the files (default: all)")
