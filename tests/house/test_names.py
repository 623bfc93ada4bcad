"""Names of files and folders of the product, and the size of folders."""

import ast
from collections import defaultdict
from pathlib import Path

from tests.house.walk import APPS, files, nodes, python_files, short, tree

MOST_FILES = 25
"""Most files of code in one folder. Migrations only ever grow."""
# Names that each app or capability has: Django's words and the project's.
CONVENTIONAL = {
    *("admin", "api", "apps", "checks", "consumers", "forms", "routing"),
    *("schemas", "tasks", "urls", "views"),
    *("errors", "queries", "rules", "service", "text", "tick", "triggers"),
    "__init__",
}
# Both are found by their path: Django looks a format up by its language, and the first
# migration names the fields of the calendar's model.
SAME_NAME = {"formats", "calendar"}
# The last word of a module's name may be one of these: things, in the field's words.
THINGS = {
    *("booking", "offboarding", "reading", "rendering", "routing", "serving"),
    *("sharding", "sharing", "signing"),
}


def modules() -> list[Path]:
    """Return the product's modules; a command is called what a person types."""
    return [path for path in python_files(*APPS) if "management" not in path.parts]


def test_a_module_has_a_name_of_its_own():
    found: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        if path.stem not in CONVENTIONAL | SAME_NAME:
            found[path.stem].append(short(path))
    assert [paths for paths in found.values() if len(paths) > 1] == []


def test_a_class_has_a_name_of_its_own():
    """A class in another class is named by both: ``Delivery.State``."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(short(path))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_a_module_is_named_for_a_thing_not_for_an_activity():
    last = {path: path.stem.rpartition("_")[2] for path in modules()}
    found = [short(p) for p, word in last.items() if word.endswith("ing")]
    assert [one for one in found if Path(one).stem.split("_")[-1] not in THINGS] == []


def test_a_folder_can_be_read_at_a_glance():
    found: dict[Path, int] = defaultdict(int)
    scripts = files(".js", ".css", under=("static",))
    for path in (*python_files(*APPS, "tests", "bench"), *scripts):
        found[path.parent] += 1
    full = {short(folder): n for folder, n in found.items() if n > MOST_FILES}
    assert full == {}


def test_each_package_says_what_it_holds():
    silent = [
        short(path.parent)
        for path in modules()
        if path.name == "__init__.py" and not ast.get_docstring(tree(path))
    ]
    assert silent == []


def test_no_module_only_passes_names_on():
    """``import x as x`` outside of a package's ``__init__``."""
    found = [
        f"{short(path)}:{node.lineno} {alias.name}"
        for path in modules()
        if path.name != "__init__.py"
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    ]
    assert found == []


def bound_names(path: Path) -> set[str]:
    """Return the names that a module binds anywhere: its imports, too."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(a.asname or a.name).partition(".")[0] for a in node.names}
    return found


def test_an_import_renames_only_what_clashes():
    """``from reservations.series import service as series`` is right: many are."""
    may_be_renamed = CONVENTIONAL | {"router", "urlpatterns", "websocket_urlpatterns"}
    found = []
    for path in python_files(*APPS, "tests", "bench"):
        bound = bound_names(path)
        found += [
            f"{short(path)}:{node.lineno} {alias.name} as {alias.asname}"
            for node in nodes(path)
            if isinstance(node, ast.ImportFrom)
            and (node.module or "").partition(".")[0] in (*APPS, "tests", "bench")
            for alias in node.names
            if alias.asname not in (None, alias.name)
            and alias.name not in may_be_renamed | bound
        ]
    assert found == []


def test_conventional_names_are_in_use():
    used = {path.stem for path in python_files(*APPS)}
    unused = CONVENTIONAL - used
    assert sorted(unused) == []
