"""The base of every error that a person reads or a program recognises.

An error has a stable ``code`` in kebab-case and a sentence made from its own values.
``docs/errors.md`` lists all codes. There is one rendering for each reader:

- a form or a page: ``telemetry.web.error_answers``
- a program or a socket: ``problem_details`` below; the web translates it with
  ``telemetry.web.error_answers.problem_of``
- a part of an answer that is no refusal itself, as of a preview: ``error_parts`` below
- a command: ``one_line`` below, with exit status 2
- the log: ``str(error)``

Errors that only steer the code around them need no code. They derive from ``Exception``
and never leave their module or its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, tzinfo
from http import HTTPStatus
from types import MappingProxyType

from telemetry.protocol.sentences import joined, sentence

PROBLEM_TYPE = "application/problem+json"
"""Media type of problem details (RFC 9457)."""
EXIT_REFUSED = 2
"""Exit status of a command whose input is invalid."""


class CodedError(Exception):
    """An error with a code for programs and a sentence for people."""

    code: str = "error"
    """In kebab-case. It is stable, and no other error has it."""
    title: str = ""
    """A few words above the sentence. Every refusal with a status has them."""
    status: int | None = None
    """HTTP status of the answer. None: the error is a crash of the request."""
    fields: Mapping[str, str] = MappingProxyType({})
    """Each invalid field of a form or of a program's input, with its fault."""
    retry_seconds: int = 0
    """Seconds after which to try again, for the header Retry-After; 0: unknown."""

    def text(self, zone: tzinfo = UTC) -> str:
        """Return one or two sentences, with instants in ``zone``."""
        return str(self.args[0]) if self.args else self.title

    def __str__(self) -> str:
        """Return the sentences, with instants in UTC."""
        return self.text()

    @property
    def numbers(self) -> dict[str, object]:
        """Return the values of the sentence by name, ready for JSON."""
        if not is_dataclass(self):
            return {}
        return {
            one.name: json_ready(getattr(self, one.name))
            for one in fields(self)
            if one.init
        }

    @property
    def members(self) -> dict[str, object]:
        """Return the members of the problem details besides code and sentence."""
        found: dict[str, object] = {
            "fields": dict(self.fields),
            "numbers": self.numbers,
        }
        return {name: value for name, value in found.items() if value}


class FieldsRefused(CodedError):
    """Invalid values of a form or of a program's input, field by field."""

    title = sentence("Some fields are wrong")
    status = HTTPStatus.UNPROCESSABLE_ENTITY

    def __init__(self, fields: Mapping[str, str]) -> None:
        """Store the faults: field to sentence."""
        self.fields = dict(fields)
        super().__init__()

    def text(self, zone: tzinfo = UTC) -> str:
        """Return the faults, without the names of the fields."""
        return joined(self.fields.values())

    @property
    def field(self) -> str:
        """Return the first invalid field."""
        return next(iter(self.fields), "")

    @property
    def detail(self) -> str:
        """Return the fault of the first field."""
        return next(iter(self.fields.values()), "")


def json_ready(value: object) -> object:
    """Return a value that JSON can hold. Instants are in ISO 8601, UTC, with Z."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, CodedError):
        return {"code": value.code, **value.numbers}
    return list(value) if isinstance(value, tuple) else value


def problem_details(
    error: CodedError, zone: tzinfo = UTC, words: Callable[[str], str] = str
) -> dict[str, object]:
    """Return an error as problem details (RFC 9457), ready for JSON.

    Members: type, title, status, code and detail, and those of ``error.members``:
    ``fields``, ``numbers`` and the error's additional members. ``numbers`` are for
    programs and are not translated.

    Args:
        zone: time zone of the instants in the sentence.
        words: translates a sentence into the reader's language.

    Raises:
        LookupError: the error has no status; it is a crash.
    """
    if error.status is None:
        raise LookupError(f"{type(error).__name__} is a crash, not a refusal")
    return {
        "type": f"urn:gpuportal:problem:{error.code}",
        "status": int(error.status),
        **error_parts(error, zone, words),
    }


def error_parts(
    error: CodedError, zone: tzinfo = UTC, words: Callable[[str], str] = str
) -> dict[str, object]:
    """Return code, title and detail of an error and its members, ready for JSON.

    An answer that is no refusal itself uses it to give the reason why something is not
    possible.
    """
    members = error.members
    if error.fields:
        members["fields"] = {name: words(text) for name, text in error.fields.items()}
    return {
        "title": words(error.title) if error.title else "",
        "code": error.code,
        "detail": words(error.text(zone)),
        **members,
    }


def one_line(text: str) -> str:
    """Return an error as one printable line of at most 1,000 characters.

    A command prints it. It may quote a file, so control characters are replaced.

    >>> one_line("split: \\x1b[2J\\n is no kind")
    'split: ?[2J is no kind'
    """
    plain = (c if c.isprintable() else "?" for c in " ".join(text.split()))
    return "".join(plain)[:1000]
