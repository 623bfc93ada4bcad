"""Commands for reservations: find, book, change, give back."""

from datetime import datetime, timedelta

from gpuportal_client import program
from gpuportal_client.instants import UTC, clock, day, hours, iso, local, span, when
from gpuportal_client.listing import (
    JSON_OPTION,
    facts,
    needs_number,
    show,
    take_number,
)
from gpuportal_client.portal_api import Refused
from gpuportal_client.saved_login import portal

WISH = {
    "gpus": {"type": int, "default": 1, "help": "how many GPUs (default: 1)"},
    "hours": {"type": hours, "required": True, "help": "length in hours"},
    "memory": {"type": float, "default": 0, "help": "least GiB of each GPU"},
    "gpu_class": {"help": "name of a pool, as on the board"},
}
PURPOSE = {"dest": "purpose", "help": "what the booking is for"}


def slots_of(args, to):
    """Return the first slots that fit what is asked for."""
    if args.at and args.at < datetime.now(UTC) - timedelta(minutes=1):
        raise Refused("that time is over; leave --at out to begin now", 2)
    answer = to.ask(
        "GET",
        "/slots",
        count=args.gpus,
        hours=args.hours,
        min_memory_gib=args.memory,
        gpu_class=args.gpu_class,
        earliest=iso(args.at) if args.at else None,
        membership=payer_of(args, to),
    )
    if answer["slots"]:
        return answer["slots"]
    if refusal := answer["refusal"]:
        raise Refused(f"no free slot: {refusal['detail']}")
    raise Refused(
        "so many GPUs are never free together for so long; try fewer GPUs or hours, "
        "or join the waitlist: gp wait"
    )


def find(args):
    """List the first slots that fit."""
    found = slots_of(args, to := portal())
    show(
        args,
        {"slots": found},
        ((span(one), one.get("kind"), to.cards(one["gpu_ids"])) for one in found),
    )


def _wanted(args, to):
    """Return what to book: the GPUs that were named, or the first slot that fits."""
    if args.on:
        start = args.at or datetime.now(UTC)
        end = start + timedelta(hours=args.hours)
        if not args.at:
            # A booking may start now, but it ends on a full step of the calendar.
            step = rows_of(to, 1, before=0)["grid_seconds"]
            end += timedelta(seconds=-int(end.timestamp()) % step)
            end = end.replace(microsecond=0)
        return {"gpu_ids": to.gpus(args.on), "start": iso(start), "end": iso(end)}
    slot = slots_of(args, to)[0]
    if args.at and abs(when(slot["start"]) - args.at) > timedelta(minutes=1):
        raise Refused(f"not free at that time; first free: {span(slot)}")
    return {name: slot[name] for name in ("gpu_ids", "start", "end")}


def book(args):
    """Book the first slot that fits, or certain GPUs, once or repeatedly."""
    to = portal()
    if not args.repeat and (args.times or args.until):
        raise Refused("--times and --until are for --repeat", 2)
    if args.repeat and args.times is None and args.until is None:
        raise Refused("--repeat needs --times or --until", 2)
    wanted = _wanted(args, to) | {"purpose": args.purpose}
    if (payer := payer_of(args, to)) is not None:
        wanted["membership"] = payer
    if args.repeat:
        until = args.until.isoformat() if args.until else None
        wanted |= {"repeat": args.repeat, "times": args.times, "until": until}
        if args.check:
            _show_days(to.ask("POST", "/series/preview", wanted))
        else:
            made = to.create("/series", wanted)
            print(f"series {made['id']}: {made['words']}")
            _show_days(made)
        return
    if args.check:
        found = to.ask("POST", "/reservations/preview", wanted)
        where = f"{span(wanted)}, {to.cards(wanted['gpu_ids'])}"
        if not found["ok"]:
            raise Refused(f"{where}: {found['refusal']['detail']}")
        print(f"{found['kind']}, {found['cost_credits']:.2f} credits: {where}")
        return
    made = to.create("/reservations", wanted)
    where = f"{made['kind']}, {to.cards(made['gpu_ids'])}"
    print(f"reservation {made['id']}: {span(made)}, {where}")


def _show_days(made):
    for one in made["days"]:
        number = one.get("reservation") or ""
        print(f"{one['day']}  {one['state']}  {number} {one.get('why') or ''}".rstrip())


def rows_of(to, days, before=2):
    """Return the calendar's answer from some days before now on."""
    now = datetime.now(UTC)
    start, end = now - timedelta(days=before), now + timedelta(days=days)
    return to.ask("GET", "/calendar", start=iso(start), end=iso(end))


def own(to):
    """Return your reservations of the last two days and the next two weeks."""
    return [row for row in rows_of(to, 15)["reservations"] if row["mine"]]


