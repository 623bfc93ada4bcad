"""Choose the GPUs of a served language model, and check what its callers send."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from placement.planner.search.memory_savings import PlanLimits
from placement.planner.values.plan import Plan, PlanSet
from placement.planner.values.strategies import SINGLE, TENSOR
from placement.planner.values.workload import Workload
from placement.protocol.call_refusal import CallRefused
from telemetry.protocol.sentences import sentence

BLOCK_TOKENS = 16
"""Tokens of one block of vLLM's KV cache."""
LIMITS = PlanLimits(
    offload=False, quantization=False, strategies=(SINGLE.key, TENSOR.key)
)
"""The servers keep the whole model on the GPUs of one node, as it is stored."""
WEIGHTS, CACHE = "parameters", "kv_cache"
"""Components of a plan's memory."""
BYTES_PER_TOKEN = 4
"""A rough length of one token, for requests whose server counts none."""
CHAT, COMPLETION, MODELS = "v1/chat/completions", "v1/completions", "v1/models"


def serving_workload(context_tokens: int, sequences: int, precision: str) -> Workload:
    """Return the inference whose memory a server needs.

    The KV cache holds so many sequences of so many tokens at once.

    Raises:
        WorkloadInvalid: by field.
    """
    return Workload(
        task="infer",
        batch=sequences,
        sequence_length=context_tokens,
        precision=precision,  # type: ignore[arg-type]
        kv_block_tokens=BLOCK_TOKENS,
    )


def best_plan(found: PlanSet) -> Plan | None:
    """Return the plan with the fewest GPUs, of equal ones the fastest. None: no plan.

    A plan that only just fits comes after all that fit comfortably.
    """
    usable = [one for one in found.plans if not one.remedies and not one.spans_nodes]
    return min(
        usable,
        key=lambda one: (
            one.fit != "comfortable",
            len(one.shards),
            -one.decode_tokens_per_second,
        ),
        default=None,
    )


def why_no_plan(found: PlanSet) -> tuple[str, ...]:
    """Return the reasons why a model fits nowhere, each once."""
    told = [
        *(f"{one.title}: {one.reason.rstrip('.')}" for one in found.refusals),
        *(f"{one.gpu_label}: {one.reason.rstrip('.')}" for one in found.left_out),
    ]
    return tuple(dict.fromkeys(told))


def component_bytes(plan: Plan, name: str) -> int:
    """Return the bytes of one component, of all GPUs of a plan together."""
    return sum(shard.components.get(name, 0) for shard in plan.shards)


def checked_body(data: bytes, *, name: str, path: str) -> dict[str, Any]:
    """Return a request for text, with the name of the model.

    The server checks everything else.

    Args:
        data: the request's body.
        name: of the served model.
        path: CHAT or COMPLETION.

    Raises:
        CallRefused: it is no JSON object, it asks for another model, or it has neither
            messages nor a prompt.
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise CallRefused("bad-request", sentence("The body is not JSON.")) from None
    if not isinstance(body, dict):
        raise CallRefused("bad-request", sentence("The body must be a JSON object."))
    wanted = body.setdefault("model", name)
    if wanted != name:
        words = sentence(
            "The model “{wanted}” is not served here. This address serves “{name}”.",
            wanted=str(wanted)[:100],
            name=name,
        )
        raise CallRefused("no-model", words)
    field = "messages" if path == CHAT else "prompt"
    if field not in body:
        words = sentence("The request needs “{field}”.", field=field)
        raise CallRefused("bad-request", words, fields={field: sentence("is missing")})
    return body


def asked_tokens(data: bytes) -> int:
    """Return the likely tokens of a request that its server does not count."""
    return -(-len(data) // BYTES_PER_TOKEN)


class AnswerTokens:
    """Counts the tokens of one answer while it passes.

    The figure is ``usage.total_tokens`` of the answer. A stream without it counts one
    token for each event with a choice, and the request by its length.
    """

    MOST_KEPT_BYTES = 2**20
    """A longer answer or event is not read."""

    def __init__(self, request: bytes, *, is_stream: bool) -> None:
        self.is_stream = is_stream
        self._request_tokens = asked_tokens(request)
        self._events = 0
        self._reported: int | None = None
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Read the next part of the answer's body."""
        self._rest += data
        if self.is_stream:
            *lines, self._rest = self._rest.split(b"\n")
            for line in lines:
                self._read_event(line)
        if len(self._rest) > self.MOST_KEPT_BYTES:
            self._rest = b""

    @property
    def total(self) -> int:
        """Return the tokens so far."""
        if not self.is_stream:
            self._read(self._rest)
        if self._reported is not None:
            return self._reported
        return self._request_tokens + self._events

    def _read_event(self, line: bytes) -> None:
        if line.startswith(b"data:") and (event := self._read(line[5:])):
            self._events += bool(event.get("choices"))

    def _read(self, text: bytes) -> Mapping[str, Any]:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        if not isinstance(value, dict):
            return {}
        usage = value.get("usage")
        total = usage.get("total_tokens") if isinstance(usage, dict) else None
        if type(total) is int and 0 <= total < 2**31:
            self._reported = total
        return value


def guessed_spec(model: str, known: Iterable[str]) -> str:
    """Return the well-known model that a model's name or folder names. "": none.

    >>> guessed_spec("Qwen/Qwen3-8B", ["qwen3-8b"])
    'qwen3-8b'
    >>> guessed_spec("/data/my-model", ["qwen3-8b"])
    ''
    """
    last = model.rstrip("/").rpartition("/")[2].lower()
    return last if last in known else ""
