"""Citations of the documentation resolve: each page, each anchor, each path."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.house.walk import ROOT, files, short

HERE = "tests/house/test_citations.py"
TEXTS = (".py", ".js", ".html", ".css", ".toml", ".sh", ".service", ".md")
# "docs/design/fair-booking.md#rule-1, #rule-2 and #rule-4" cites three anchors.
CITATION = re.compile(
    r"(?<![\w./:<-])((?:[\w.-]+/)*[\w.-]+\.md)(?![\w/])"
    r"((?:#[\w-]+)?(?:(?:,|\s+to|\s+and)\s+#[\w-]+)*)"
)
# Pages of other projects: the Open Inference Protocol's and torch's.
OTHERS = {"extension_binary_data.md", "torch/docs/source/amp.md"}
# A file's bare name in quotes is code: ROOT / "docs" / "operations.md".
QUOTED = re.compile(r'"[\w-]+\.md"')
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]*)\)")
ANCHOR = re.compile(r'<a id="([^"]+)">')
HOUSE_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*)`")
APPS = r"(?:gpuportal|placement|reservations|telemetry|static|tests|docs|bench)"
SOURCE = re.compile(rf"(?<![\w./-])({APPS}/[\w./-]+\.(?:py|js|md|toml))\b")
# An example of a file that a translator would add.
EXAMPLES = {"gpuportal/formats/fr/formats.py"}
# A rule or an invariant without its page cannot be looked up.
KEYLESS = re.compile(r"\bI(?:[1-9]|1[0-4])\b|\b[Rr]ules? [1-9]\b|\bissue \d{1,2}\b")
# Types of tensors in files of weights are named so, too.
TENSOR_TYPES = re.compile(r'"I\d+"')


def _texts(*suffixes: str) -> list[Path]:
    """Return the project's texts. The changelog describes the past, so it is left
    out.
    """
    found = files(*suffixes)
    return [path for path in found if short(path) not in (HERE, "CHANGELOG.md")]


def _slug(heading: str) -> str:
    """Return the anchor that Git's forges make of a heading.

    >>> _slug("Where root touches it, `once`")
    'where-root-touches-it-once'
    """
    text = re.sub(r"<[^>]+>|[`*]", "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@cache
def _anchors(page: Path) -> frozenset[str]:
    text = page.read_text()
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    headings = re.findall(r"^#+ (.+)$", prose, re.M)
    return frozenset(ANCHOR.findall(text)) | {_slug(one) for one in headings}


def _broken(text: str) -> Iterator[str]:
    """Yield each citation in a text whose page or anchor does not exist."""
    for found in CITATION.finditer(QUOTED.sub("", text)):
        if found[1] in OTHERS:
            continue
        name, anchors = found[1], re.findall(r"#([\w-]+)", found[2])
        page = ROOT / name
        if not page.is_file():
            yield name
        else:
            yield from (f"{name}#{one}" for one in anchors if one not in _anchors(page))


def _broken_links(text: str, page: Path) -> Iterator[str]:
    """Yield each Markdown link that leads nowhere inside the repository."""
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        other = page.parent / name if name else page
        if not other.exists() or (anchor and anchor not in _anchors(other)):
            yield target


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("see docs/design/fair-booking.md#i8", []),
        ("docs/design/fair-booking.md#i1, #rule-2 and #i99", ["#i99"]),
        ("a rule (POLICY.md rule 6)", ["POLICY.md"]),
        ("docs/design/fair-booking.md#no-such-rule", ["#no-such-rule"]),
    ],
)
def test_a_citation_that_resolves_is_told_from_one_that_does_not(text, broken) -> None:
    found = list(_broken(text))
    assert len(found) == len(broken)
    assert all(one.endswith(end) for one, end in zip(found, broken, strict=True))


def test_each_page_and_anchor_that_is_cited_exists() -> None:
    found = []
    for path in _texts(*TEXTS):
        text = path.read_text()
        # Links of a page are relative to it, and have a test of their own.
        prose = LINK.sub("", text) if path.suffix == ".md" else text
        found += [f"{short(path)}: {one}" for one in _broken(prose)]
    assert found == []


def test_each_link_between_pages_leads_somewhere() -> None:
    found = []
    for path in _texts(".md"):
        broken = _broken_links(path.read_text(), path)
        found += [f"{short(path)}: {one}" for one in broken]
    assert found == []


def test_a_rule_is_cited_with_its_page() -> None:
    found = []
    for path in _texts(".py", ".js", ".html"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if KEYLESS.search(TENSOR_TYPES.sub("", line)):
                found.append(f"{short(path)}:{number}: {line.strip()}")
    assert found == []


def test_each_rule_and_invariant_has_an_anchor() -> None:
    anchors = _anchors(ROOT / "docs/design/fair-booking.md")
    wanted = {f"rule-{n}" for n in range(1, 9)} | {f"i{n}" for n in range(1, 15)}
    assert wanted <= anchors


@pytest.mark.parametrize(
    "page",
    [
        "docs/architecture.md",
        *(
            f"docs/design/{n}.md"
            for n in ("fair-booking", "interface", "placement", "security", "telemetry")
        ),
        "docs/glossary.md",
    ],
)
def test_each_path_that_a_page_names_exists(page) -> None:
    named = HOUSE_PATH.findall((ROOT / page).read_text())
    apps = ("gpuportal", "placement", "reservations", "telemetry")
    tops = (*apps, "static", "templates", "tests", "docs", "deploy", "bench")
    ours = [one for one in named if one.split("/")[0] in tops]
    assert [one for one in ours if not (ROOT / one).exists()] == []


def test_each_source_file_that_a_text_names_exists() -> None:
    found = []
    for path in _texts(*TEXTS):
        named = set(SOURCE.findall(path.read_text())) - EXAMPLES
        missing = sorted(one for one in named if not (ROOT / one).exists())
        found += [f"{short(path)}: {one}" for one in missing]
    assert found == []


def test_the_house_that_is_drawn_has_each_capability() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)/` \|[^|]*\|([^|]*)\|$", text, re.M)
    assert [app for app, _ in rows] == [
        *("gpuportal", "placement", "reservations", "telemetry")
    ]
    named = [
        f"{app}/{one}" for app, cell in rows for one in re.findall(r"(\w+)/", cell)
    ]
    assert [one for one in named if not (ROOT / one).is_dir()] == []
