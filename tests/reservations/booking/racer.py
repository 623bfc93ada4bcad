"""One of the processes of the race: books, moves and cancels as fast as possible.

Run as ``python -m tests.reservations.booking.racer USER REQUESTS SEED``. It prints the
results of its requests as JSON. Anything but a refusal of the rules is an error. The
user "tick" ticks instead, fifty minutes further each time.
"""

import json
import os
import random
import sys
import time
import traceback
from collections import Counter
from datetime import UTC, datetime, timedelta

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


def main(username: str, requests: int, seed: int) -> None:
    """Race, then print."""
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
    print(json.dumps({"came": came, "errors": errors, "slowest": slowest}))


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


def ticks(count: int) -> None:
    """Tick through the day, then print."""
    moved: Counter[str] = Counter()
    for number in range(count):
        moved.update(tick.tick(NOW + timedelta(minutes=50 * number)))
    print(json.dumps({"came": moved, "errors": [], "slowest": 0}))


if __name__ == "__main__" and sys.argv[1] == "tick":
    ticks(int(sys.argv[2]))
elif __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
