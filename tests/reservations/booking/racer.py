"""The processes of the race. Each books, moves and cancels as fast as possible.

Run as ``python -m tests.reservations.booking.racer REQUESTS USER...``. There is one
process for each USER. All are forks of the first one, which has imported the portal but
has no connection yet, and they start together. The first one prints a JSON list with
the results of each. Anything but a refusal of the rules is an error. The user "tick"
ticks instead, fifty minutes further each time.
"""

import json
import multiprocessing
import os
import random
import sys
import time
import traceback
from collections import Counter
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuportal.settings")

import django

django.setup()

from reservations import tick  # noqa: E402
from reservations.booking.booking_change import change  # noqa: E402
from reservations.booking.release import cancel  # noqa: E402
from reservations.booking.service import book  # noqa: E402
from reservations.models import User  # noqa: E402
from reservations.rules.errors import Refusal  # noqa: E402
from telemetry.models import Gpu  # noqa: E402

HOT_HOURS = 6
AHEAD_HOURS = (1, 15)
"""Inside the freeze, where flex stays, and beyond it, where it may be displaced."""
NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)


def main(requests: int, names: list[str]) -> None:
    """Start all racers, then print what they report."""
    forks = multiprocessing.get_context("fork")
    together = forks.Barrier(len(names))
    started = []
    for number, name in enumerate(names):
        here, there = forks.Pipe(duplex=False)
        racer = forks.Process(
            target=_run, args=(there, together, name, requests, number)
        )
        racer.start()
        there.close()
        started.append((racer, here))
    reports = [here.recv() for _, here in started]
    for racer, _ in started:
        racer.join()
        if racer.exitcode:
            raise SystemExit(f"a racer ended with {racer.exitcode}")
    print(json.dumps(reports))


def _run(
    out: Connection, together: Barrier, name: str, requests: int, seed: int
) -> None:
    """Wait until all are there, race, and report."""
    together.wait()
    out.send(ticks(requests) if name == "tick" else race(name, requests, seed))


def race(username: str, requests: int, seed: int) -> dict[str, object]:
    """Race; return what came of the requests, the errors, and the slowest request."""
    chance = random.Random(seed)
    user = User.objects.get(username=username)
    gpus = list(Gpu.objects.order_by("pk").values_list("pk", flat=True))
    came: Counter[str] = Counter()
    errors: list[str] = []
    slowest = 0.0
    mine: list = []
    for _ in range(requests):
        begun = time.monotonic()
        try:
            came[_act(user, gpus, mine, chance)] += 1
        except Refusal as refusal:
            came[refusal.code] += 1
        except Exception:
            errors.append(traceback.format_exc())
        slowest = max(slowest, time.monotonic() - begun)
    return {"came": came, "errors": errors, "slowest": slowest}


def _act(user: User, gpus: list[int], mine: list, chance: random.Random) -> str:
    """Book the hot hours. Sometimes move or cancel an own booking."""
    ahead = chance.choice(AHEAD_HOURS) + chance.randrange(HOT_HOURS)
    start = NOW + timedelta(hours=ahead)
    end = start + timedelta(hours=chance.choice((1, 1, 2, 3)))
    wanted = chance.sample(gpus, chance.choice((1, 1, 2)))
    dice = chance.random()
    if mine and dice < 0.25:
        row = mine.pop(chance.randrange(len(mine)))
        cancel(reservation_id=row.pk, user=user, now=NOW)
        return "cancelled"
    if mine and dice < 0.4:
        number = chance.randrange(len(mine))
        mine[number] = change(
            reservation_id=mine[number].pk,
            user=user,
            start=start,
            end=end,
            gpu_ids=wanted,
            version=mine[number].version,
            now=NOW,
        )
        return "changed"
    mine.append(
        book(user=user, membership=None, gpu_ids=wanted, start=start, end=end, now=NOW)
    )
    return "booked"


def ticks(count: int) -> dict[str, object]:
    """Tick through the day; return what moved."""
    moved: Counter[str] = Counter()
    for number in range(count):
        moved.update(tick.tick(NOW + timedelta(minutes=50 * number)))
    return {"came": moved, "errors": [], "slowest": 0}


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
