"""Measure other people's pages while twelve students plan as fast as possible.

    python -m bench.planning_load [--students 12] [--parallel 2] [--layers 2000]
                                  [--seconds 30] [--in child|web|both] [--json]

Starts a broker, SQLite and one web process. Each student has a model of so many layers
and requests plans of it, several at once, one call after another. A refused call is
repeated after the time in the answer. Beside them one person opens /jobs/ and /healthz,
five times a second. First nobody plans, then one student does, then all. `--in web`
plans in the web process itself (PLANNER_PROCESS=0). Students run as threads of this
process and share its processors with the server, so the times are an upper bound.
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

PAGES = ("/jobs/", "/healthz")
PAUSE_SECONDS = 0.2
GPUS = 8


def main() -> None:
    """Measure one way, or both one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--students", type=int, default=12)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--layers", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--in", dest="where", choices=["child", "web", "both"])
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(where="both")
    asked = parser.parse_args()
    if asked.where == "both":
        for where in ("web", "child"):
            options = [
                f"--{name}={getattr(asked, name)}"
                for name in ("students", "parallel", "layers", "seconds")
            ]
            options += ["--json"] if asked.json else []
            command = [sys.executable, "-m", "bench.planning_load", *options]
            subprocess.run([*command, "--in", where], check=True)
        return
    os.environ["PLANNER_PROCESS"] = "1" if asked.where == "child" else "0"
    found = measure(asked)
    print(json.dumps(found) if asked.json else told_of(found), flush=True)


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """Start everything and measure the three loads."""
    # Sets the environment for itself and its children, so not before main().
    from bench.rig import booking_lab, cluster, cluster_look

    cluster.setup(str(booking_lab.VAR))
    from django.conf import settings

    from telemetry import paths

    rows = []
    with cluster.valkey(paths.embedded_socket()):
        keys = cluster.make_cluster(nodes=2, gpus=GPUS // 2, people=asked.students + 1)
        sessions = keys.split(",")
        import redis

        cluster_look._frame(redis.Redis.from_url(settings.REDIS_URL))
        tokens = _tokens()
        with booking_lab.Webs(1) as webs:
            port = webs.ports[0]
            models = [_model(port, token, asked.layers) for token in tokens]
            for count in (0, 1, asked.students):
                load = _Load(port, tokens[:count], models[:count], asked.parallel)
                with load:
                    pages = _pages(port, sessions[-1], asked.seconds)
                rows.append({"students": count, **pages, **load.found()})
    return {"where": asked.where, "layers": asked.layers, "rows": rows}


def _tokens() -> list[str]:
    from django.utils import timezone

    from reservations.accounts.api_tokens import create_token
    from reservations.models import User

    users = User.objects.order_by("pk")
    return [
        create_token(user=u, label="b", scopes=["job"], days=1, now=timezone.now())[1]
        for u in users[: users.count() - 1]
    ]


def _model(port: int, token: str, layers: int) -> int:
    """Upload a config.json. Return the model's number."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 32000,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
    body = (
        '--b\r\nContent-Disposition: form-data; name="file"; filename="config.json"'
        f"\r\n\r\n{json.dumps(config)}\r\n--b--\r\n"
    )
    status, _, answer = _call(
        port,
        "POST",
        "/api/v1/models",
        body.encode(),
        {
            "Authorization": f"Bearer {token}",
            "Content-Type": "multipart/form-data; boundary=b",
        },
    )
    assert status == 201, (status, answer[:300])
    return int(json.loads(answer)["id"])


def _call(
    port: int, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> tuple[int, int, bytes]:
    """Return (status, seconds to wait, content)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=200)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        retry = int(answer.headers.get("Retry-After") or 0)
        return answer.status, retry, answer.read()
    finally:
        connection.close()


class _Load:
    """Students who plan, each with several calls at once."""

    def __init__(
        self, port: int, tokens: list[str], models: list[int], parallel: int
    ) -> None:
        self._stop = threading.Event()
        self._seconds: list[float] = []
        self._statuses: Counter[int] = Counter()
        self._threads = [
            threading.Thread(target=self._plan, args=(port, token, model))
            for token, model in zip(tokens, models, strict=True)
            for _ in range(parallel)
        ]

    def __enter__(self) -> "_Load":
        for thread in self._threads:
            thread.start()
        time.sleep(3 if self._threads else 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _plan(self, port: int, token: str, model: int) -> None:
        body = json.dumps({"model_id": model, "hours": 4}).encode()
        headers = {"Authorization": f"Bearer {token}"}
        headers["Content-Type"] = "application/json"
        while not self._stop.is_set():
            begun = time.monotonic()
            status, retry, _ = _call(port, "POST", "/api/v1/plans", body, headers)
            self._statuses[status] += 1
            if status == 200:
                self._seconds.append(time.monotonic() - begun)
            self._stop.wait(retry)

    def found(self) -> dict[str, Any]:
        """Return the plans: statuses, and the times of those that were answered."""
        took = sorted(self._seconds)
        return {
            "statuses": dict(self._statuses),
            "plan_seconds": [round(quantile(took, q), 2) for q in (0.5, 0.95, 1)],
        }


def quantile(values: list[float], ratio: float) -> float:
    """Return a quantile of sorted values; nan without values."""
    if not values:
        return float("nan")
    return values[min(len(values) - 1, int(ratio * len(values)))]


def _pages(port: int, session: str, seconds: float) -> dict[str, Any]:
    """Open the pages for so long. Return milliseconds: median, p95 and longest."""
    took: dict[str, list[float]] = {page: [] for page in PAGES}
    until = time.monotonic() + seconds
    headers = {"Cookie": f"sessionid={session}", "Accept": "text/html"}
    while time.monotonic() < until:
        for page in PAGES:
            begun = time.monotonic()
            status, _, _ = _call(port, "GET", page, None, headers)
            # The bench has no workers, so the portal may report that it is unhealthy.
            assert status == 200 or page == "/healthz", (page, status)
            took[page].append(1000 * (time.monotonic() - begun))
        time.sleep(PAUSE_SECONDS)
    return {
        page: [round(quantile(sorted(values), q)) for q in (0.5, 0.95, 1)]
        for page, values in took.items()
    }


def told_of(found: dict[str, Any]) -> str:
    """Return the results as lines."""
    lines = [
        f"planning in the {found['where']}, {found['layers']} layers, load "
        f"{os.getloadavg()[0]:.1f}; milliseconds: median, p95, longest"
    ]
    for row in found["rows"]:
        pages = "  ".join(f"{page} {row[page]}" for page in PAGES)
        plans = f"plans {row['statuses']}, seconds {row['plan_seconds']}"
        lines.append(f"  {row['students']:2} students  {pages}  {plans}")
    base = statistics.fmean(found["rows"][0][page][1] for page in PAGES)
    worst = max(found["rows"][-1][page][1] for page in PAGES)
    lines.append(f"  p95 with all students / p95 with none: {worst / base:.1f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
