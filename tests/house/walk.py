"""The files of the project."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
APPS = ("gpuportal", "placement", "reservations", "telemetry")
_MADE = {"node_modules", "var", "__pycache__", "staticfiles", "test-results", "build"}


def _made(parts: tuple[str, ...]) -> bool:
    """Return whether a folder on the path is a cache or has installed packages."""
    return any(p in _MADE or (p.startswith(".") and p != ".ci") for p in parts)


def files(*suffixes: str, under: tuple[str, ...] = ("",)) -> Iterator[Path]:
    """Yield the project's own files, without generated or installed ones."""
    for folder in under:
        for path in sorted((ROOT / folder).rglob("*")):
            parts = path.relative_to(ROOT).parts
            # In a worktree .git is a file, and says where on this machine it is.
            made = _made(parts[:-1]) or path.name == ".git"
            if not made and path.is_file() and path.suffix in suffixes:
                yield path


def python_files(*under: str) -> list[Path]:
    """Return Python files; migrations are written by a machine."""
    found = files(".py", under=under or ("",))
    return [path for path in found if "migrations" not in path.parts]


def short(path: Path) -> str:
    """Return a path relative to the project."""
    return str(path.relative_to(ROOT))


def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file."""
    return ast.parse(path.read_text(), filename=str(path))


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the top names of all modules a file imports."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return frozenset(found)
