"""Icons, times and figures in templates: ``{% load portal %}``."""

from datetime import UTC, datetime

from django import template
from django.conf import settings
from django.template.context import Context
from django.templatetags.static import static
from django.urls import reverse
from django.utils import html, timezone
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from gpuportal.alerts.text import title
from gpuportal.pages import client_files
from gpuportal.pages.glossary import TERMS
from gpuportal.pages.state_words import state_word
from gpuportal.static_files import CLIENT
from gpuportal.static_files import script as script_address
from placement.jobs.job_broadcast import ProgressAnswer, progress_facts
from placement.models import Job
from placement.planner.values.humanize import error_words, seconds
from reservations.rules.figures import credits_text, hours_text
from reservations.store.drains import drains, gpu_drain_reasons
from telemetry.models import Gpu, Node
from telemetry.protocol import units
from telemetry.web.recognition import shown
from telemetry.web.translation import translated_values

register = template.Library()

register.filter("state_word", state_word)
register.filter("gib", units.format_gib)
register.filter("bytes", units.format_bytes)
register.filter("gpu_hours", units.format_gpu_hours)
register.filter("credits", credits_text)
register.filter("credits_figure", hours_text)
register.filter("little", units.little)
register.filter("duration", units.format_duration)
register.filter("percent", units.format_pct)
register.filter("share", units.format_ratio)
register.filter("kwh", units.format_kwh)
# For texts stored in English, for filters that take strings, and for unescaped output
# such as mails. Elsewhere {{ }} translates a Sentence.
register.filter("translated", shown)


@register.filter(is_safe=True)
def json_script(value: object, element_id: str | None = None) -> SafeString:
    """Return data for a script, as Django's filter, in the reader's language."""
    return html.json_script(translated_values(value), element_id)


@register.filter
def drain_reason(node: Node) -> str:
    """Return why a node takes no new bookings; "" if no reason is known."""
    found = drains([node.pk]).get(node.pk) if node.draining else None
    return found.reason if found else ""


@register.filter
def gpu_drain_reason(gpu: Gpu) -> str:
    """Return why a GPU takes no new bookings: its own reason, otherwise its node's."""
    own = gpu_drain_reasons([gpu.pk]) if gpu.draining else {}
    return own.get(gpu.pk) or drain_reason(gpu.node)


@register.filter
def rule_title(rule: str) -> str:
    """Return the title of an alert's rule, as on the board."""
    return title(rule)


@register.filter
def step_time(spent_seconds: float | None) -> str:
    """Return how long a step takes; a dash if unknown."""
    return seconds(spent_seconds) if spent_seconds else units.UNKNOWN


@register.filter
def signed_pct(error_pct: float | None) -> str:
    """Return an error in percent with its sign: +2 %, −3 %."""
    return units.UNKNOWN if error_pct is None else error_words(error_pct)


@register.filter
def error_pct(ratio: float | None) -> str:
    """Return actual over predicted minus 1, in percent with its sign."""
    return units.UNKNOWN if ratio is None else error_words(100 * (ratio - 1))


@register.filter
def progress(job: Job) -> ProgressAnswer | None:
    """Return a live Job's progress from its log; None if it ended or reports none."""
    return None if job.ended_at else progress_facts(job)


@register.simple_tag
def icon(name: str) -> SafeString:
    """Return one symbol of the site's sprite (``static/img/icons.svg``)."""
    return format_html(
        '<svg class="icon" aria-hidden="true"><use href="{}#{}"></use></svg>',
        static("img/icons.svg"),
        name,
    )


@register.simple_tag
def script(name: str) -> SafeString:
    """Return the element of a page's script, bundled where possible."""
    return format_html('<script type="module" src="{}"></script>', script_address(name))


@register.simple_tag(takes_context=True)
def client_wheel(context: Context) -> str:
    """Return the address of the client for pipx; "" where it could not be made.

    pip reads the name of a wheel, so it is the name without a hash.
    """
    name = client_files.wheel_name()
    if not name:
        return ""
    address = f"{settings.STATIC_URL}{CLIENT}{name}"
    return str(context["request"].build_absolute_uri(address))


@register.simple_tag
def state(word: str) -> SafeString:
    """Return a state as word, icon and colour (``.state`` of components.css)."""
    key = word.lower()
    return format_html(
        '<span class="state state-{}">{}{}</span>', key, icon(key), state_word(word)
    )


@register.simple_tag
def when(at: datetime | None, form: str = "relative") -> SafeString | str:
    """Return a ``<time>`` that ``static/js/time.js`` keeps up to date.

    ``form`` is relative, clock or absolute. Without JavaScript it shows the absolute
    time in the site's zone.
    """
    if at is None:
        return units.UNKNOWN
    shown = timezone.localtime(at)
    return format_html(
        '<time datetime="{}" data-time="{}">{}</time>',
        at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        form,
        date_format(shown, "WHEN_FORMAT"),
    )


@register.simple_tag(takes_context=True)
def term(context: Context, key: str, text: str = "") -> SafeString | str:
    """Return a word of the glossary as a button that explains it.

    The explanation itself is printed once a page, by ``{% term_cards %}`` of
    ``base.html``. In a fragment ``static/js/terms.js`` fetches it on the first press,
    and it adds the site's prices to the words that have some.

    Args:
        context: of the template. Without a request the bare word is returned.
        key: a key of ``glossary.TERMS``. An unknown one raises KeyError.
        text: shown instead of the word, for example "flex, now safe".
    """
    found = TERMS[key]
    cards = _cards(context)
    if cards is None:
        return text or found.name
    if key not in cards:
        cards[key] = (found.name, found.explained, f"{reverse('help')}#{key}")
    return format_html(
        '<button type="button" class="term" popovertarget="term-{}" data-term="{}">'
        "{}</button>",
        key,
        key,
        text or found.name,
    )


@register.simple_tag(takes_context=True)
def price(context: Context, gpu_seconds: int, sum_text: str, key: str) -> str:
    """Return a cost in credits as a button that explains it.

    Args:
        context: of the template. Without a request the bare cost is returned.
        gpu_seconds: the cost in weighted GPU-seconds.
        sum_text: from ``reservations.rules.figures.price_sum``.
        key: unique on the page, for example the Reservation's number.
    """
    shown = credits_text(gpu_seconds)
    cards = _cards(context)
    if cards is None:
        return shown
    name = f"price-{key}"
    cards[name] = (gettext("price"), sum_text, f"{reverse('help')}#credits")
    return format_html(
        '<button type="button" class="term" popovertarget="term-{}">{}</button>',
        name,
        shown,
    )


@register.simple_tag(takes_context=True)
def term_cards(context: Context) -> SafeString | str:
    """Return the explanations of all words that this page has marked."""
    return format_html_join(
        "",
        '<div popover id="term-{0}" class="term-card" data-card="{0}">'
        "<p><strong>{1}</strong> {2}</p>"
        '<a href="{3}">{4}</a></div>',
        (
            (key, *card, gettext("More in Help"))
            for key, card in (_cards(context) or {}).items()
        ),
    )


def _cards(context: Context) -> dict[str, tuple[str, str, str]] | None:
    """Return the page's cards by key: (word, text, address); None without a page."""
    request = getattr(context, "request", None) or context.get("request")
    if request is None:
        return None
    if not hasattr(request, "term_cards"):
        request.term_cards = {}
    return request.term_cards
