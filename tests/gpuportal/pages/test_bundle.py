"""The bundled scripts of pages: complete, and never those of older sources."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders
from django.template import Context, Template
from django.test import Client

from gpuportal.pages import bundle
from tests.house.walk import ROOT, files, short

TAG = re.compile(r"\{% script '([^']+)' %\}")
PAGE = "js/board/board.js"


def rendered() -> str:
    return Template(f"{{% load portal %}}{{% script '{PAGE}' %}}").render(Context())


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch) -> Iterator[Path]:
    """A checkout with a page's script, which imports another, and what all run."""
    sources = tmp_path / "static" / "js"
    (sources / "board").mkdir(parents=True)
    (sources / "portal.js").write_text('import "./dom.js";\n')
    (sources / "dom.js").write_text("export const el = () => document.body;\n")
    (sources / "board" / "board.js").write_text(
        'import { el } from "../dom.js";\nel().title = "first";\n'
    )
    (tmp_path / "node_modules").symlink_to(ROOT / "node_modules")
    monkeypatch.setattr(bundle, "ROOT", tmp_path)
    monkeypatch.setattr(bundle, "SOURCES", sources)
    monkeypatch.setattr(bundle, "FOLDER", tmp_path / ".bundle")
    # Every call looks.
    monkeypatch.setattr(bundle, "LOOK_SECONDS", 1e-9)
    bundle._made_at.cache_clear()
    yield tmp_path
    # The other tests of this process use the checkout's own scripts.
    bundle._made_at.cache_clear()


def test_every_script_of_a_page_is_bundled(bundled_scripts: None):
    index = bundle.current()
    wanted = {"js/portal.js"}
    for path in files(".html", under=("templates",)):
        text = path.read_text()
        # A page that names a source would load all that it imports one by one.
        assert 'type="module"' not in text, short(path)
        wanted |= set(TAG.findall(text))
    assert len(wanted) > 20
    # A module that another one imports is not the script of a page.
    assert wanted - set(index) == set()
    for made in index.values():
        assert (bundle.folder() / made).is_file()


def test_bundled_scripts_find_the_sprite(bundled_scripts: None):
    """Their folder lies beside ``img``, as the folder of the sources does."""
    using = [
        path
        for path in bundle.folder().glob("*.js")
        if "import.meta.url" in path.read_text()
    ]
    assert using
    for path in using:
        assert 'URL("../img/icons.svg",import.meta.url)' in path.read_text()


def test_a_script_that_changed_is_never_served_as_it_was(checkout: Path):
    script = checkout / "static" / PAGE
    assert f"/static/{PAGE}" in rendered()
    assert bundle.make()
    before = bundle.current()[PAGE]
    assert f"/static/bundle/{before}" in rendered()
    assert not bundle.make()

    script.write_text(script.read_text().replace("first", "other"))
    assert f"/static/{PAGE}" in rendered()
    assert bundle.make()
    after = bundle.current()[PAGE]
    assert after != before
    assert "other" in (bundle.folder() / after).read_text()

    # A page that is open has the older names.
    old = finders.find(f"bundle/{before}")
    assert isinstance(old, str)
    assert "first" in Path(old).read_text()
    (checkout / "static/js/dom.js").write_text("export const el = () => window;\n")
    assert bundle.make()
    assert finders.find(f"bundle/{before}") is None
    assert len([path for path in bundle.FOLDER.iterdir() if path.is_dir()]) == 2


def test_the_sources_are_looked_at_once_a_second(checkout: Path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(bundle.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(bundle, "LOOK_SECONDS", 1.0)
    assert bundle.make()
    before = bundle.current()
    (checkout / "static/js/dom.js").write_text("export const el = () => window;\n")
    now[0] += 0.9
    assert bundle.current() == before
    now[0] += 0.1
    assert bundle.current() == {}
    assert bundle.make()
    assert PAGE in bundle.current(), "a process sees at once what it made"


def test_without_esbuild_pages_load_the_sources(checkout: Path):
    (checkout / "node_modules").unlink()
    with pytest.raises(bundle.NotMade, match="no esbuild for this machine"):
        bundle.make()
    assert f"/static/{PAGE}" in rendered()


def test_a_script_with_a_mistake_is_named(checkout: Path):
    (checkout / "static" / PAGE).write_text("const = 1;\n")
    with pytest.raises(bundle.NotMade, match="Expected identifier"):
        bundle.make()
    assert bundle.current() == {}


def test_browsers_keep_bundled_scripts_and_ask_for_sources(bundled_scripts: None):
    client = Client()
    made = bundle.current()[PAGE]
    kept = client.get(f"/static/bundle/{made}")
    assert kept.status_code == 200
    assert "immutable" in kept["Cache-Control"]
    assert "max-age=315360000" in kept["Cache-Control"]
    assert "immutable" not in client.get(f"/static/{PAGE}")["Cache-Control"]
    assert client.get("/static/bundle/index.json").status_code == 404
    assert client.get("/static/bundle/..%2Findex.json").status_code == 404


def test_an_error_s_place_in_the_source_is_found(bundled_scripts: None):
    made = bundle.folder() / f"{bundle.current()[PAGE]}.map"
    assert "../../static/js/board/board.js" in json.loads(made.read_text())["sources"]
