"""The Content-Security-Policy is strict, and our own files keep to it."""

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client

ROOT = Path(settings.BASE_DIR)
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
SCRIPTS = sorted((ROOT / "static" / "js").rglob("*.js"))


def directives(answer) -> dict[str, list[str]]:
    parts = answer.headers["Content-Security-Policy"].split(";")
    words = [part.split() for part in parts if part.strip()]
    return {name: values for name, *values in words}


@pytest.mark.once
@pytest.mark.django_db
@pytest.mark.parametrize("address", ["/login/", "/", "/me/", "/nowhere/", "/admin/"])
def test_every_answer_forbids_inline_and_eval(client: Client, omar, address: str):
    if address != "/login/":
        client.force_login(omar)
    found = directives(client.get(address))
    assert found["default-src"] == ["'self'"]
    assert found["script-src"] == ["'self'"]
    assert found["style-src"] == ["'self'"]
    assert found["object-src"] == ["'none'"]
    assert found["base-uri"] == ["'none'"]
    assert found["frame-ancestors"] == ["'none'"]
    assert "unsafe" not in str(found)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_template_has_inline_script_or_style(path: Path):
    text = path.read_text()
    assert not re.search(r"\sstyle\s*=", text)
    assert not re.search(r"\son[a-z]+\s*=\s*[\"']", text)
    assert "<style" not in text
    assert "javascript:" not in text
    for tag in re.findall(r"<script[^>]*>", text):
        assert "src=" in tag or 'type="application/json"' in tag, tag


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_module_evaluates_text_or_writes_html(path: Path):
    text = path.read_text()
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"):
        assert word not in text
    assert not re.search(r"\beval\(|new Function\(|setAttribute\(\"style\"", text)


def test_only_live_js_opens_sockets():
    openers = [p.name for p in SCRIPTS if "new WebSocket(" in p.read_text()]
    assert openers == ["live.js"]


def test_every_icon_that_is_named_is_in_the_sprite():
    sprite = (ROOT / "static" / "img" / "icons.svg").read_text()
    there = set(re.findall(r'<symbol id="([\w-]+)"', sprite))
    named = {
        name
        for path in TEMPLATES
        for name in re.findall(r'{% icon "([\w-]+)" %}', path.read_text())
    } | {
        name
        for path in SCRIPTS
        for name in re.findall(r'\bicon\("([\w-]+)"\)', path.read_text())
    }
    assert named - there == set()
