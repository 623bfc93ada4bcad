"""A process that opens the NVML probe and answers one command a line.

open, read, mend, info, stale, close, xids, watch UUIDS..., later SECONDS
    -> one line of JSON each
"""

import json
import os
import sys
import time
from pathlib import Path

from telemetry.agent.probe import NvmlProbe
from telemetry.protocol.coded_error import CodedError

later = [0.0]
"""Seconds by which the probe's clock is ahead."""


def main() -> None:
    """Answer until stdin ends."""
    folder = Path(os.environ.get("TEST_BOUND_DIR", "/none"))
    probe = NvmlProbe("n1", bound_dir=folder, clock=lambda: time.monotonic() + later[0])
    for line in sys.stdin:
        try:
            print(_answer(probe, line.strip()), flush=True)
        except CodedError as error:
            print(json.dumps([error.code, str(error)]), flush=True)


def _answer(probe: NvmlProbe, command: str) -> str:
    if command == "open":
        return probe.open().to_message(at=time.time()).decode()
    if command == "info":
        return probe.info.to_message(at=time.time()).decode()
    if command == "read":
        return probe.read(time.time()).to_message().decode()
    if command == "mend":
        return json.dumps(probe.reopen())
    if command == "stale":
        return json.dumps(probe.stale)
    if command == "xids":
        told = {uuid: probe.take_xids(uuid) for uuid in probe.uuids}
        return json.dumps({x: [e.code for e in told[x]] for x in told if told[x]})
    if command.startswith("watch"):
        return json.dumps(probe.watch(frozenset(command.split()[1:])))
    if command.startswith("later"):
        later[0] += float(command.split()[1])
        return json.dumps(later[0])
    if command == "close":
        return json.dumps(probe.close())
    raise ValueError(command)


if __name__ == "__main__":
    main()
