"""Every requirement is used, and every package that is imported is a requirement."""

import re
import sys
from functools import cache
from importlib.metadata import packages_distributions

from tests.house.walk import APPS, ROOT, imports, python_files

NAMED = {
    "tzdata": "zoneinfo reads it where the machine has no time zones",
    "psycopg": "Django's backend for PostgreSQL, which DATABASE_URL names",
    "channels-redis": "CHANNEL_LAYERS of gpuportal/settings.py",
    "pytest-asyncio": "asyncio_mode in pyproject.toml",
    "pytest-timeout": "timeout in pyproject.toml",
    "pytest-playwright": "the fixture `page` of the browser tests",
    "time-machine": "the fixture `time_machine` of the metrics' tests",
    "ruff": "make format, make check",
    "mypy": "make check",
    "django-stubs": "mypy's plugin in pyproject.toml",
    "import-linter": "make check",
    "flit-core": "gpuportal/pages/client_files.py starts it as a program",
    "sphinx": "make docs starts it as a program",
    "myst-parser": "extensions in docs/conf.py",
    "furo": "html_theme in docs/conf.py",
    "uv": "deploy/lock.sh",
    "einops": "DeepSpeed imports it",
    "fastapi": "the server of transformers imports it",
    "hjson": "DeepSpeed imports it",
    "msgpack": "DeepSpeed imports it",
    "psutil": "DeepSpeed imports it",
    "py-cpuinfo": "DeepSpeed imports it",
    "jupyterlab": "the tests of workspaces open it in a browser",
    "marimo": "the tests of workspaces run it",
    "ipykernel": "a notebook in JupyterLab runs on it",
    "onnxscript": "torch exports to ONNX by it",
}
"""Requirements that no file of ours imports, and what uses them."""

BROUGHT = {
    "deepspeed": "an extra of nodes: requirements-peers.txt",
    "onelogin": "python3-saml, an extra of portals with SAML: requirements-saml.txt",
    "ldap": "an extra of portals with a directory: requirements-ldap.txt",
    "opentelemetry": "an extra of portals with traces: requirements-otel.txt",
    "peft": "an extra of nodes, for adapters: docs/operations.md",
    "PIL": "pillow, an extra of nodes, for images: docs/operations.md",
    "pyarrow": "an extra of nodes, for .parquet data: docs/operations.md",
    "uvloop": "uvicorn[standard] brings it",
    "marimo": "of the student's environment, for a workspace: docs/access.md",
    "tensorboard": "of the student's environment, for a workspace: docs/access.md",
    "werkzeug": "TensorBoard brings it",
}
"""Imported packages without a requirement of their own, and their source."""


def required(*files: str) -> list[str]:
    """Return the names that the files require, in the form of an index."""
    lines = "\n".join((ROOT / f"{name}.in").read_text() for name in files)
    names = re.findall(r"^[A-Za-z][\w.-]*", lines, re.M)
    return [re.sub(r"[_.]", "-", name.lower()) for name in names]


def imported(*under: str) -> set[str]:
    """Return the packages that the files import."""
    return set().union(*(imports(path) for path in python_files(*under)))


@cache
def provided() -> dict[str, set[str]]:
    """Return the top modules that each installed package provides."""
    found: dict[str, set[str]] = {}
    for module, names in packages_distributions().items():
        for name in names:
            found.setdefault(re.sub(r"[_.]", "-", name.lower()), set()).add(module)
    return found


def modules_of(name: str) -> set[str]:
    """Return the top modules that a requirement provides."""
    return provided().get(name, set())


def test_every_requirement_of_a_host_is_imported_or_has_a_reason():
    used = imported(*APPS)
    unused = [
        name
        for name in required("requirements-web", "requirements")
        if not modules_of(name) & used and name not in NAMED
    ]
    assert unused == []


def test_every_tool_is_imported_or_has_a_reason():
    used = imported("tests", "bench")
    unused = [
        name
        for name in required("requirements-dev")
        if not modules_of(name) & used and name not in NAMED
    ]
    assert unused == []


def test_every_reason_is_needed():
    hosts = required("requirements-web", "requirements")
    tools = required("requirements-dev")
    assert sorted(set(NAMED) - set(hosts) - set(tools)) == []
    assert [x for x in hosts if x in NAMED and modules_of(x) & imported(*APPS)] == []
    used = imported("tests", "bench")
    assert [x for x in tools if x in NAMED and modules_of(x) & used] == []


def test_every_package_that_a_host_imports_is_a_requirement():
    names = required("requirements-web", "requirements")
    allowed = set().union(*map(modules_of, names)) | set(APPS) | set(BROUGHT)
    strange = imported(*APPS) - allowed - sys.stdlib_module_names
    assert sorted(strange) == []


def test_the_web_imports_nothing_that_only_requirements_txt_brings():
    full = set().union(*map(modules_of, required("requirements")))
    parts = ("agent", "symbolic", "sandbox")
    found = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in python_files(*APPS)
        if not set(parts) & set(path.relative_to(ROOT).parts)
        for module in imports(path) & full
    }
    assert sorted(found) == []


def test_the_page_of_libraries_lists_every_requirement_of_a_host():
    text = (ROOT / "docs" / "libraries.md").read_text().partition("## Not taken")[0]
    rows = re.findall(r"^\| ([A-Za-z][\w.-]*) \|", text, re.M)
    listed = [re.sub(r"[_.]", "-", name.lower()) for name in rows if name != "package"]
    assert sorted(listed) == sorted(required("requirements-web", "requirements"))
