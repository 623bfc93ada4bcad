"""Icons, times and figures in templates: ``{% load portal %}``."""

from datetime import UTC, datetime

from django import template
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from placement.domain.words import error_words, seconds
from placement.live import progress_facts
from placement.models import Job
from telemetry.domain import units

register = template.Library()

register.filter("gib", units.format_gib)
register.filter("bytes", units.format_bytes)
register.filter("gpu_hours", units.format_gpu_hours)
register.filter("little", units.little)
register.filter("duration", units.format_duration)
register.filter("percent", units.format_pct)
register.filter("share", units.format_ratio)
register.filter("kwh", units.format_kwh)


@register.filter
def step_time(spent_seconds: float | None) -> str:
    """How long a step takes; a dash where nobody knows."""
    return seconds(spent_seconds) if spent_seconds else units.UNKNOWN


@register.filter
def signed_pct(error_pct: float | None) -> str:
    """An error in percent with its sign: +2 %, −3 %."""
    return units.UNKNOWN if error_pct is None else error_words(error_pct)


@register.filter
def error_pct(ratio: float | None) -> str:
    """How far actual over predicted is from 1, in percent with its sign."""
    return units.UNKNOWN if ratio is None else error_words(100 * (ratio - 1))


@register.filter
def progress(job: Job) -> dict[str, object] | None:
    """How far a live Job is, as its log tells; None: it has ended or does not say."""
    return None if job.ended_at else progress_facts(job)


@register.simple_tag
def icon(name: str) -> SafeString:
    """One symbol of the site's sprite (``static/img/icons.svg``)."""
    return format_html(
        '<svg class="icon" aria-hidden="true"><use href="{}#{}"></use></svg>',
        static("img/icons.svg"),
        name,
    )


@register.simple_tag
def state(word: str) -> SafeString:
    """A state as word, icon and colour (``.state`` of components.css)."""
    key = word.lower()
    return format_html('<span class="state state-{}">{}{}</span>', key, icon(key), word)


@register.simple_tag
def when(at: datetime | None, form: str = "relative") -> SafeString | str:
    """A ``<time>`` that ``static/js/time.js`` keeps up to date.

    ``form`` is relative, clock or absolute; without JavaScript the absolute time
    in the site's zone stands there.
    """
    if at is None:
        return units.UNKNOWN
    shown = timezone.localtime(at)
    return format_html(
        '<time datetime="{}" data-time="{}">{}</time>',
        at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        form,
        f"{shown:%a} {shown.day} {shown:%b %Y, %H:%M}",
    )
