"""Choose the GPUs of a served language model, and check what its callers send."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from placement.planner.search.card_support import completed_workload
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.values.plan import Plan, PlanSet
from placement.planner.values.strategies import SINGLE, TENSOR
from placement.planner.values.workload import Workload
from placement.protocol.call_refusal import CallRefused
from telemetry.protocol.gpu_cards import GpuCard
from telemetry.protocol.sentences import sentence

BLOCK_TOKENS = 16
"""Tokens of one block of vLLM's KV cache."""
LIMITS = PlanLimits(
    accumulation=False,
    offload=False,
    quantization=False,
    strategies=(SINGLE.key, TENSOR.key),
)
"""The servers keep the whole model on the GPUs of one node, as it is stored. That of
transformers reads a prompt as a whole.
"""
WEIGHTS, CACHE = "parameters", "kv_cache"
"""Components of a plan's memory."""
BYTES_PER_TOKEN = 4
"""A rough length of one token, for requests whose server counts none."""
CHAT, COMPLETION, MODELS = "v1/chat/completions", "v1/completions", "v1/models"


def serving_workload(
    context_tokens: int,
    sequences: int,
    precision: str,
    cards: Iterable[GpuCard | None] = (),
) -> Workload:
    """Return the inference whose memory a server needs.

    The KV cache holds so many sequences of so many tokens at once.

    Args:
        context_tokens: most tokens of a sequence.
        sequences: computed together.
        precision: "": one that the cards have.
        cards: those that can be used.

    Raises:
        WorkloadInvalid: by field.
    """
    asked = {
        "task": "infer",
        "batch": sequences,
        "sequence_length": context_tokens,
        "kv_block_tokens": BLOCK_TOKENS,
    }
    chosen = {"precision": precision} if precision else {}
    return completed_workload({**asked, **chosen}, cards)


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

    Its messages have only text, because a server opens the addresses of images, videos
    and sounds, and files on its node. The server checks everything else.

    Args:
        data: the request's body.
        name: of the served model.
        path: CHAT or COMPLETION.

    Raises:
        CallRefused: it is no JSON object, it asks for another model, it has neither
            messages nor a prompt, "stream" is no boolean, or a message has more than
            text.
    """
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
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
    if not isinstance(body.get("stream"), bool | None):
        raise _bad_field("stream", sentence("must be true or false"))
    if path == CHAT:
        _check_messages(body["messages"])
    return body


def _check_messages(messages: object) -> None:
    """Raise CallRefused unless they are a list of messages with only text."""
    if not isinstance(messages, list):
        raise _bad_field("messages", sentence("must be a list of objects"))
    for message in messages:
        if not isinstance(message, dict):
            raise _bad_field("messages", sentence("must be a list of objects"))
        content = message.get("content")
        if isinstance(content, str | None):
            continue
        if not isinstance(content, list) or not all(map(_is_text, content)):
            words = sentence("may have only text, no images, videos, sounds or files")
            raise _bad_field("messages", words)


def _is_text(part: object) -> bool:
    """Return whether a part of a message is text and nothing else."""
    return (
        isinstance(part, dict)
        and part.keys() == {"type", "text"}
        and part["type"] == "text"
        and isinstance(part["text"], str)
    )


def _bad_field(field: str, fault: str) -> CallRefused:
    words = sentence("The field “{field}” {fault}.", field=field, fault=fault)
    return CallRefused("bad-request", words, fields={field: fault})


class AnswerTokens:
    """Counts the tokens of one request and its answer while they pass.

    The figure is ``usage.total_tokens`` of the answer, but at most the tokens of the
    request by its length, and one for each byte of the answer. An answer without
    ``usage`` counts one token for each event with a choice, and the request by its
    length.
    """

    MOST_KEPT_BYTES = 2**20
    """A longer answer or event is not read."""

    def __init__(self, request_bytes: int = 0, *, is_stream: bool = False) -> None:
        self.request_bytes, self.is_stream = request_bytes, is_stream
        self._answer_bytes = self._events = 0
        self._reported: int | None = None
        self._kept = bytearray()
        self._is_too_long = False

    def feed(self, data: bytes) -> None:
        """Read the next part of the answer's body. Each byte is copied once."""
        self._answer_bytes += len(data)
        if not self.is_stream:
            self._keep(data)
            return
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._keep(line)
            self._read_event(bytes(self._kept))
            self._kept.clear()
            self._is_too_long = False
        self._keep(rest)

    def _keep(self, data: bytes) -> None:
        """Keep a part of a line. A line that is too long is dropped to its end."""
        if len(self._kept) + len(data) > self.MOST_KEPT_BYTES:
            self._kept.clear()
            self._is_too_long = True
        if not self._is_too_long:
            self._kept += data

    @property
    def total(self) -> int:
        """Return the tokens so far."""
        asked = -(-self.request_bytes // BYTES_PER_TOKEN)
        if not self.is_stream:
            self._read(bytes(self._kept))
        if self._reported is not None:
            return min(self._reported, asked + self._answer_bytes)
        return asked + self._events

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
