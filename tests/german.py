"""What is still English on a page that should be German, by the catalogues."""

from functools import cache
from pathlib import Path

import polib
from django.conf import settings
from playwright.sync_api import Page

from gpuportal import catalogues

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
    """Return the sentences that German says in other words."""
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
    """Return each text of a page that has a German translation and is not in it."""
    texts = {" ".join(text.split()) for text in page.evaluate(TEXTS)}
    return sorted(texts & english())
