"""Static files: the finder for npm packages, and the storage of production.

Files of node_modules are an explicit list, not whole folders, because packages contain
style sheets that name missing images, which makes ``collectstatic`` fail.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from django.conf import settings
from django.contrib.staticfiles.finders import BaseFinder
from django.core.checks import CheckMessage, Error
from django.core.files.storage import FileSystemStorage, Storage
from whitenoise.storage import CompressedManifestStaticFilesStorage


class MappedStorage(FileSystemStorage):
    """Reads files under other names than they have on disk."""

    def __init__(self, mapping: dict[str, str], root: Path) -> None:
        self.mapping = mapping
        super().__init__(location=root)

    def path(self, name: str) -> str:
        """Return the path of a public name."""
        return str(Path(self.location) / self.mapping[name])


class NpmFinder(BaseFinder):
    """Finds the files of ``settings.NPM_STATIC``."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.root = Path(settings.BASE_DIR) / "node_modules"
        self.mapping: dict[str, str] = settings.NPM_STATIC
        self.storage = MappedStorage(self.mapping, self.root)

    def check(self, **kwargs: object) -> list[CheckMessage]:
        """Report missing files, and how to install them."""
        missing = [t for t in self.mapping.values() if not (self.root / t).is_file()]
        if not missing:
            return []
        return [
            Error(
                "node_modules is incomplete: " + ", ".join(missing),
                hint="run: make setup",
                id="portal.E001",
            )
        ]

    def find(self, path: str, find_all: bool = False, **kwargs: object):  # type: ignore[override]
        """Return the file (or the list of files) behind a public name."""
        found = self.root / self.mapping[path] if path in self.mapping else None
        hit = str(found) if found and found.is_file() else None
        if find_all or kwargs.get("all"):
            return [hit] if hit else []
        return hit or []

    def list(
        self, ignore_patterns: Iterable[str] | None
    ) -> Iterator[tuple[str, Storage]]:
        """Yield every public name with its storage."""
        for name in self.mapping:
            yield name, self.storage


class PortalStaticFilesStorage(CompressedManifestStaticFilesStorage):
    """Compress files and name them after their content, with imports in our modules.

    Otherwise only a page's first module would carry its hash, and a browser could run
    one release's page with another release's modules for as long as it caches. Only our
    modules, because packages contain modules that import missing ones.
    """

    support_js_module_import_aggregation = True
    _js_module_import_aggregation_patterns = (
        "js/*.js",
        CompressedManifestStaticFilesStorage._js_module_import_aggregation_patterns[1],
    )
