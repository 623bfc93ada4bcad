"""Record the code of a release's node worker, for the test of nodes one release behind.

    python -m tests.releases.record_node VERSION COMMIT

It writes ``VERSION/node.tar.xz`` beside this file: the modules of the commit that the
worker imports, and no others. A checkout without history can run it then. The same
commit gives the same bytes.
"""

import ast
import io
import lzma
import subprocess
import sys
import tarfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
FILE = "node.tar.xz"
ROOTS = (
    *("gpuportal.node", "telemetry.agent.sampler"),
    *("placement.agent.process.shim", "placement.agent.process.job_exec"),
)
"""What the node's unit starts, and what the worker starts with ``python -m``."""
PACKAGES = ("gpuportal", "placement", "telemetry")
MOST_BYTES = 250_000


def sources(commit: str) -> dict[str, bytes]:
    """Return the modules of a commit by their names."""
    done = subprocess.run(
        ["git", "archive", "--format=tar", commit, *PACKAGES],
        cwd=FOLDER.parents[1],
        stdout=subprocess.PIPE,
        check=True,
    )
    found = {}
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive:
            content = archive.extractfile(member)
            if member.name.endswith(".py") and content is not None:
                path = Path(member.name).with_suffix("")
                parts = path.parts[:-1] if path.name == "__init__" else path.parts
                found[".".join(parts)] = content.read()
    return found


def imported(name: str, text: bytes, known: dict[str, bytes]) -> set[str]:
    """Return the known modules that a module imports, with their packages."""
    wanted = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            wanted |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            wanted.add(node.module)
            wanted |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Started with `python -m`.
            wanted |= {node.value} & known.keys()
    found = set()
    for module in {*wanted, name}:
        parts = module.split(".")
        found |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
    return found & known.keys()


def closure(known: dict[str, bytes]) -> set[str]:
    """Return the modules that the worker needs."""
    due, found = set(ROOTS), set[str]()
    while due:
        name = due.pop()
        found.add(name)
        due |= imported(name, known[name], known) - found
    return found


def pack(known: dict[str, bytes], names: set[str]) -> bytes:
    """Return the archive of some modules."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(names):
            package = any(other.startswith(f"{name}.") for other in known)
            path = name.replace(".", "/") + ("/__init__.py" if package else ".py")
            member = tarfile.TarInfo(path)
            member.size = len(known[name])
            archive.addfile(member, io.BytesIO(known[name]))
    return lzma.compress(raw.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def main(version: str, commit: str) -> None:
    """Write the archive."""
    known = sources(commit)
    names = closure(known)
    data = pack(known, names)
    if len(data) > MOST_BYTES:
        raise SystemExit(f"record_node: {len(data)} bytes are more than {MOST_BYTES}")
    place = FOLDER / version
    place.mkdir(exist_ok=True)
    (place / FILE).write_bytes(data)
    print(f"{place / FILE}: {len(names)} modules, {len(data)} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m tests.releases.record_node VERSION COMMIT")
    main(*sys.argv[1:])
