"""The catalogues: complete, with every placeholder, compiled, and with all sentences.

What the code marks is read here without the gettext tools: Python's own parser,
Django's for templates, and the calls of ``static/js/words.js`` by their shape.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import polib
import pytest
from django.conf import settings
from django.utils.translation.template import templatize

from gpuportal import catalogues

pytestmark = pytest.mark.pure
BASE = Path(settings.BASE_DIR)
APPS = ("gpuportal", "placement", "reservations", "telemetry")
OTHERS = [code for code, _name in settings.LANGUAGES if code != "en"]
CATALOGUES = [(code, domain) for code in OTHERS for domain in ("django", "djangojs")]
SINGLE = {"gettext", "gettext_lazy", "gettext_noop", "_", "lazy", "noop", "sentence"}
PLURAL = {"ngettext", "ngettext_lazy", "counted"}
CONTEXT = {"pgettext", "pgettext_lazy"}
OTHER_WORDS = {
    "de": {
        "reservieren": r"\b([Gg]e|[Vv]er)?[Bb]uch(e|en|st|t|te|ten|bar\w*|ung\w*)\b",
        "Meldung": r"\b(Mitteilung|Benachrichtigung)",
        "Administration": r"\b(Lab-(Verwaltung|Admins?)|Operator(in)?|Betreiber)\b",
        "Gutschein": r"\b[Vv]oucher",
        # gpuportal-node and make node are programs.
        "Knoten": r"(?<!-)(?<!make )\b[Nn]odes?\b(?![-.])",
        "Kontingent": r"\b[Qq]uot[ae]\b",
        "Warteliste": r"\b(Warteschlange|[Ww]aitlist)",
        "Kontobuch": r"\b([Ll]edger|Buch der Credits)\b",
        "Unix-Konto": r"\bUnix-(Benutzer|[Uu]ser|Account)",
        "Gruppe": r"\bAccounts?\b",
        "Warnung": r"\b(Alarme?|[Aa]lerts?)\b",
        "eintragen": r"\b[Ee]inschreib",
    }
}
"""Words that a language does not use, by the word that it uses instead."""
PLACEHOLDER = re.compile(
    r"%\(\w+\)[#0 +-]?[0-9.]*[a-zA-Z]|(?<!\{)\{[\w.]*(?:![a-z])?(?::[^{}]*)?\}(?!\})"
)
TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
PYTHON_TEXT = r"""u?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
TEMPLATE_CALL = re.compile(
    rf"n?p?gettext\({PYTHON_TEXT}(?:\s*,\s*{PYTHON_TEXT})*(?:\s*,\s*count)?\s*\)"
)
SCRIPT_TEXT = r'"((?:[^"\\]|\\.)*)"'
SCRIPT_CALL = re.compile(
    rf"(?<![\w.])(n?p?gettext)\(\s*{SCRIPT_TEXT}(?:\s*,\s*{SCRIPT_TEXT})?"
)


def catalogue(code: str, domain: str) -> polib.POFile:
    """Return a catalogue as people edit it."""
    return polib.pofile(
        str(BASE / catalogues.LOCALE / code / "LC_MESSAGES" / f"{domain}.po")
    )


def texts(entry: polib.POEntry) -> list[str]:
    """Return all translations of an entry: one, or one for each plural form."""
    return list(entry.msgstr_plural.values()) or [entry.msgstr]


@pytest.mark.parametrize(("code", "domain"), CATALOGUES)
def test_every_sentence_is_translated(code, domain):
    found = catalogue(code, domain)
    assert [entry.msgid for entry in found if not all(texts(entry))] == []
    assert [entry.msgid for entry in found if entry.fuzzy or entry.obsolete] == []


@pytest.mark.parametrize(("code", "domain"), CATALOGUES)
def test_translations_keep_every_placeholder_and_tag(code, domain):
    wrong = []
    for entry in catalogue(code, domain):
        sources = [entry.msgid, *([entry.msgid_plural] if entry.msgid_plural else [])]
        for pattern in (PLACEHOLDER, TAG):
            each = [set(pattern.findall(source)) for source in sources]
            # "one GPU" may leave out the number that "{n} GPUs" holds.
            least, most = set.intersection(*each), set.union(*each)
            for text in texts(entry):
                have = set(pattern.findall(text))
                if not least <= have <= most:
                    wrong.append((entry.msgid, text))
    assert wrong == []


@pytest.mark.parametrize(("code", "domain"), CATALOGUES)
def test_one_concept_has_one_word(code, domain):
    found = []
    for entry in catalogue(code, domain):
        for text in texts(entry):
            said = TAG.sub(" ", PLACEHOLDER.sub(" ", text))
            found += [
                (instead, text)
                for instead, wrong in OTHER_WORDS.get(code, {}).items()
                if re.search(wrong, said)
            ]
    assert found == []


def test_what_is_compiled_is_what_is_committed():
    for path, content in catalogues.compiled(BASE).items():
        assert path.read_bytes() == content, (
            f"run manage.py compilemessages: {path.relative_to(BASE)} is old"
        )


@pytest.mark.parametrize("code", OTHERS)
def test_every_marked_sentence_is_in_the_catalogue(code):
    known = {(entry.msgctxt, entry.msgid) for entry in catalogue(code, "django")}
    assert sorted(marked_in_python() - known, key=str) == []
    known = {(entry.msgctxt, entry.msgid) for entry in catalogue(code, "djangojs")}
    assert sorted(marked_in_scripts() - known, key=str) == []


def marked_in_python() -> set[tuple[str | None, str]]:
    """Return (context, text) of the marks in modules and templates."""
    found: set[tuple[str | None, str]] = set()
    for app in APPS:
        for path in sorted((BASE / app).rglob("*.py")):
            found |= set(_calls(path.read_text()))
    for path in sorted((BASE / "templates").rglob("*.html")):
        # Of a template the tool keeps the marked texts and blanks all else.
        code = templatize(path.read_text(), origin=str(path))
        for call in TEMPLATE_CALL.findall(code):
            found |= set(_calls(call))
    return found


def _calls(code: str) -> Iterator[tuple[str | None, str]]:
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "id", None) or getattr(node.func, "attr", "")
        said = [getattr(one, "value", None) for one in node.args]
        args = [one for one in said if isinstance(one, str)]
        if name in CONTEXT and len(args) >= 2:
            yield args[0], args[1]
        elif isinstance(said[0], str) and name in SINGLE | PLURAL:
            yield None, said[0]


def marked_in_scripts() -> set[tuple[str | None, str]]:
    """Return (context, text) of the marks in the scripts of the pages."""
    found: set[tuple[str | None, str]] = set()
    for path in sorted((BASE / "static/js").rglob("*.js")):
        if path.is_relative_to(BASE / catalogues.SCRIPTS) or path.name == "words.js":
            continue
        for name, *said in SCRIPT_CALL.findall(path.read_text()):
            first, second = (json.loads(f'"{text}"') for text in said)
            found.add((first, second) if name == "pgettext" else (None, first))
    return found
