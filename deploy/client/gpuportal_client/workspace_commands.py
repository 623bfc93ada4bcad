"""Commands for programs in the browser, such as JupyterLab, and for API tokens."""

import sys
import time
import webbrowser

from gpuportal_client import program
from gpuportal_client.instants import clock
from gpuportal_client.listing import needs_number, show, take_number
from gpuportal_client.portal_api import Refused
from gpuportal_client.saved_login import portal

LOOK_SECONDS = 1.0
PATIENCE_SECONDS = 300
"""How long ``open`` waits for a program that starts."""
STARTING = ("queued", "starting")
APPS = ("jupyter-lab", "code-server", "marimo", "tensorboard", "terminal")
ACTIONS = ("start", "book", "open", "stop", "share", "unshare")


def workspace(args):
    """List, start, open, stop or share programs in the browser, such as JupyterLab."""
    to = portal()
    if args.what == "list":
        _list(args, to)
    elif args.what == "start":
        _start(args, to)
    elif args.what == "book":
        _book(args, to)
    elif args.what == "open":
        _open(args, to)
    elif args.what == "stop":
        number = needs_number(args)
        made = to.ask("POST", f"/workspaces/{number}/stop", {})
        print(f"workspace {number}: {made['state']}")
    else:
        number, shared = needs_number(args), args.what == "share"
        to.ask("POST", f"/workspaces/{number}/share", {"shared": shared})
        whom = "you and the co-users" if shared else "you only"
        print(f"workspace {number} is for {whom}")


def _list(args, to):
    answer = to.whole("/workspaces", "workspaces", reservation=args.reservation)
    rows = []
    for row in answer["workspaces"]:
        whose = "" if row["own"] else f"of {row['owner']}"
        where = f"reservation {row['reservation']}"
        why = row["waits"] or row["reason"]
        until = f"until {clock(row['ends_at'])}"
        known = (row["id"], row["state"], row["app"], row["node"])
        rows.append((*known, where, whose, until, why))
    show(args, answer, rows)


def _start(args, to):
    if args.reservation is None:
        raise Refused("workspace start needs --reservation NUMBER", 2)
    body = {
        "reservation": args.reservation,
        "app": args.app,
        "environment_folder": args.env,
        "folder": args.folder,
        "gpus": args.gpus,
        "node": args.node,
    }
    _started(to.create("/workspaces", body))


def _book(args, to):
    if len(args.on) != 1:
        raise Refused("workspace book needs one GPU: --on NODE:INDEX", 2)
    body = {"gpu": to.gpus(args.on)[0], "environment_folder": args.env}
    if args.hours is not None:
        body["hours"] = args.hours
    _started(to.create("/workspaces/book", body))


def _started(made):
    where = f"{made['title']} in reservation {made['reservation']} on {made['node']}"
    print(f"workspace {made['id']}: {where}, {made['state']}")


def _open(args, to):
    """Print the address once the program runs. It works once, within a minute."""
    number, until = needs_number(args), time.monotonic() + PATIENCE_SECONDS
    made, told = to.ask("GET", f"/workspaces/{number}"), ""
    while made["state"] in STARTING and time.monotonic() < until:
        words = made["waits"] or made["state"]
        if words != told:
            print(f"{program()}: {words}", file=sys.stderr)
            told = words
        time.sleep(LOOK_SECONDS)
        made = to.ask("GET", f"/workspaces/{number}")
    for line in made["last_lines"]:
        print(line, file=sys.stderr)
    address = to.ask("POST", f"/workspaces/{number}/entry", {})["address"]
    if not (args.browser and webbrowser.open(address)):
        print(address)


def tokens(args):
    """List your API tokens, or revoke one. New ones are made on the page Settings."""
    to = portal()
    if args.what == "revoke":
        number = needs_number(args)
        to.ask("DELETE", f"/tokens/{number}")
        print(f"token {number} is revoked")
        return
    answer = to.whole("/tokens", "tokens")
    rows = []
    for row in answer["tokens"]:
        used = f"used {clock(row['last_used'])}" if row["last_used"] else "never used"
        own = "this one" if row["current"] else ""
        until = f"until {clock(row['expires'])}"
        scopes = ",".join(row["scopes"])
        rows.append((row["id"], row["label"], scopes, until, used, own))
    show(args, answer, rows)


def declare(word):
    """Add the commands of this module."""
    made = word(
        workspace,
        reservation={"type": int, "help": "start, list: number of the reservation"},
        app={
            "default": "jupyter-lab",
            "choices": APPS,
            "help": "start: the program (default: jupyter-lab)",
        },
        env={
            "default": "",
            "metavar": "ENVIRONMENT",
            "help": "start, book: folder of its environment on the node, or an image",
        },
        folder={"default": "", "help": "start: the folder that it shows"},
        gpus={"type": int, "help": "start: how many GPUs it uses (default: all)"},
        node={"default": "", "help": "start: one of the reservation's nodes"},
        on={
            "action": "append",
            "default": [],
            "metavar": "NODE:INDEX",
            "help": "book: this GPU, from now on",
        },
        hours={"type": int, "help": "book: for how many hours (default: 2)"},
        browser={"action": "store_true", "help": "open: start the browser here"},
    )
    take_number(made, ACTIONS, "workspace")
    take_number(word(tokens), ("revoke",), "token")
