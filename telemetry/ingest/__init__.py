"""From the nodes' streams to the live frame, the minutes and the Alerts.

    raw.<node>   --\\                     /-> telemetry.frame, .roster, .detail.*
                    Ingest (this thread) ---> minutes, rosters, Alerts (Writer)
    facts.<node> --> GroupReader --> on_fact     log.<node> --> GroupReader --> on_log

More than one ingest may run: the holder of a lease of three seconds publishes
and writes, the others read along and are ready at once.

The raw stream is read whole by each of them (XREAD) and not shared out by a
consumer group, which would leave each with half of the Gpus. Facts and log
chunks go through a consumer group (XREADGROUP, acknowledged when done): each is
handled once, in the order of its node, and none is lost in a restart.

A minute's row follows from the stream alone: a restarted ingest reads the raw
stream again from the first minute that was not stored, so nothing is lost and
nothing counted twice.
"""

from telemetry.ingest.loop import Ingest
from telemetry.ingest.readings import Judge

__all__ = ["Ingest", "Judge"]
