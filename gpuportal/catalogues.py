"""The compiled translations of each .po file.

Reads .po files with polib. Only the commands for translators use it.
"""

import json
import re
from pathlib import Path

import polib

LOCALE = Path("gpuportal/locale")
SCRIPTS = Path("static/js/words")
READ = ("Language", "Content-Type", "Plural-Forms")
"""Headers of a catalogue that Python's gettext reads."""
PLURAL_FORMS = re.compile(r"nplurals=(\d+);\s*plural=([n0-9\s()?:!=<>&|%]+);?\s*")
"""gettext's formula. It has C's arithmetic of ``n``, which JavaScript reads the same
way.
"""


def compiled(base: Path) -> dict[Path, bytes]:
    """Return the content of every compiled file under a checkout, by its path.

    Raises:
        KeyError: a catalogue lacks one of the headers ``READ``.
        ValueError: the plural formula is invalid.
        OSError: a .po file is not valid.
    """
    found: dict[Path, bytes] = {}
    for folder in sorted((base / LOCALE).glob("*/LC_MESSAGES")):
        words = polib.pofile(folder / "django.po")
        # The tools' dates differ in every run.
        words.metadata = {key: words.metadata[key] for key in READ}
        found[folder / "django.mo"] = words.to_binary()
        script = base / SCRIPTS / f"{folder.parent.name}.js"
        found[script] = _script(polib.pofile(folder / "djangojs.po")).encode()
    return found


def _script(catalogue: polib.POFile) -> str:
    """Return a catalogue as the script that ``static/js/words.js`` reads."""
    formula = PLURAL_FORMS.fullmatch(catalogue.metadata.get("Plural-Forms", ""))
    if formula is None:
        raise ValueError(f"{catalogue.fpath}: no formula in Plural-Forms")
    words: dict[str, str | list[str]] = {}
    for entry in catalogue.translated_entries():
        key = f"{entry.msgctxt}\4{entry.msgid}" if entry.msgctxt else entry.msgid
        forms = entry.msgstr_plural
        words[key] = [forms[i] for i in sorted(forms)] if forms else entry.msgstr
    told = json.dumps(words, ensure_ascii=False, indent=0, sort_keys=True)
    return (
        "// Made by manage.py compilemessages: do not edit.\n"
        f"globalThis.catalogue = {{\nplural: (n) => Number({formula[2].strip()}),\n"
        f"words: {told},\n}};\n"
    )
