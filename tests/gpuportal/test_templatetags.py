"""Icons, states, times and figures in templates."""

from datetime import UTC, datetime

import pytest
from django.template import Context, Template
from django.test import override_settings
from django.utils import timezone

from gpuportal.templatetags.portal import icon, state, when

AT = datetime(2026, 3, 2, 14, 5, tzinfo=UTC)


def render(text: str, **context: object) -> str:
    return Template("{% load portal %}" + text).render(Context(context))


def test_an_icon_is_hidden_from_screen_readers_and_comes_from_the_sprite():
    assert 'aria-hidden="true"' in icon("free")
    assert 'href="/static/img/icons.svg#free"' in icon("free")


def test_a_state_is_a_word_and_an_icon_and_a_class():
    html = state("MIG")
    assert 'class="state state-mig"' in html
    assert html.endswith("MIG</span>")
    assert "#mig" in html


@override_settings(TIME_ZONE="Europe/Berlin")
def test_a_time_stands_in_the_sites_zone_and_carries_utc():
    with timezone.override("Europe/Berlin"):
        html = when(AT, "clock")
    assert 'datetime="2026-03-02T14:05:00Z"' in html
    assert 'data-time="clock"' in html
    assert ">Mon 2 Mar 2026, 15:05</time>" in html


def test_no_time_is_a_dash():
    assert when(None) == "–"


def test_text_from_data_is_escaped():
    assert "<b>" not in state("<b>")


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("{{ n|gib }}", "1.5 GiB"),
        ("{{ n|bytes }}", "1.5 GiB"),
        ("{{ 5400|gpu_hours }}", "1.5 GPU-h"),
        ("{{ 3900|duration }}", "1 h 5 min"),
        ("{{ nothing|gib }}", "–"),
    ],
)
def test_figures_carry_their_units(template: str, shown: str):
    assert render(template, n=3 * 2**29, nothing=None) == shown
