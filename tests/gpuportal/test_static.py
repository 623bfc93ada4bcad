"""The files that production serves: every file has its hash, and names others by
theirs.
"""

import json
import re
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.staticfiles import finders
from django.core.management import call_command
from django.test import Client

from gpuportal.pages import bundle
from gpuportal.static_files import PortalStaticFilesStorage, script

HASHED = re.compile(r"\.[0-9a-f]{12}\.\w+$")
IMPORT = re.compile(r"""(?:from|import)\s*\(?\s*["'](\.[^"']+)["']""")


@pytest.fixture(scope="module")
def collected(tmp_path_factory, bundled_scripts: None) -> Path:
    """A folder as ``collectstatic`` fills it for production."""
    root = tmp_path_factory.mktemp("static")
    backend = "gpuportal.static_files.PortalStaticFilesStorage"
    storages = {**settings.STORAGES, "staticfiles": {"BACKEND": backend}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "STORAGES", storages)
        patch.setattr(settings, "STATIC_ROOT", root)
        # The storages are made once per process; a fresh handler reads ours.
        from django.contrib.staticfiles import storage as static_storage
        from django.core.files.storage import StorageHandler

        handler = StorageHandler()
        patch.setattr("django.core.files.storage.storages", handler)
        patch.setattr(
            "django.contrib.staticfiles.management.commands.collectstatic."
            "staticfiles_storage",
            handler["staticfiles"],
        )
        patch.setattr(static_storage, "staticfiles_storage", handler["staticfiles"])
        call_command("collectstatic", interactive=False, verbosity=0)
    return root


def manifest(root: Path) -> dict[str, str]:
    return json.loads((root / "staticfiles.json").read_text())["paths"]


def test_every_module_imports_modules_of_its_own_release(collected: Path):
    names = manifest(collected)
    modules = [names[name] for name in names if name.startswith("js/")]
    assert len(modules) > 20
    imported = 0
    for name in modules:
        assert HASHED.search(name)
        path = collected / name
        for target in IMPORT.findall(path.read_text()):
            imported += 1
            assert HASHED.search(target), f"{name} imports {target}"
            assert (path.parent / target).resolve().is_file(), f"{name}: {target}"
    assert imported > 40


def test_bundled_scripts_are_collected_with_what_they_import(
    collected: Path, monkeypatch
):
    names = manifest(collected)
    entry = names["bundle/js/board/board.js"]
    assert entry == f"bundle/{bundle.current()['js/board/board.js']}"
    todo, seen = [collected / entry], set()
    while todo:
        path = todo.pop()
        seen.add(path.name)
        assert path.with_name(f"{path.name}.gz").is_file()
        found = [path.parent / target for target in IMPORT.findall(path.read_text())]
        todo += [target for target in found if target.name not in seen]
    assert 2 < len(seen) < 20
    storage = PortalStaticFilesStorage(location=collected, base_url="/static/")
    for module in ("gpuportal.static_files", "django.contrib.staticfiles.storage"):
        monkeypatch.setattr(f"{module}.staticfiles_storage", storage)
    assert script("js/board/board.js") == f"/static/{entry}"


def test_collecting_without_a_bundle_serves_the_sources(tmp_path, monkeypatch):
    """The manifest of the last release named a bundle, which is still in the folder."""
    storage = PortalStaticFilesStorage(location=tmp_path, base_url="/static/")
    storage.hashed_files = {"bundle/js/board/board.js": "bundle/board-OLDOLD12.js"}
    source = tmp_path / "js" / "board" / "board.js"
    source.parent.mkdir(parents=True)
    source.write_text("document.title = 1;\n")
    list(storage.post_process({"js/board/board.js": (storage, "js/board/board.js")}))
    for module in ("gpuportal.static_files", "django.contrib.staticfiles.storage"):
        monkeypatch.setattr(f"{module}.staticfiles_storage", storage)
    assert HASHED.search(script("js/board/board.js"))
    assert script("js/board/board.js").startswith("/static/js/board/board.")


def test_style_sheets_name_fonts_and_pictures_by_their_hash(collected: Path):
    names = manifest(collected)
    tokens = (collected / names["css/tokens.css"]).read_text()
    assert re.search(r"inter-latin\.[0-9a-f]{12}\.woff2", tokens)
    for name in names:
        if name.startswith("css/"):
            path = collected / names[name]
            for target in re.findall(r"url\([\"']?([^\"')]+)", path.read_text()):
                if not target.startswith("data:"):
                    assert (path.parent / target).resolve().is_file(), (name, target)


def test_a_file_that_changed_under_a_running_portal_is_served_whole(tmp_path, settings):
    script = tmp_path / "changes.js"
    script.write_text("export const before = 1;\n")
    settings.STATICFILES_DIRS = [tmp_path]
    finders.get_finder.cache_clear()
    try:
        client = Client()
        for text in ("export const before = 1;\n", "export const afterwards = 12;\n"):
            script.write_text(text)
            answer = client.get("/static/changes.js")
            assert b"".join(answer.streaming_content).decode() == text
            assert int(answer["Content-Length"]) == len(text)
    finally:
        finders.get_finder.cache_clear()


def test_the_sprite_is_there_under_the_name_that_modules_use(collected: Path):
    assert (collected / "img" / "icons.svg").is_file()


def test_names_of_modules_converge_in_whatever_order_they_are_listed():
    """Each pass may get one more module of a chain right, and the last one looks."""
    folder = Path(settings.BASE_DIR) / "static"
    imports = {
        path: {
            (path.parent / target).resolve()
            for target in IMPORT.findall(path.read_text())
        }
        for path in (folder / "js").rglob("*.js")
    }
    known: dict[Path, int] = {}

    def length(path: Path, importers: tuple[Path, ...] = ()) -> int:
        assert path not in importers, f"modules import each other: {importers}"
        if path not in known:
            inner = [length(one, (*importers, path)) for one in imports.get(path, ())]
            known[path] = 1 + max(inner, default=0)
        return known[path]

    longest = max(map(length, imports))
    assert longest + 1 < PortalStaticFilesStorage.max_post_process_passes