def mine(args):
    """List your reservations."""
    to = portal()
    found = own(to)
    show(
        args,
        {"reservations": found},
        (
            (
                f"{row['id']:>6}",
                row["state"],
                row["kind"],
                span(row),
                to.cards(row["gpu_ids"]),
                row["purpose"],
            )
            for row in found
        ),
    )


def calendar(args):
    """List the reservations of everybody in the next days."""
    to = portal()
    if not 0 < args.days <= 31:
        raise Refused("--days must be 1 to 31", 2)
    answer = rows_of(to, args.days, before=0)
    rows = sorted(answer["reservations"], key=lambda row: row["start"])
    show(
        args,
        answer,
        (
            (
                span(row),
                to.cards(row["gpu_ids"]),
                row["kind"],
                "you" if row["mine"] else row["user"] or row["account"],
                row["purpose"],
            )
            for row in rows
        ),
    )


def of_own(to, number):
    """Return one of your reservations."""
    row = next((row for row in own(to) if row["id"] == number), None)
    if row is None:
        raise Refused(f"you have no reservation {number}")
    return row


def _change(to, row, body):
    address, number = f"/reservations/{row['id']}", row["id"]
    try:
        made = to.ask("PATCH", address, {**body, "version": row["version"]})
    except Refused as refusal:
        if longest := refusal.problem.get("longest_end"):
            end = when(longest)
            words = f"{program()} change {number} --end {end:%Y-%m-%dT%H:%M}"
            raise Refused(
                f"{refusal}\n  until {clock(longest)} works: {words}"
            ) from None
        raise
    print(f"reservation {made['id']}: {span(made)}, {to.cards(made['gpu_ids'])}")


def extend(args):
    """Make a reservation longer."""
    if args.hours <= 0:
        raise Refused("--hours must be more than 0", 2)
    to = portal()
    row = of_own(to, args.reservation)
    end = when(row["end"]) + timedelta(hours=args.hours)
    _change(to, row, {"end": iso(end)})


def change(args):
    """Change the start, the end, the GPUs or the purpose of a reservation."""
    to = portal()
    wanted = {
        "start": args.start and iso(args.start),
        "end": args.end and iso(args.end),
        "gpu_ids": to.gpus(args.on) or None,
        "purpose": args.purpose,
    }
    body = {name: value for name, value in wanted.items() if value is not None}
    if not body:
        raise Refused("give --start, --end, --on or --for", 2)
    _change(to, of_own(to, args.reservation), body)


def _act(args, act, body=None):
    """Do one thing with a reservation, and return the portal's answer."""
    return portal().ask("POST", f"/reservations/{args.reservation}/{act}", body or {})


def release(args):
    """Give a reservation back: cancel it, or release it if it runs."""
    to = portal()
    act = "release" if of_own(to, args.reservation)["state"] == "active" else "cancel"
    print(to.ask("POST", f"/reservations/{args.reservation}/{act}", {})["state"])


def cancel(args):
    """Cancel a reservation before it starts."""
    print(_act(args, "cancel")["state"])


def undo(args):
    """Undo a cancellation. --booking undoes a new booking."""
    made = _act(args, "undo-booking" if args.booking else "undo")
    print(f"reservation {args.reservation}: {made.get('state') or 'undone'}")


def checkin(args):
    """Check in: say that you use the reservation."""
    _act(args, "check-in")
    print(f"checked in to reservation {args.reservation}")


def keep(args):
    """Keep an idle reservation that would be released."""
    _act(args, "keep", {"reason": args.reason})
    print(f"reservation {args.reservation} is kept")


def stay(args):
    """Stay on past the end while nobody claims the GPUs. --off ends that."""
    _act(args, "overstay", {"wanted": not args.off, "reason": ""})
    print(f"reservation {args.reservation} {'ends' if args.off else 'stays on'}")


def adopt(args):
    """List the GPUs that you use without a booking. With a node, book its GPUs."""
    to = portal()
    if args.node is None:
        answer = to.ask("GET", "/unbooked-use")
        rows = ((use["node"], *use["gpus"]) for use in answer["uses"])
        show(args, answer, rows)
        if not answer["uses"] and not args.json:
            print("You use no GPU without a booking.")
        return
    body = {"node": args.node}
    if args.hours is not None:
        body["hours"] = args.hours
    if (payer := payer_of(args, to)) is not None:
        body["membership"] = payer
    made = to.create("/unbooked-use/book", body)
    end = f"{when(made['end']):%a %d %b %H:%M}"
    print(f"reservation {made['id']} on {made['node']} until {end}, flex")


