"""Static files: finders for npm packages, bundled scripts and the students' client, and
production's storage.

Files of node_modules are an explicit list, not whole folders, because packages contain
style sheets that name missing images, which makes ``collectstatic`` fail.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.staticfiles.finders import BaseFinder
from django.contrib.staticfiles.storage import staticfiles_storage
from django.core.checks import CheckMessage, Error
from django.core.files.storage import FileSystemStorage, Storage
from django.templatetags.static import static
from whitenoise.storage import CompressedManifestStaticFilesStorage

from gpuportal.pages import bundle, client_files

BUNDLED = "bundle/"
"""Where the files of a bundle are below ``STATIC_URL``. esbuild put the hash of their
content into their names."""

CLIENT = "client/"
"""Where the students' client is below ``STATIC_URL``."""


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
        return _all_or_first([hit] if hit else [], find_all or kwargs.get("all"))

    def list(
        self, ignore_patterns: Iterable[str] | None
    ) -> Iterator[tuple[str, Storage]]:
        """Yield every public name with its storage."""
        for name in self.mapping:
            yield name, self.storage


def _all_or_first(hits: list[str], every: object) -> list[str] | str:
    """Return what a finder's ``find`` returns. ``every``: whether all are wanted."""
    if every:
        return hits
    return hits[0] if hits else []


class BundleFinder(BaseFinder):
    """Finds the files of the scripts' bundles (``gpuportal/pages/bundle.py``)."""

    def check(self, **kwargs: object) -> list[CheckMessage]:
        """Report nothing, because pages load the sources where there is no bundle."""
        return []

    def find(self, path: str, find_all: bool = False, **kwargs: object):  # type: ignore[override]
        """Return the file (or the list of files) behind a public name.

        Older bundles count too. A page that is open in a browser needs its own, and a
        name never has another content.
        """
        name = path.removeprefix(BUNDLED)
        hits: list[str] = []
        if name != path and "/" not in name and name.endswith((".js", ".map")):
            hits = [str(p) for p in bundle.FOLDER.glob("*/*") if p.name == name]
        return _all_or_first(hits, find_all or kwargs.get("all"))

    def list(
        self, ignore_patterns: Iterable[str] | None
    ) -> Iterator[tuple[str, Storage]]:
        """Yield every file of the present sources' bundle with its storage."""
        if not bundle.current():
            return
        folder = bundle.folder()
        names = sorted(p.name for p in folder.iterdir() if p.name != bundle.INDEX)
        storage = MappedStorage({BUNDLED + name: name for name in names}, folder)
        for name in names:
            yield BUNDLED + name, storage


class ClientFinder(BaseFinder):
    """Finds the students' client (``gpuportal/pages/client_files.py``)."""

    def check(self, **kwargs: object) -> list[CheckMessage]:
        """Report nothing, because the files are made when they are needed."""
        return []

    def find(self, path: str, find_all: bool = False, **kwargs: object):  # type: ignore[override]
        """Return the file (or the list of files) behind a public name."""
        name = path.removeprefix(CLIENT)
        known = name != path and name in client_files.names()
        hits = [str(client_files.folder() / name)] if known else []
        return _all_or_first(hits, find_all or kwargs.get("all"))

    def list(
        self, ignore_patterns: Iterable[str] | None
    ) -> Iterator[tuple[str, Storage]]:
        """Yield every file with its storage."""
        names = {CLIENT + name: name for name in client_files.names()}
        storage = MappedStorage(names, client_files.folder())
        for name in names:
            yield name, storage


def script(name: str) -> str:
    """Return the address of a page's script (``js/board/board.js``).

    In production it is the bundled one if the last ``collectstatic`` found a bundle of
    its sources. In a checkout it is the bundled one as long as no source has changed.
    """
    collected = getattr(staticfiles_storage, "hashed_files", None)
    if collected is None:
        made = bundle.current().get(name)
        return static(BUNDLED + made if made else name)
    return static(BUNDLED + name if BUNDLED + name in collected else name)


class PortalStaticFilesStorage(CompressedManifestStaticFilesStorage):
    """Compress files and name them after their content, with imports in our modules.

    Otherwise only a page's first module would carry its hash, and a browser could run
    one release's page with another release's modules for as long as it caches. Only our
    modules, because packages contain modules that import missing ones.
    """

    support_js_module_import_aggregation = True
    # A name depends on the names that a module imports, and so on. How many passes that
    # takes depends on the order in which the file system lists the files.
    max_post_process_passes = 30
    _js_module_import_aggregation_patterns = (
        "js/*.js",
        CompressedManifestStaticFilesStorage._js_module_import_aggregation_patterns[1],
    )

    def post_process(
        self, paths: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Iterator[tuple[str, str | None, Any]]:
        """Compress the bundle, too, and list the pages' scripts in the manifest.

        Its names have hashes, and its modules import each other by them.
        """
        bundled = [name for name in paths if name.startswith(BUNDLED)]
        others = {name: paths[name] for name in paths if not name.startswith(BUNDLED)}
        yield from super().post_process(others, *args, **kwargs)
        if not bundled or kwargs.get("dry_run"):
            return
        for name, compressed in self.compress_files(bundled):
            yield name, compressed, True
        self.hashed_files.update(
            {BUNDLED + name: BUNDLED + made for name, made in bundle.current().items()}
        )
        self.save_manifest()
