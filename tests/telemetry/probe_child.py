"""A process that opens the NVML probe and answers one command a line.

open, read, mend, info, stale, close        -> one line of JSON each
"""

import json
import sys
import time

from telemetry.domain.errors import TelemetryError
from telemetry.probe import NvmlProbe


def main() -> None:
    """Answer until stdin ends."""
    probe = NvmlProbe("n1")
    for line in sys.stdin:
        try:
            print(_answer(probe, line.strip()), flush=True)
        except TelemetryError as error:
            print(json.dumps([error.code, str(error)]), flush=True)


def _answer(probe: NvmlProbe, command: str) -> str:
    if command == "open":
        return probe.open().to_message(at=time.time()).decode()
    if command == "info":
        return probe.info.to_message(at=time.time()).decode()
    if command == "read":
        return probe.read(time.time()).to_message().decode()
    if command == "mend":
        return json.dumps(probe.mend())
    if command == "stale":
        return json.dumps(probe.stale)
    if command == "close":
        return json.dumps(probe.close())
    raise ValueError(command)


if __name__ == "__main__":
    main()
