"""A child that acts as its case's name demands, without torch: for the parent's
tests.
"""

import json
import os
import sys
import time

asked = json.load(sys.stdin)
for at, case in enumerate(asked["cases"]):
    act = case["model"]["torch"]
    print(json.dumps({"at": at, "what": "forward", "share": 0.5}), flush=True)
    if act == "sleep":
        time.sleep(60)
    elif act == "die":
        os.abort()
    elif act == "network":
        os._exit(97)
    elif act == "no torch":
        os._exit(3)
    elif act == "endless":
        os.write(1, b"x" * (2**20 + 65536))
        time.sleep(60)
    elif act == "environment":
        told = {"names": sorted(os.environ), "home": os.environ["HOME"]}
        print(json.dumps({"at": at, "answer": told}), flush=True)
    elif act == "problem":
        problem = {"code": "spec-invalid", "field": "model", "detail": "is odd"}
        print(json.dumps({"at": at, "problem": problem}), flush=True)
    else:
        print(json.dumps({"at": at, "answer": {"peak_bytes": 7}}), flush=True)
