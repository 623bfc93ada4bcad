"""Commands for what the pages Board and Standing show, and for notices."""

import re

from gpuportal_client.instants import clock
from gpuportal_client.listing import JSON_OPTION, show
from gpuportal_client.portal_api import Refused
from gpuportal_client.saved_login import portal

GIB_BYTES = 2**30
GPU = re.compile(r"[\w.-]+:\d+")
"""A GPU as people name it: node-a:0."""


def _is_held(row):
    """Return whether a reservation holds a GPU now. A holder may name the next only."""
    return row["holder"] is not None and row["holder"]["reservation"] is not None


def _out(row):
    """Return why nobody can use a GPU; "": it can be used."""
    if not row["present"] or row["state"] == "lost":
        return "out of reach"
    return next((word for word in ("maintenance", "draining") if row[word]), "")


def _use(row):
    """Return who has a GPU and until when, or what else it is."""
    holder = row["holder"]
    if _is_held(row):
        name = holder["user"] or holder["account"] or "held"
        own = holder["mine"] or holder["shared"]
        return f"{'you' if own else name} until {clock(holder['until'])}"
    if _out(row):
        return _out(row)
    following = holder and holder["next"]
    return f"free until {clock(following['start'])}" if following else "free"


def gpus(args):
    """List every GPU now: state, use, holder. --free: only those that nobody holds."""
    answer = portal().whole("/gpus", "gpus")
    found = [
        row
        for row in answer["gpus"]
        if (not args.free or not (_is_held(row) or _out(row)))
        and (not args.node or row["node"] == args.node)
    ]
    rows = []
    for row in found:
        used, total = row["memory_used_bytes"], row["memory_total_bytes"]
        full = "?" if used is None else f"{used / GIB_BYTES:.1f}"
        busy = "?" if row["util_pct"] is None else f"{row['util_pct']:.0f}"
        where = f"{row['node']}:{row['index']}"
        memory = f"{full}/{total / GIB_BYTES:.0f} GiB"
        kind = row["gpu_class"] or row["name"]
        rows.append((where, kind, row["state"], f"{busy} %", memory, _use(row)))
    show(args, {**answer, "gpus": found}, rows)


def nodes(args):
    """List the nodes."""
    answer = portal().whole("/nodes", "nodes")
    rows = []
    for row in answer["nodes"]:
        out = [word for word in ("maintenance", "draining") if row[word]]
        gate, level = f"gate {row['gate']}", f"isolation {row['isolation']}"
        rows.append((row["name"], f"{row['gpus']} GPUs", level, gate, ", ".join(out)))
    show(args, answer, rows)


def standing(args):
    """Show your rank and what is left of your quotas, in credits (GPU-hours)."""
    answer = portal().ask("GET", "/standing")
    rows = []
    for one in answer["memberships"]:
        rank = f"rank {one['rank']} of {one['of']}"
        for quota in one["quotas"]:
            left = f"{quota['left_credits']:.1f} of {quota['quota_credits']:.1f} left"
            whose = "yours" if quota["own"] else "of the group"
            rows.append((one["account"], rank, quota["account"], whose, left))
        if not one["quotas"]:
            rows.append((one["account"], rank, "", "", "no quota"))
    show(args, answer, rows)


def notices(args):
    """List your notices, newest first. --read marks one, or all, as read."""
    to = portal()
    unread = True if args.unread or args.read == "all" else None
    if args.read and args.read != "all":
        if not args.read.isdecimal():
            raise Refused(f"{args.read!r} is not the number of a notice", 2)
        to.ask("POST", f"/notices/{args.read}/read")
        print(f"notice {args.read} is read")
        return
    if args.read:
        answer = to.whole("/notices", "notices", unread=unread)
        for row in answer["notices"]:
            to.ask("POST", f"/notices/{row['id']}/read")
        print(f"{len(answer['notices'])} notices are read")
        return
    answer = to.ask("GET", "/notices", unread=unread)
    show(
        args,
        answer,
        (
            (row["id"], clock(row["told_at"]), " " if row["read"] else "*", row["text"])
            for row in answer["notices"]
        ),
    )


def star(args):
    """Make a GPU (node-a:0) or a class a favourite. --off ends that."""
    to = portal()
    body = {"wanted": not args.off}
    number = to.numbers().get(args.what)
    if number is None and GPU.fullmatch(args.what):
        raise Refused(f"there is no GPU {args.what}; list them with: gp gpus", 2)
    body |= {"gpu_class": args.what} if number is None else {"gpu": number}
    kept = to.ask("PUT", "/favourites", body)["gpu_ids"]
    print(f"favourites: {to.cards(kept) or 'no GPU'}")


def declare(word):
    """Add the commands of this module."""
    word(
        gpus,
        free={"action": "store_true", "help": "only GPUs that are free now"},
        node={"default": "", "help": "only GPUs of this node"},
        json=JSON_OPTION,
    )
    word(nodes, json=JSON_OPTION)
    word(standing, also=("quota",), json=JSON_OPTION)
    word(
        notices,
        unread={"action": "store_true", "help": "only those that you have not read"},
        read={"metavar": "NUMBER", "help": "mark this one, or all, as read"},
        json=JSON_OPTION,
    )
    word(
        star, off={"action": "store_true", "help": "make it a usual one"}
    ).add_argument("what", help="node-a:0, or the name of a class")
