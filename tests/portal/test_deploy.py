"""What ``deploy/`` hands to an operator works: units, examples, broker users."""

import configparser
import re
from pathlib import Path

from gpuportal.node_settings import NodeSettings
from tests.house.walk import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def example(name: str) -> dict[str, str]:
    """Read an example of an environment file as systemd would."""
    lines = (ROOT / "deploy" / name).read_text().splitlines()
    pairs = [line.split("=", 1) for line in lines if "=" in line and line[0] != "#"]
    return {key: value for key, value in pairs}


def unit(path: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(
        strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",)
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path)
    return parser["Service"]


def test_there_is_a_unit_for_every_process():
    names = {path.stem for path in UNITS}
    assert names == {
        f"gpuportal-{name}"
        for name in ("web", "worker", "refine", "beat", "ingest", "node")
    }
    wanted = (ROOT / "deploy" / "systemd" / "gpuportal.target").read_text()
    for name in names - {"gpuportal-node"}:
        assert f"{name}.service" in wanted


def test_only_the_node_runs_as_root_and_only_the_control_side_knows_its_secrets():
    for path in UNITS:
        service = unit(path)
        node = path.stem == "gpuportal-node"
        assert service["User"] == ("root" if node else "gpuportal")
        assert service["EnvironmentFile"].endswith("node.env" if node else "portal.env")
        if not node:
            assert "check --deploy" in service["ExecStartPre"]
    # Jobs outlive the worker only where systemd does not kill its whole group.
    assert unit(ROOT / "deploy/systemd/gpuportal-node.service")["KillMode"] == (
        "process"
    )


def test_the_units_start_what_the_supervisor_starts():
    table = (ROOT / "gpuportal" / "process_table.py").read_text()
    for path in UNITS:
        words = unit(path)["ExecStart"]
        for part in re.findall(r"gpuportal(?:\.\w+)*(?::\w+)?|manage\.py \w+", words):
            if part not in ("gpuportal", "gpuportal.node"):
                assert part.split()[-1] in table, part


def test_the_nodes_example_is_a_whole_configuration_without_secrets():
    given = example("node.env.example")
    node = NodeSettings.from_env(given)
    assert node.name == "atlas"
    assert not {"DATABASE_URL", "SECRET_KEY", "REDIS_URL"} & given.keys()


def test_the_portals_example_names_every_secret_and_gives_none():
    given = example("portal.env.example")
    assert given["SECRET_KEY"] == ""
    assert given["GPUPORTAL_PRODUCTION"] == "1"
    assert "PASSWORD" in given["DATABASE_URL"] + given["REDIS_URL"]
