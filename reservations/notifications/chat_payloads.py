"""Notices in the payloads that chat services accept at their incoming webhooks.

Sources: Slack "Sending messages using incoming webhooks" and "Formatting text"
(api.slack.com); Mattermost "Incoming webhooks" (developers.mattermost.com); Microsoft
"Create incoming webhooks with Workflows" and the Adaptive Card schema 1.4; Matrix
hookshot "Generic webhooks" (matrix-org.github.io/matrix-hookshot); ntfy "Publishing"
(docs.ntfy.sh).

Texts that people wrote (purposes, reasons) are escaped, so that mentions and markup in
them have no effect.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from telemetry.protocol.sentences import sentence

NAME = "GPU Portal"
MOST_CHARACTERS = 3500
"""Slack cuts messages at 4,000 characters, and ntfy accepts 4,096 bytes."""
MOST_BYTES = 3900
JSON = "application/json"
_MARKUP = re.compile(r"([\\`*_\[\]<>|~])")


@dataclass(frozen=True, slots=True)
class ChatLine:
    """One Notice: its sentence, and the page about it."""

    text: str
    url: str
    """Absolute. "" if the site's own address is not set."""
    link: str = "Open"
    """The text of the link to the page."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """The request to the address: a body and its headers."""

    body: bytes
    headers: Mapping[str, str]


def message(
    format_name: str,
    lines: Sequence[ChatLine],
    *,
    translate: Callable[[str], str] = str,
) -> ChatMessage:
    """Return the message that a chat service of this format takes.

    Args:
        translate: puts the few words around the Notices into the reader's language.

    Raises:
        KeyError: no such format.

    >>> message("slack", [ChatLine("a < b", "https://x.org/1")]).body.decode()
    '{"text":"a &lt; b <https://x.org/1|Open>"}'
    >>> message("ntfy", [ChatLine("Job 7 ended", "")]).body.decode()
    'Job 7 ended'
    """
    return _MAKERS[format_name](_shortened(lines, translate))


def formats() -> frozenset[str]:
    """Return the formats that this module writes."""
    return frozenset(_MAKERS)


def _shortened(
    lines: Sequence[ChatLine], translate: Callable[[str], str]
) -> list[ChatLine]:
    """Return the lines that fit into one message, and the number of the others."""
    found: list[ChatLine] = []
    link = translate(sentence("Open"))
    left = MOST_CHARACTERS
    for line in lines:
        text = " ".join(line.text.split())
        text = text if len(text) <= 500 else text[:499] + "…"
        left -= len(text) + len(line.url) + 12
        if left < 0 and found:
            more = sentence("And {n} more.", n=len(lines) - len(found))
            found.append(ChatLine(translate(more), ""))
            break
        found.append(ChatLine(text, line.url, link))
    return found


def _json(data: Mapping[str, Any]) -> ChatMessage:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return ChatMessage(text.encode(), {"Content-Type": JSON})


def _slack(lines: Sequence[ChatLine]) -> ChatMessage:
    # The three characters with which Slack's markup begins. Escaped, "<!channel>" is
    # plain text.
    return _json({"text": "\n".join(_slack_line(line) for line in lines)})


def _slack_line(line: ChatLine) -> str:
    text = html.escape(line.text, quote=False)
    return f"{text} <{line.url}|{line.link}>" if line.url else text


def _mattermost(lines: Sequence[ChatLine]) -> ChatMessage:
    shown = "\n".join(_markdown_line(line) for line in lines)
    return _json({"username": NAME, "text": shown})


def _markdown_line(line: ChatLine) -> str:
    """Return a line of Markdown in which nothing of the text is markup or a mention."""
    text = _without_mentions(_MARKUP.sub(r"\\\1", line.text))
    return f"{text} [{line.link}]({line.url})" if line.url else text


def _without_mentions(text: str) -> str:
    """Return a text without mentions: a space of no width follows each @."""
    return text.replace("@", "@\u200b")


def _teams(lines: Sequence[ChatLine]) -> ChatMessage:
    blocks: list[dict[str, Any]] = []
    for line in lines:
        text = _MARKUP.sub(r"\\\1", line.text)
        if line.url:
            text += f" [{line.link}]({line.url})"
        blocks.append({"type": "TextBlock", "text": text, "wrap": True})
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [
            {"type": "TextBlock", "text": NAME, "weight": "Bolder", "size": "Medium"},
            *blocks,
        ],
    }
    attachment = {
        "contentType": "application/vnd.microsoft.card.adaptive",
        "contentUrl": None,
        "content": card,
    }
    return _json({"type": "message", "attachments": [attachment]})


def _matrix(lines: Sequence[ChatLine]) -> ChatMessage:
    # "@room" in the plain text would notify everybody in the room.
    lines = [ChatLine(_without_mentions(line.text), line.url) for line in lines]
    plain = "\n".join(f"{line.text} {line.url}".strip() for line in lines)
    rich = "<br>".join(_html_line(line) for line in lines)
    return _json({"username": NAME, "text": plain, "html": rich})


def _html_line(line: ChatLine) -> str:
    text = html.escape(line.text)
    if not line.url:
        return text
    return f'{text} <a href="{html.escape(line.url)}">{html.escape(line.link)}</a>'


def _ntfy(lines: Sequence[ChatLine]) -> ChatMessage:
    text = "\n".join(line.text for line in lines)
    headers = {"Content-Type": "text/plain; charset=utf-8", "Title": NAME}
    first = next((line.url for line in lines if line.url), "")
    if first and first.isascii() and first.isprintable():
        headers["Click"] = first
    # A longer body would become an attachment. It is cut between characters.
    body = text.encode()[:MOST_BYTES].decode(errors="ignore").encode()
    return ChatMessage(body, headers)


_MAKERS: dict[str, Callable[[Sequence[ChatLine]], ChatMessage]] = {
    "slack": _slack,
    "mattermost": _mattermost,
    "teams": _teams,
    "matrix": _matrix,
    "ntfy": _ntfy,
}
