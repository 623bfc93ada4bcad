"""Static files of the live site, from memory.

Every test has a browser with an empty cache, and a page has up to 70 scripts. Django's
handler starts threads for each of them. That takes a fifth of Python's time in a test
of a page. How the portal itself serves them is the subject of
``tests/gpuportal/test_static.py``.
"""

import mimetypes
from functools import cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.staticfiles import finders


class StaticDoor:
    """Answers what is below ``STATIC_URL``. All else goes to the application."""

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request: a file, or 404 where the finders know none."""
        path = scope["path"]
        if not path.startswith(settings.STATIC_URL):
            await self.application(scope, receive, send)
            return
        found = _read(path.removeprefix(settings.STATIC_URL))
        status, content_type, content = (
            (200, *found) if found else (404, "text/plain", b"")
        )
        headers = {
            "content-type": content_type,
            "content-length": str(len(content)),
            # As in production, where names have hashes: a browser asks once.
            "cache-control": "max-age=3600, immutable",
            "x-content-type-options": "nosniff",
        }
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
            }
        )
        body = b"" if scope["method"] == "HEAD" else content
        await send({"type": "http.response.body", "body": body})


@cache
def _read(name: str) -> tuple[str, bytes] | None:
    """Return a file's type and content. No test changes a file of the site."""
    where = finders.find(name)
    if not isinstance(where, str):
        return None
    guessed = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return guessed, Path(where).read_bytes()
