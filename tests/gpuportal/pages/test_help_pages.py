"""The help page, the glossary, and words that explain themselves."""

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.template import Context, RequestContext, Template
from django.test import RequestFactory

from gpuportal.pages.glossary import TERMS
from reservations.rules.figures import credits_text, price_sum
from tests.factories import make_pool

pytestmark = pytest.mark.django_db
TEMPLATES = Path(settings.BASE_DIR) / "templates"


def test_the_help_page_explains_every_word_and_shows_the_prices(client, alice):
    make_pool("A100 80GB", weight=10)
    make_pool("RTX 3090 24GB", weight=3)
    client.force_login(alice)
    page = client.get("/help/").content.decode()
    for key, term in TERMS.items():
        assert f'id="{key}"' in page
        assert term.word in page
    assert "Here 1 GPU-hour costs: A100 80GB 10, RTX 3090 24GB 3." in page
    assert "8 GPU-hours × 10 (A100 80GB) = 80 credits" in page


def test_scripts_read_the_words_and_the_prices(client, alice):
    make_pool("A100 80GB", weight=10)
    client.force_login(alice)
    found = client.get("/help/terms.json").json()
    assert found["credits_per_gpu_hour"] == {"A100 80GB": 10}
    assert found["terms"]["flex"]["url"] == "/help/#flex"
    assert found["terms"].keys() == TERMS.keys()


def test_a_marked_word_is_a_button_and_its_card_is_printed_once(alice):
    request = RequestFactory().get("/")
    page = Template(
        '{% load portal %}{% term "flex" %} {% term "flex" "flex, now safe" %}'
        "{% price 288000 sum 7 %}|{% term_cards %}"
    ).render(
        RequestContext(request, {"sum": "8 GPU-hours × 10 (A100) = 80 credits"}, []),
    )
    buttons, cards = page.split("|")
    assert buttons.count('popovertarget="term-flex"') == 2
    assert "flex, now safe</button>" in buttons
    assert ">80 credits</button>" in buttons
    assert cards.count('id="term-flex"') == 1
    assert "8 GPU-hours × 10 (A100) = 80 credits" in cards


def test_without_a_page_a_marked_word_is_plain_text():
    text = Template('{% load portal %}{% term "no-show" %}, {% price 3600 "" 1 %}')
    assert text.render(Context()) == "no-show, 1 credit"


def test_every_word_marked_in_a_template_or_script_is_in_the_glossary():
    marked = set()
    for path in TEMPLATES.rglob("*.html"):
        marked |= set(re.findall(r'{% term "([^"]+)"', path.read_text()))
    for path in (Path(settings.BASE_DIR) / "static" / "js").rglob("*.js"):
        marked |= set(re.findall(r'(?<![\w.])term\("([^"]+)"', path.read_text()))
    assert marked <= TERMS.keys(), marked - TERMS.keys()


@pytest.mark.parametrize(
    ("gpu_seconds", "text"),
    [(288_000, "80 credits"), (3_600, "1 credit"), (5_400, "1.5 credits")],
)
def test_costs_are_shown_in_credits(gpu_seconds, text):
    assert credits_text(gpu_seconds) == text


def test_a_price_is_a_sum_of_classes_and_peak_hours():
    assert price_sum([("A100", 28_800, 10)], 288_000) == (
        "8 GPU-hours × 10 (A100) = 80 credits"
    )
    assert price_sum([("A100", 7_200, 10)], 36_000) == (
        "2 GPU-hours × 10 (A100) − 10 returned = 10 credits"
    )
