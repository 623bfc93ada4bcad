"""deploy/release in a scratch repository that has the files of a release."""

import os
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gpuportal.backup.backup_version import portal_version
from gpuportal.node_join.code_archive import DEPLOY, FILES, PACKAGES
from tests.archives import unpack
from tests.house.walk import ROOT

pytestmark = pytest.mark.pure
VERSION = portal_version()
IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (
        ("NAME", "t"),
        ("EMAIL", "t@example.org"),
        ("DATE", "2026-01-01T00:00:00Z"),
    )
}


def run(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), "PYTHON": sys.executable}
        | IDENTITY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A repository with one commit."""
    top = tmp_path_factory.mktemp("checkout") / "top"
    for name in (*PACKAGES, DEPLOY):
        left_out = shutil.ignore_patterns("__pycache__", "locale", "*.pyc")
        shutil.copytree(ROOT / name, top / name, ignore=left_out)
    for name in FILES:
        shutil.copy(ROOT / name, top / name)
    shutil.copytree(ROOT / "docs", top / "docs")
    (top / "static" / "img").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "static/img/favicon.svg", top / "static/img/favicon.svg")
    (top / "CHANGELOG.md").write_text(
        f"# Changelog\n\n## Unreleased\n\n## {VERSION} (2026-01-01)\n\nThe notes.\n"
        "\n## 0.0.1\n\nOld.\n"
    )
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        done = run("git", *words, cwd=top)
        assert done.returncode == 0, done.stderr
    return top


def release(checkout: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return run("sh", checkout / "deploy" / "release", *words, cwd=checkout.parent)


class PageLinks(HTMLParser):
    """What one page links to, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors.add(values.get("id") or "")
        for name in ("href", "src"):
            if text := values.get(name):
                self.links.add(text)


def assert_no_broken_link(site: Path, folder: Path) -> None:
    """Check that every link of the docs to the docs finds its page and its anchor."""
    unpack(site, folder)
    (top,) = folder.iterdir()
    pages = {path: PageLinks(path.read_text()) for path in top.rglob("*.html")}
    assert len(pages) > 20 and top / "design" / "security.html" in pages
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            other = (path.parent / parts.path).resolve() if parts.path else path
            if other.is_dir():
                other /= "index.html"
            anchors = pages[other].anchors if other in pages else {""}
            if not other.is_file() or parts.fragment not in anchors:
                broken.append(f"{path.relative_to(top)}: {link}")
    assert broken == []


def test_a_release_has_its_files_sums_and_a_signature(checkout, tmp_path):
    assert run("git", "tag", f"v{VERSION}", cwd=checkout).returncode == 0
    key = tmp_path / "key"
    done = run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    to = tmp_path / "release"
    done = release(checkout, "--key", key, to)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in to.iterdir()}
    wheel = next(name for name in names if name.endswith(".whl"))
    assert names == {
        *("NOTES.txt", "SHA256SUMS", "SHA256SUMS.sig", "gp.py", wheel),
        f"gpuportal-{VERSION}.tar.gz",
        f"gpuportal-docs-{VERSION}.tar.gz",
        f"gpuportal-node_{VERSION}_all.deb",
    }
    assert (to / "NOTES.txt").read_text().strip() == "The notes."
    sums = (to / "SHA256SUMS").read_text()
    assert sums.count("\n") == len(names) - 2

    def verified() -> bool:
        (tmp_path / "signers").write_text(f"release {Path(f'{key}.pub').read_text()}")
        line = (
            f"sha256sum -c SHA256SUMS && ssh-keygen -Y verify -f {tmp_path}/signers"
            " -I release -n gpuportal-release -s SHA256SUMS.sig <SHA256SUMS"
        )
        return run("sh", "-c", line, cwd=to).returncode == 0

    assert verified()
    assert_no_broken_link(to / f"gpuportal-docs-{VERSION}.tar.gz", tmp_path / "site")
    with (to / "gp.py").open("a") as file:
        file.write(" ")
    assert not verified()
    done = run("git", "tag", "-d", f"v{VERSION}", cwd=checkout)
    assert done.returncode == 0, done.stderr


def test_what_is_no_release_is_refused_in_one_line(checkout, tmp_path):
    changes, text = checkout / "CHANGELOG.md", (checkout / "CHANGELOG.md").read_text()
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    odd_key = tmp_path / "odd"
    odd_key.write_text("ssh-ed25519 AAAA public\n")

    def refusal(*words: object) -> str:
        done = release(checkout, *words)
        assert done.returncode == 2, done.stdout
        (line,) = done.stderr.splitlines()
        return line

    assert f"the tag v{VERSION} is not at this commit" in refusal()
    assert "is not empty" in refusal("--dry-run", full)
    assert "cannot read nowhere" in refusal("--key", "nowhere")
    assert "is not a private key" in refusal("--key", odd_key)
    assert "usage" in refusal("--frob")
    try:
        changes.write_text(text.replace("The notes.\n", ""))
        assert f"no section for {VERSION}, or it is empty" in refusal("--dry-run")
        changes.write_text(text.replace("## 0.0.1", "## 0.0.2"))
        assert "changes that are not committed" in refusal()
        changes.write_text(text.replace("Unreleased\n", "Unreleased\n\n- One more.\n"))
        for words in (["commit", "-qam", "more"], ["tag", f"v{VERSION}"]):
            assert run("git", *words, cwd=checkout).returncode == 0
        assert "under Unreleased: move them" in refusal()
    finally:
        run("git", "tag", "-d", f"v{VERSION}", cwd=checkout)
        run("git", "reset", "-q", "--hard", "HEAD^", cwd=checkout)
