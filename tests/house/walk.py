"""The files of the project."""

import ast
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
APPS = ("gpuportal", "placement", "reservations", "telemetry")
_MADE = {
    *("node_modules", "var", "__pycache__", "staticfiles", "test-results"),
    *("build", "dist"),
}


def _made(folder: str) -> bool:
    """Return whether a folder is a cache or has installed packages."""
    return folder in _MADE or (folder.startswith(".") and folder != ".ci")


@cache
def _found(under: str) -> tuple[Path, ...]:
    """Return the project's own files under a folder. Made folders are not entered:
    they have many more files than the project.
    """
    found = []
    for folder, folders, names in os.walk(ROOT / under):
        folders[:] = [name for name in folders if not _made(name)]
        found += [Path(folder, name) for name in names]
    # In a worktree .git is a file, and says where on this machine it is.
    return tuple(
        sorted(path for path in found if path.name != ".git" and path.is_file())
    )


def files(*suffixes: str, under: tuple[str, ...] = ("",)) -> Iterator[Path]:
    """Yield the project's own files, without generated or installed ones."""
    for folder in under:
        yield from (path for path in _found(folder) if path.suffix in suffixes)


def python_files(*under: str) -> list[Path]:
    """Return Python files; migrations are written by a machine."""
    found = files(".py", under=under or ("",))
    return [path for path in found if "migrations" not in path.parts]


def short(path: Path) -> str:
    """Return a path relative to the project."""
    return str(path.relative_to(ROOT))


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file."""
    return ast.parse(path.read_text(), filename=str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return every node of the syntax tree of a Python file, as `ast.walk` does."""
    return tuple(ast.walk(tree(path)))


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the top names of all modules a file imports."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return frozenset(found)
