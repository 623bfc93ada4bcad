"""Requirements of the strict Content-Security-Policy on pages and scripts.

See docs/design/interface.md#content-security.
"""

import re

import pytest

from tests.house.walk import files, short

HTML_SINKS = re.compile(
    r"\.(?:inner|outer)HTML\b|insertAdjacentHTML|document\.write|createContextualFragment"
    r"|srcdoc|\beval\(|new Function\b|setAttribute\(\s*[\"']style"
)
INLINE = {
    "a style element": re.compile(r"<style\b", re.I),
    "a style attribute": re.compile(r"\sstyle\s*=", re.I),
    "an inline script": re.compile(r"<script(?![^>]*\bsrc=)[^>]*>", re.I),
    "an event attribute": re.compile(r"<[^>]*\son[a-z]+\s*=", re.I),
    "a javascript: address": re.compile(r"javascript:", re.I),
    "an htmx attribute, which no script reads": re.compile(r"\shx-", re.I),
    "unescaped data": re.compile(r"\|\s*safe\b|autoescape\s+off"),
}


def test_scripts_write_text_and_never_html():
    found = [
        f"{short(path)}:{number}"
        for path in files(".js", under=("static/js",))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if HTML_SINKS.search(line)
    ]
    assert found == []


def test_only_live_js_opens_sockets():
    openers = [
        short(path)
        for path in files(".js", under=("static/js",))
        if re.search(r"new\s+(WebSocket|EventSource)\b", path.read_text())
    ]
    assert openers == ["static/js/live.js"]


@pytest.mark.parametrize("what", INLINE)
def test_no_template_has(what):
    pages = list(files(".html", under=("templates",)))
    assert pages
    found = [
        f"{short(path)}:{number}: {line.strip()[:80]}"
        for path in pages
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if INLINE[what].search(line)
    ]
    assert found == []
