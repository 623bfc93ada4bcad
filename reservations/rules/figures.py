"""Figures and instants as parts of sentences."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, tzinfo

from telemetry.protocol.sentences import counted, joined, sentence
from telemetry.protocol.units import gpu_hours, little

_WEEKDAYS = (
    sentence("Mon"),
    sentence("Tue"),
    sentence("Wed"),
    sentence("Thu"),
    sentence("Fri"),
    sentence("Sat"),
    sentence("Sun"),
)
_MONTHS = (
    sentence("Jan"),
    sentence("Feb"),
    sentence("Mar"),
    sentence("Apr"),
    sentence("May"),
    sentence("Jun"),
    sentence("Jul"),
    sentence("Aug"),
    sentence("Sep"),
    sentence("Oct"),
    sentence("Nov"),
    sentence("Dec"),
)


def hours_text(gpu_seconds: int) -> str:
    """Return hours or credits for a sentence, with one decimal at most.

    >>> hours_text(165_600), hours_text(5_400), hours_text(60)
    ('46', '1.5', '0.02')
    """
    hours = gpu_hours(gpu_seconds)
    return little(hours) or f"{hours:.1f}".removesuffix(".0")


def steps_text(seconds: int) -> str:
    """Return the steps of a grid for a sentence, after "full".

    >>> steps_text(300), steps_text(3600), steps_text(7200), steps_text(60)
    ('5 minutes', 'hours', '2 hours', 'minutes')
    """
    number, hours = seconds // 60, seconds // 3600
    if seconds % 3600 == 0:
        return sentence("hours") if hours == 1 else sentence("{n} hours", n=hours)
    return sentence("minutes") if number == 1 else sentence("{n} minutes", n=number)


def time_text(at: datetime, zone: tzinfo) -> str:
    """Return an instant for a sentence, in the site's zone.

    >>> from datetime import UTC
    >>> time_text(datetime(2026, 3, 3, 9, tzinfo=UTC), UTC)
    'Tue 3 Mar 09:00'
    """
    local = at.astimezone(zone)
    return sentence(
        "{weekday} {day} {month} {time}",
        weekday=_WEEKDAYS[local.weekday()],
        day=local.day,
        month=_MONTHS[local.month - 1],
        time=f"{local:%H:%M}",
    )


def day_text(day: date) -> str:
    """Return a day for a sentence.

    >>> day_text(date(2026, 3, 3))
    'Tue 3 Mar'
    """
    return sentence(
        "{weekday} {day} {month}",
        weekday=_WEEKDAYS[day.weekday()],
        day=day.day,
        month=_MONTHS[day.month - 1],
    )


def date_text(day: date) -> str:
    """Return a day that may be in another year, for a sentence.

    >>> date_text(date(2026, 3, 3))
    '3 Mar 2026'
    """
    return sentence(
        "{day} {month} {year}",
        day=day.day,
        month=_MONTHS[day.month - 1],
        year=day.year,
    )


def moment_text(at: datetime, zone: tzinfo) -> str:
    """Return an instant that may be in another year, for a sentence.

    >>> from datetime import UTC
    >>> moment_text(datetime(2026, 3, 3, 9, tzinfo=UTC), UTC)
    '3 Mar 2026 09:00'
    """
    local = at.astimezone(zone)
    return joined([date_text(local.date()), f"{local:%H:%M}"])


def credits_text(gpu_seconds: int) -> str:
    """Return a cost or quota in credits, as it is shown.

    Args:
        gpu_seconds: weighted GPU-seconds. 3,600 of them are one credit.

    >>> credits_text(288_000), credits_text(3_600), credits_text(60), credits_text(0)
    ('80 credits', '1 credit', '0.02 credits', '0 credits')
    """
    figure = hours_text(gpu_seconds)
    one = figure in {"1", "-1"}
    return counted("{n} credit", "{n} credits", 1 if one else 2, n=figure)


def price_sum(parts: Sequence[tuple[str, int, int]], cost_gpu_seconds: int) -> str:
    """Return the calculation of a cost as a sum that people can check.

    Args:
        parts: class, unweighted GPU-seconds and weight of each class held.
        cost_gpu_seconds: the whole cost in weighted GPU-seconds. Its excess over the
            parts is the surcharge of peak hours.

    >>> price_sum([("A100", 28_800, 10)], 288_000)
    '8 GPU-hours × 10 (A100) = 80 credits'
    >>> price_sum([("A100", 3_600, 10), ("A40", 7_200, 3)], 64_800)
    '1 GPU-hour × 10 (A100) + 2 GPU-hours × 3 (A40) + 2 for peak hours = 18 credits'
    """
    terms: list[str] = []
    for gpu_class, seconds, weight in parts:
        hours = hours_text(seconds)
        terms.append(
            counted(
                "{n} GPU-hour × {weight} ({gpu_class})",
                "{n} GPU-hours × {weight} ({gpu_class})",
                1 if hours == "1" else 2,
                n=hours,
                weight=weight,
                gpu_class=gpu_class,
            )
        )
    surcharge = cost_gpu_seconds - sum(each[1] * each[2] for each in parts)
    if surcharge > 0:
        terms.append(sentence("{hours} for peak hours", hours=hours_text(surcharge)))
    total = joined(terms, by=" + ")
    if surcharge < 0:
        total = sentence(
            "{terms} − {hours} returned", terms=total, hours=hours_text(-surcharge)
        )
    return sentence(
        "{terms} = {cost}", terms=total, cost=credits_text(cost_gpu_seconds)
    )


def gpus_title(gpus: Sequence[tuple[str, str]]) -> str:
    """Return how many GPUs of which class are held where, as a title.

    Args:
        gpus: (class, node) of each GPU.

    >>> gpus_title([("A100", "node-a"), ("A100", "node-a"), ("A40", "node-b")])
    '2 × A100 on node-a, 1 × A40 on node-b'
    >>> gpus_title([])
    'No GPUs left'
    """
    counts: dict[tuple[str, str], int] = {}
    for one in gpus:
        counts[one] = counts.get(one, 0) + 1
    parts = [
        sentence("{n} × {name} on {node}", n=n, name=name, node=node)
        for (name, node), n in sorted(counts.items())
    ]
    return joined(parts, by=", ") if parts else sentence("No GPUs left")


def span_text(start: datetime, end: datetime, zone: tzinfo) -> str:
    """Return a time span for a title. The second day is shown only if it differs.

    >>> from datetime import UTC
    >>> span_text(datetime(2026, 3, 3, 9, tzinfo=UTC),
    ...           datetime(2026, 3, 3, 13, tzinfo=UTC), UTC)
    'Tue 3 Mar 09:00 to 13:00'
    """
    begin, over = start.astimezone(zone), end.astimezone(zone)
    until = f"{over:%H:%M}" if begin.date() == over.date() else time_text(over, zone)
    return sentence("{begin} to {until}", begin=time_text(begin, zone), until=until)
