"""From the nodes' streams to the live frame, the minutes and the Alerts.

    raw.<node>   --\\                     /-> telemetry.frame, .roster, .detail.*
                    Ingest (this thread) ---> minutes, rosters, Alerts (Writer)
    facts.<node> --> GroupReader --> on_fact     log.<node> --> GroupReader --> on_log

More than one ingest may run. The holder of a lease of three seconds publishes and
writes. The others read along and can take over at once.

Each of them reads the whole raw stream (XREAD). A consumer group would give each only a
part of the Gpus. Facts and log chunks go through a consumer group (XREADGROUP,
acknowledged when done): each is handled once, in the order of its node, and a restart
loses none.

A minute's row follows from the stream alone. A restarted ingest reads the raw stream
again from the first minute that was not stored, so nothing is lost and nothing counted
twice.
"""

from telemetry.ingest.loop import Ingest
from telemetry.ingest.readings import Judge

__all__ = ["Ingest", "Judge"]
