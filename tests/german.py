"""Texts that are still English on a German page, by the catalogues."""

from collections.abc import Iterable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import polib
from django.conf import settings
from playwright.sync_api import Page

from gpuportal import catalogues

SAID = ("aria-label", "title", "placeholder", "data-ask", "data-ask-text")
"""Attributes that people read or hear, of elements of a page's source."""
UNREAD = ("script", "style", "code", "textarea", "template")
TEXTS = """() => {
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const parent = walk.currentNode.parentElement;
    if (!parent.closest("script, style, noscript, code, [lang]:not(html)"))
      found.push(walk.currentNode.data);
  }
  for (const node of document.querySelectorAll("body *"))
    for (const name of ["aria-label", "title", "placeholder"])
      if (node.hasAttribute(name)) found.push(node.getAttribute(name));
  return [document.title, ...found];
}"""


@cache
def english() -> frozenset[str]:
    """Return the sentences whose German translation differs."""
    folder = Path(settings.BASE_DIR) / catalogues.LOCALE / "de" / "LC_MESSAGES"
    entries = [
        entry
        for domain in ("django", "djangojs")
        for entry in polib.pofile(str(folder / f"{domain}.po"))
        if not entry.msgctxt
    ]
    german = {entry.msgstr for entry in entries}
    return frozenset(entry.msgid.replace("%%", "%") for entry in entries) - german


def left_in_english(page: Page) -> list[str]:
    """Return each text of a page that has a German translation and is not
    translated.
    """
    return _english_of(page.evaluate(TEXTS))


def source_in_english(source: str) -> list[str]:
    """Return the same for a page's source, for a client without scripts."""
    return _english_of(_Texts(source).found)


def _english_of(texts: Iterable[str]) -> list[str]:
    return sorted({" ".join(text.split()) for text in texts} & english())


class _Texts(HTMLParser):
    """The texts of a page's source."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.unread = 0
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.unread += tag in UNREAD
        self.found += [value or "" for name, value in attrs if name in SAID]

    def handle_endtag(self, tag: str) -> None:
        self.unread -= tag in UNREAD

    def handle_data(self, data: str) -> None:
        if not self.unread:
            self.found.append(data)
