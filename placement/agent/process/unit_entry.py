"""Inside a Job's unit: `python -m placement.agent.process.unit_entry < BEGIN`.

systemd-run has put this process, still root and still the shim's child, into the Job's
scope. It reads what to do from its standard input, which nobody else can have open, and
becomes the Job. Descriptors 1 and 2 are the log, 3 is the socket of a served model.
"""

import os
import sys

from placement.agent.process import private_mounts
from placement.agent.process.job_exec import JobStart
from telemetry.protocol.codec import decode


def main() -> int:
    """Read, close the standard input, become the Job."""
    with os.fdopen(0, encoding="utf-8") as source:
        begin = decode(JobStart, source.read())
    # The lowest free number: the standard input is /dev/null again.
    os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)
    private_mounts.no_new_privileges()
    begin.run()


if __name__ == "__main__":
    sys.exit(main())
