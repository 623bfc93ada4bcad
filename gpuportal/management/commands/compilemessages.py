"""``manage.py compilemessages``: compile the translations.

``django.po`` becomes ``django.mo`` for Python. ``djangojs.po`` becomes a script for the
browser. Both are committed, so that no site needs the tools.
"""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from gpuportal import catalogues


class Command(BaseCommand):
    """Compile both catalogues of every language. Replaces Django's command."""

    help = "Compile the translations."

    def handle(self, *args: Any, **options: Any) -> None:
        """Write each file that would change."""
        for path, content in catalogues.compiled(Path(settings.BASE_DIR)).items():
            if path.exists() and path.read_bytes() == content:
                continue
            path.write_bytes(content)
            self.stdout.write(str(path.relative_to(settings.BASE_DIR)))
