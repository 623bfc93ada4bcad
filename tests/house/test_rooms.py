"""Allowed imports, beyond the rules that import-linter can express."""

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.house.walk import APPS, ROOT, imports, nodes, python_files, short, tree

# Domain code gets these as arguments and never fetches them.
NOT_PURE = {"os", "random", "secrets", "socket", "subprocess", "time", "threading"}
CLOCKS = {"now", "utcnow", "today"}
# Rules and libraries: plain Python that gets the time and everything else.
PURE = (
    *(
        "telemetry/protocol",
        "telemetry/rules",
        "reservations/rules",
        "placement/protocol",
    ),
    *(
        f"placement/planner/{room}"
        for room in ("values", "model", "memory", "reference", "search", "launch")
    ),
    "placement/rules",
)
NAMELESS = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py", "tools.py"}


def test_the_import_contracts_hold():
    program = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    assert program, "import-linter is missing: make test installs it"
    done = subprocess.run(
        [program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_no_files_import_each_other_in_a_circle():
    """Imports inside a function are left out, and types count."""
    modules = {module_name(path): path for path in python_files(*APPS)}
    graph = {
        name: {one for one in imported_names(path) if one in modules}
        for name, path in modules.items()
    }
    assert len(graph["reservations.rules.calendar"]) > 2
    circle: list[str] = []
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = error.args[1]
    assert circle == []


def module_name(path: Path) -> str:
    return short(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported_names(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, and what it imports from packages."""
    own = module_name(path)
    blocks: list[ast.AST] = [tree(path)]
    while blocks:
        for node in ast.iter_child_nodes(blocks.pop()):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                # A file may import its neighbours through their package.
                yield from (
                    names if own.startswith(node.module) else names | {node.module}
                )
            elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                blocks.append(node)


def test_only_the_runtime_and_the_symbolic_estimate_import_torch():
    found = {short(p) for p in python_files(*APPS) if "torch" in imports(p)}
    rooms = ("placement/agent/runtime/", "placement/planner/s")
    assert {p for p in found if not p.startswith(rooms)} == set()


def test_only_the_probe_imports_nvml():
    found = {short(p) for p in python_files(*APPS) if "pynvml" in imports(p)}
    assert found
    assert {p for p in found if not p.startswith("telemetry/agent/probe")} == set()


def test_domain_code_reads_no_clock_no_environment_and_draws_no_lots():
    found = []
    for path in python_files(*PURE):
        found += [f"{short(path)} imports {name}" for name in imports(path) & NOT_PURE]
        for node in nodes(path):
            if isinstance(node, ast.Call) and (
                (isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS)
                or (isinstance(node.func, ast.Name) and node.func.id == "open")
            ):
                found.append(f"{short(path)}:{node.lineno} {ast.unparse(node)}")
    assert found == []


def test_no_file_has_a_name_that_says_nothing():
    assert [short(p) for p in python_files() if p.name in NAMELESS] == []


def test_no_error_is_swallowed_whole():
    found = []
    for path in python_files():
        for node in nodes(path):
            if isinstance(node, ast.ExceptHandler):
                everything = node.type is None or (
                    isinstance(node.type, ast.Name)
                    and node.type.id in ("Exception", "BaseException")
                )
                silent = all(isinstance(s, ast.Pass) for s in node.body)
                if node.type is None or (everything and silent):
                    found.append(f"{short(path)}:{node.lineno}")
    assert found == []
