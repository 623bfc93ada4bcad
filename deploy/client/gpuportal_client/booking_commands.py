"""Commands for reservations: find, book, change, give back."""

from datetime import datetime, timedelta

from gpuportal_client.instants import UTC, hours, iso, local, span, when
from gpuportal_client.portal_api import Refused
from gpuportal_client.saved_login import portal


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
    made = to.ask("POST", "/reservations", wanted | {"purpose": args.purpose})
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


def declare(word):
    """Add the commands of this module."""
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
    word(
        extend,
        "reservation",
        hours={"type": hours, "required": True, "help": "by how many hours"},
    )
    word(release, "reservation")
