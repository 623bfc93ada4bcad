"""The site of these pages, which Sphinx makes: ``make docs``."""

import re
import tomllib
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

_top = Path(__file__).resolve().parent.parent
with (_top / "pyproject.toml").open("rb") as _file:
    release = version = tomllib.load(_file)["project"]["version"]

project = "GPU Portal"
project_copyright = "The GPU Portal developers"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
html_theme = "furo"
html_title = f"{project} {version}"
html_favicon = "../static/img/favicon.svg"
html_extra_path = ["openapi.json"]
html_show_sphinx = False
html_copy_source = False
# Anchors of headings, as Git's forges make them.
myst_heading_anchors = 4
# Blocks of commands have names for the tests, not languages.
suppress_warnings = ["misc.highlighting_failure"]
nitpicky = True

_ANCHOR = re.compile(r'<a id="([^"]+)">')
_OWN_LINK = re.compile(r"\]\(#")


def _name_own_page(_app: Sphinx, name: str, source: list[str]) -> None:
    """Add the page to links to anchors of the same page, as other links have it."""
    page = name.rpartition("/")[2]
    source[0] = _OWN_LINK.sub(f"]({page}.md#", source[0])


def _note_anchors(app: Sphinx, document: nodes.document) -> None:
    """Register the anchors that pages have as HTML with Sphinx, so links find them."""
    name = app.env.docname
    labels = app.env.domains.standard_domain.anonlabels
    for raw in document.findall(nodes.raw):
        for anchor in _ANCHOR.findall(raw.astext()):
            labels[f"{name}#{anchor}"] = (name, anchor)


def setup(app: Sphinx) -> None:
    """Connect both to Sphinx."""
    app.connect("source-read", _name_own_page)
    app.connect("doctree-read", _note_anchors)
