"""``manage.py compilemessages``: write what the portal reads from what people edit.

Of ``django.po`` comes ``django.mo``, for Python; of ``djangojs.po`` a script, for the
browser. Both are committed, so that no site needs the tools.
"""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from gpuportal import catalogues


class Command(BaseCommand):
    """Compile both catalogues of every language; replaces Django's command."""

    help = "Compile the translations."

    def handle(self, *args: Any, **options: Any) -> None:
        """Write each file that would change."""
        for path, content in catalogues.compiled(Path(settings.BASE_DIR)).items():
            if path.exists() and path.read_bytes() == content:
                continue
            path.write_bytes(content)
            self.stdout.write(str(path.relative_to(settings.BASE_DIR)))
