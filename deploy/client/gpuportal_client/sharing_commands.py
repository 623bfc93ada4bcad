"""Commands between people: the waitlist, co-users, offers and messages."""

from gpuportal_client.booking_commands import PURPOSE, WISH, of_own
from gpuportal_client.instants import clock, iso, local, span
from gpuportal_client.listing import needs_number, show, take_number
from gpuportal_client.portal_api import Refused
from gpuportal_client.saved_login import portal


def wait(args):
    """Join the waitlist: a suitable time is booked for you once there is one."""
    wish = {
        "count": args.gpus,
        "hours": args.hours,
        "min_memory_gib": args.memory,
        "gpu_class": args.gpu_class,
        "earliest": args.at and iso(args.at),
        "latest": args.latest and iso(args.latest),
        "purpose": args.purpose,
        "any_notice": args.any_notice,
    }
    body = {name: value for name, value in wish.items() if value is not None}
    made = portal().create("/waiting", body)
    place = f", number {made['position']} in line" if made["position"] else ""
    print(f"request {made['id']}: {made['state']}{place}")


def _outlook(row, to):
    """Return what a request expects: its offer, its reservation or its place."""
    if row["offer"]:
        offer = row["offer"]
        where = f"{span(offer)}, {to.cards(offer['gpu_ids'])}"
        return f"offered until {clock(offer['until'])}: {where}"
    if row["reservation"]:
        return f"reservation {row['reservation']}"
    expected = row["expected"]
    if expected and expected.get("start"):
        return f"expected {clock(expected['start'])}"
    return f"number {row['position']} in line" if row["position"] else ""


def waitlist(args):
    """List your requests. Accept or decline an offer, or withdraw a request."""
    to = portal()
    if args.what == "list":
        answer = to.whole("/waiting", "requests")
        rows = (
            (
                row["id"],
                row["state"],
                f"{row['count']} GPUs",
                f"{row['hours']:g} h",
                _outlook(row, to),
                row["purpose"],
            )
            for row in answer["requests"]
        )
        show(args, answer, rows)
        return
    number = needs_number(args)
    if args.what == "withdraw":
        to.ask("DELETE", f"/waiting/{number}")
        print(f"request {number} is withdrawn")
        return
    made = to.ask("POST", f"/waiting/{number}/{args.what}", {})
    if args.what == "accept":
        where = f"{span(made)}, {to.cards(made['gpu_ids'])}"
        print(f"reservation {made['id']}: {where}")
    else:
        print(f"request {number}: {made['state']}")


def share(args):
    """Let a member of your group use a reservation."""
    address = f"/reservations/{args.reservation}/co-users"
    made = portal().ask("POST", address, {"user": args.user})
    print(f"{made['user']} can use reservation {args.reservation}")


def unshare(args):
    """Remove a co-user from a reservation."""
    to = portal()
    # The field is only there if something of the reservation is shared or repeated.
    known = of_own(to, args.reservation).get("co_users") or []
    found = [row for row in known if row["login"] == args.user] or [
        row for row in known if args.user in (str(row["id"]), row["user"])
    ]
    if len(found) != 1:
        names = ", ".join(f"{row['user']} ({row['login']})" for row in known)
        raise Refused(
            f"reservation {args.reservation} is shared with: {names or 'nobody'}", 2
        )
    number = found[0]["id"]
    to.ask("DELETE", f"/reservations/{args.reservation}/co-users/{number}")
    print(f"{found[0]['user']} can no longer use reservation {args.reservation}")


def offer(args):
    """Give a reservation to a person (--to), or swap it for another (--swap)."""
    if (args.to is None) == (args.swap is None):
        raise Refused("give --to LOGIN or --swap RESERVATION", 2)
    body = {
        "reservation": args.reservation,
        "to": args.to or "",
        "account": args.account,
        "wanted": args.swap,
        "message": args.message,
    }
    made = portal().create("/offers", body)
    print(f"offer {made['id']} to {made['to']}, open until {clock(made['expires_at'])}")


def offers(args):
    """List the offers to you and from you. Accept, decline or check one."""
    to = portal()
    if args.what == "list":
        answer = to.whole(
            "/offers", "offers", open_only=None if not args.all else False
        )
        rows = (
            (
                row["id"],
                row["state"],
                f"from {row['from'] or '?'}" if row["to_me"] else f"to {row['to']}",
                f"reservation {row['reservation']}",
                f"for {row['wanted']}" if row["swap"] else "gift",
                clock(row["expires_at"]),
                row["message"],
            )
            for row in answer["offers"]
        )
        show(args, answer, rows)
        return
    number = needs_number(args)
    if args.what == "check":
        found = to.ask("POST", f"/offers/{number}/preview", {})
        if found and not found["ok"]:
            raise Refused(found["refusal"]["detail"])
        cost = f"{found['kind']}, {found['cost_credits']:.2f} credits" if found else ""
        print(f"offer {number} can be accepted {cost}".rstrip())
        return
    print(to.ask("POST", f"/offers/{number}/{args.what}", {})["state"])


def ask(args):
    """Send the holder of a reservation a message."""
    if not args.message.strip():
        raise Refused("write a message of one line or more", 2)
    body = {"message": args.message}
    portal().ask("POST", f"/reservations/{args.reservation}/ask", body)
    print("sent")


def declare(word):
    """Add the commands of this module."""
    waits = word(
        wait,
        **WISH,
        at={"type": local, "help": "earliest start"},
        latest={"type": local, "help": "latest end"},
        any_notice={"action": "store_true", "help": "book also at short notice"},
    )
    waits.add_argument("--for", default="", **PURPOSE)
    take_number(word(waitlist), ("accept", "decline", "withdraw"), "request")
    word(share, "reservation").add_argument("user", help="login of the person")
    word(unshare, "reservation").add_argument("user", help="login, name or number")
    word(
        offer,
        "reservation",
        to={"metavar": "LOGIN", "help": "give it to this person"},
        swap={"type": int, "metavar": "RESERVATION", "help": "swap it for this one"},
        account={"default": "", "help": "with --to: the group of the person"},
        message={"default": "", "help": "one line to the other person"},
    )
    every = {"action": "store_true", "help": "also those that have ended"}
    take_number(word(offers, all=every), ("accept", "decline", "check"), "offer")
    word(ask, "reservation").add_argument("message", help="one line")
