"""Compare calls of a served language model through the portal's door with direct ones.

    python -m bench.tunnel.language_model_calls --url http://127.0.0.1:8010/serve/132/v1
        --socket <NODE_DIR>/jobs/132-1-<key>/text.sock --model tiny-llama [--calls 200]
        [--tokens 8]

Run it as root on the node, while the model is served (`gp serve-text`).
GPUPORTAL_TOKEN has a token with the permission *serve*. The direct calls go to the
socket of the job, and leave out the portal's door and the node's tunnel. The two kinds
alternate, one at a time, so that they meet the same machine and the same model. Also
measured is the time to the first piece of a streamed answer.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import httpx

WARM_CALLS = 10


def quantiles(seconds: list[float]) -> tuple[float, float]:
    """Return p50 and p95 in milliseconds."""
    cuts = statistics.quantiles(seconds, n=20)
    return 1e3 * statistics.median(seconds), 1e3 * cuts[18]


def whole(client: httpx.Client, body: dict[str, object]) -> float:
    """Return the seconds of one answer."""
    began = time.perf_counter()
    answer = client.post("/chat/completions", json=body)
    answer.raise_for_status()
    answer.json()["choices"]
    return time.perf_counter() - began


def first_piece(client: httpx.Client, body: dict[str, object]) -> float:
    """Return the seconds to the first piece of a streamed answer. Read it all."""
    began, first = time.perf_counter(), 0.0
    with client.stream(
        "POST", "/chat/completions", json=body | {"stream": True}
    ) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line and not first:
                first = time.perf_counter() - began
    return first


def compare(
    url: str, socket: str, token: str, *, model: str, calls: int, tokens: int
) -> None:
    """Measure calls in turns, and print a table in Markdown."""
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": "a b c"}],
        "max_tokens": tokens,
    }
    ways = {
        "direct": httpx.Client(
            transport=httpx.HTTPTransport(uds=socket),
            base_url="http://model/v1",
            timeout=60,
        ),
        "through the door": _door(url, token),
    }
    measures: dict[str, Callable[[httpx.Client, dict[str, object]], float]] = {
        "whole answer": whole,
        "first piece, streamed": first_piece,
    }
    print("| call | way | p50 ms | p95 ms |\n| --- | --- | ---: | ---: |")
    for name, measure in measures.items():
        found: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(WARM_CALLS + calls):
            for way, client in ways.items():
                seconds = measure(client, body)
                if number >= WARM_CALLS:
                    found[way].append(seconds)
        for way, seconds_of in found.items():
            half, most = quantiles(seconds_of)
            print(f"| {name} | {way} | {half:.1f} | {most:.1f} |", flush=True)
        pairs = zip(found["through the door"], found["direct"], strict=True)
        half, most = quantiles([door - own for door, own in pairs])
        print(f"| {name} | difference of a pair | {half:.1f} | {most:.1f} |")


def _door(url: str, token: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False)


def until_loaded(url: str, token: str, seconds: float) -> None:
    """Wait until the server has loaded the model."""
    end = time.monotonic() + seconds
    with _door(url, token) as door:
        while (answer := door.get("/models")).status_code != 200:
            if answer.status_code != 503 or time.monotonic() > end:
                raise SystemExit(f"the model is not loaded: {answer.text}")
            time.sleep(0.5)


def main() -> None:
    """Read the options, and measure."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--url", required=True)
    asked.add_argument("--socket", required=True)
    asked.add_argument("--model", required=True)
    asked.add_argument("--calls", type=int, default=200)
    asked.add_argument("--tokens", type=int, default=8)
    given = asked.parse_args()
    compare(
        given.url,
        given.socket,
        os.environ["GPUPORTAL_TOKEN"],
        model=given.model,
        calls=given.calls,
        tokens=given.tokens,
    )


if __name__ == "__main__":
    main()
