"""Recipe ``burn-in``: counts and prints progress, in plain Python.

    python -m placement.agent.runtime.burn_in '{"seconds": 60, ...}'

Ends cleanly on SIGTERM. It needs no torch, so any node can test Jobs with it.
"""

import json
import math
import signal
import sys
import threading
import time


def main(argv: list[str]) -> int:
    """Print a line per interval until the time is over or TERM comes."""
    settings = json.loads(argv[1])
    seconds = float(settings["seconds"])
    interval = 1 / float(settings["lines_per_second"])
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    print(f"burn-in for {seconds:g} s", flush=True)
    started = time.monotonic()
    step = 0
    while not asked.is_set():
        passed = time.monotonic() - started
        if passed >= seconds:
            break
        # A curve that falls, so that the page has one to draw without torch.
        loss = 0.5 + 3.5 * math.exp(-3 * passed / max(seconds, 1e-9))
        print(f"step={step} loss={loss:.4f} seconds={passed:.1f}", flush=True)
        step += 1
        asked.wait(min(interval, max(0.0, seconds - passed)))
    if asked.is_set():
        print("stop requested; ending", flush=True)
        return 0
    print("burn-in done", flush=True)
    return int(settings["exit_code"])


if __name__ == "__main__":
    sys.exit(main(sys.argv))