def payer_of(args, to):
    """Return the number of the membership that --group names; None: not given."""
    group = getattr(args, "group", None)
    if group is None:
        return None
    known = to.ask("GET", "/standing")["memberships"]
    numbers = {one["account"]: one["id"] for one in known}
    if group not in numbers:
        yours = ", ".join(numbers) or "none"
        raise Refused(f"{group!r} is no group of yours (yours: {yours})", 2)
    return numbers[group]


def give_back(args):
    """Give some GPUs, or the last hours, of a reservation back. The rest continues."""
    to = portal()
    if not args.on and not args.hours:
        raise Refused("give --on or --hours", 2)
    row = of_own(to, args.reservation)
    part = {"gpu_ids": to.gpus(args.on), "hours": args.hours}
    address = f"/reservations/{row['id']}/give-back"
    if args.check:
        found = to.ask("POST", f"{address}/preview", part)
        print(f"returns {found['returned_credits']:.2f} credits")
        return
    left = to.ask("POST", address, part | {"version": row["version"]})
    print(f"reservation {left['id']} ends {when(left['end']):%a %d %b %H:%M}")


def usage(args):
    """Show how a reservation, or --job, used its GPUs."""
    if (args.number is None) == (args.job is None):
        raise Refused("give the number of a reservation or --job", 2)
    kind = "reservations" if args.job is None else "jobs"
    number = args.number if args.job is None else args.job
    try:
        answer = portal().ask("GET", f"/{kind}/{number}/usage")
    except Refused as refusal:
        if refusal.code == "not-found":
            raise Refused(f"there is no {kind[:-1]} {number}") from None
        raise
    facts(args, answer, answer["usage"])


def series(args):
    """List your series. End one, skip a day, or cancel it from a day on."""
    to = portal()
    if args.what == "list":
        answer = to.whole("/series", "series")
        rows = []
        for row in answer["series"]:
            rows.append((row["id"], row["state"], row["words"], row["purpose"]))
            rows += [("", one["state"], one["day"], one["why"]) for one in row["days"]]
        show(args, answer, rows)
        return
    number = needs_number(args)
    if (args.what != "end") == (args.day is None):
        raise Refused("--day is for skip and cancel-from, and they need it", 2)
    body = {"day": args.day.isoformat()} if args.day else {}
    to.ask("POST", f"/series/{number}/{args.what}", body)
    print(f"series {number}: {args.what} {args.day or ''}".rstrip())


def declare(word):
    """Add the commands of this module."""
    at = {"type": local, "help": "earliest start (book: exact start)"}
    certain = {
        "action": "append",
        "default": [],
        "metavar": "NODE:INDEX",
        "help": "this GPU. Give it again for several",
    }
    check = {"action": "store_true", "help": "only say what it would mean"}
    switch_off = {"action": "store_true", "help": "end it as booked"}
    payer = {"help": "name of the group that pays"}
    word(find, **WISH, at=at, group=payer, json=JSON_OPTION)
    booked = word(
        book,
        **WISH,
        at=at,
        on=certain,
        group=payer,
        check=check,
        repeat={"choices": ("daily", "weekdays", "weekly"), "help": "make a series"},
        times={"type": int, "help": "with --repeat: how many days"},
        until={"type": day, "help": "with --repeat: the last day, 2026-12-24"},
    )
    booked.add_argument("--for", default="", **PURPOSE)
    word(mine, json=JSON_OPTION)
    days = {"type": int, "default": 7, "help": "how many days (default: 7)"}
    word(calendar, days=days, json=JSON_OPTION)
    changed = word(
        change,
        "reservation",
        start={"type": local, "help": "new start"},
        end={"type": local, "help": "new end"},
        on=certain,
    )
    changed.add_argument("--for", **PURPOSE)
    longer = {"type": hours, "required": True, "help": "by how many hours"}
    word(extend, "reservation", hours=longer)
    word(release, "reservation")
    word(cancel, "reservation")
    booking = {"action": "store_true", "help": "undo the new booking itself"}
    word(undo, "reservation", booking=booking)
    word(checkin, "reservation")
    word(keep, "reservation", reason={"default": "", "help": "why, in one line"})
    word(stay, "reservation", off=switch_off)
    long = {"type": int, "help": "for how many hours (default: 2)"}
    runs = word(adopt, hours=long, group=payer, json=JSON_OPTION)
    runs.add_argument("node", nargs="?", help="the node on which your processes run")
    last = {"type": hours, "default": 0, "help": "the last hours of the booking"}
    word(give_back, "reservation", on=certain, hours=last, check=check)
    used = word(usage, job={"type": int, "help": "of this job"}, json=JSON_OPTION)
    used.add_argument("number", nargs="?", type=int, help="number of the reservation")
    of_day = {"type": day, "help": "the day, 2026-12-24"}
    take_number(word(series, day=of_day), ("end", "skip", "cancel-from"), "series")
