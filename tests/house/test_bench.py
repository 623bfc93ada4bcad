"""The benchmarks start. Each one sets Django up itself, so none may need it at
import.
"""

import subprocess
import sys

from tests.house.walk import ROOT

IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_every_benchmark_is_imported_before_django_is_set_up():
    paths = sorted((ROOT / "bench").rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert names and not done.returncode, done.stderr
