"""Files and functions that one can read in one go."""

import ast

from tests.house.walk import files, python_files, short, tree

FILE_LINES = 400
ONE_FILE = {"static/client/gp.py": 480}
"""What people copy to a machine as one file cannot be cut in two."""
FUNCTION_LINES = 60
MODULE_LINES_JS = 150


def test_no_python_file_is_longer_than_the_cap():
    lengths = {short(p): len(p.read_text().splitlines()) for p in python_files()}
    over = {p: n for p, n in lengths.items() if n > ONE_FILE.get(p, FILE_LINES)}
    assert over == {}


def test_no_function_is_longer_than_the_cap():
    found = {}
    for path in python_files():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    found[f"{short(path)}:{node.name}"] = lines
    assert found == {}


def test_no_script_module_is_longer_than_the_cap():
    lengths = {
        short(path): len(path.read_text().splitlines())
        for path in files(".js", under=("static/js",))
    }
    assert lengths
    assert {p: n for p, n in lengths.items() if n > MODULE_LINES_JS} == {}
