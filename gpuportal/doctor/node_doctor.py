"""`gpuportal-node doctor`: check this GPU node in a terminal. No Django here."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gpuportal.doctor.diagnosis import (
    EXIT_CANNOT_RUN,
    exit_status,
    report_json,
    report_lines,
)
from gpuportal.doctor.machine_diagnosis import machine_report
from gpuportal.node_settings import NodeSettings, NodeSettingsError

SETTINGS_FILE = "/etc/gpuportal/node.env"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line for each check. Return the exit status.

    0: all is well. 1: there are problems. 2: the node has no valid settings.
    """
    parser = argparse.ArgumentParser(
        prog="gpuportal-node doctor", description="Check this GPU node."
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument(
        "--report", action="store_true", help="also show the result in the portal"
    )
    options = parser.parse_args(arguments)
    try:
        node = NodeSettings.from_env()
    except NodeSettingsError as error:
        print(f"gpuportal-node: {error}", file=sys.stderr)
        return EXIT_CANNOT_RUN
    # These libraries take a second to load.
    from gpuportal.doctor.node_facts import machine_facts, report_facts

    settings_file = Path(os.environ.get("GPUPORTAL_NODE_ENV_FILE", SETTINGS_FILE))
    facts = machine_facts(node, settings_file)
    found = tuple(machine_report(facts))
    print(report_json(found) if options.json else "\n".join(report_lines(found)))
    if options.report and (why := report_facts(node, facts)):
        print(f"gpuportal-node: not shown in the portal: {why}", file=sys.stderr)
        return EXIT_CANNOT_RUN
    return exit_status(found)


if __name__ == "__main__":
    sys.exit(main())
