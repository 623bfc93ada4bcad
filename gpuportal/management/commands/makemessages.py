"""``manage.py makemessages``: collect the portal's sentences for translation.

It needs the GNU gettext tools and is for developers only. ``docs/translation.md`` has
the steps.
"""

from typing import Any

from django.conf import settings
from django.core.management.commands import makemessages

NOT_OURS = (
    "node_modules",
    ".bundle",
    "var",
    "dist",
    ".venv",
    "tests",
    "bench",
    "static/js/words",
)


class Command(makemessages.Command):
    """Django's command with the portal's keywords, folders and languages."""

    # Guesses of gettext are not translations: a changed sentence is translated again.
    msgmerge_options = [*makemessages.Command.msgmerge_options, "--no-fuzzy-matching"]
    xgettext_options = [
        *makemessages.Command.xgettext_options,
        "--keyword=noop",
        "--keyword=lazy",
        "--keyword=sentence",
        "--keyword=counted:1,2",
    ]

    def handle(self, *args: Any, **options: Any) -> None:
        """Collect both catalogues of every language but English."""
        options["ignore_patterns"] = [*options["ignore_patterns"], *NOT_OURS]
        options["add_location"] = options["add_location"] or "file"
        options["no_obsolete"] = True
        if not (options["locale"] or options["all"]):
            options["locale"] = [code for code, _ in settings.LANGUAGES if code != "en"]
        for domain in ("django", "djangojs"):
            super().handle(*args, **{**options, "domain": domain})
