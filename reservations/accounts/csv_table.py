"""CSV tables of people and groups: from the bytes of a file to rows, and back.

Accepts what spreadsheets write: UTF-8 with or without a byte order mark, UTF-16 with
one, commas, semicolons or tabs. A cell that a spreadsheet would run is written with an
apostrophe before it (OWASP, "CSV Injection") and read without it, so that an exported
table is read back unchanged.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from http import HTTPStatus

from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import sentence
from telemetry.web.spreadsheet import FORMULA

MOST_BYTES = 2 * 2**20
MOST_ROWS = 20_000
LONGEST_CELL = 500


@dataclass(frozen=True, slots=True)
class RowError:
    """The problem of one cell; ``row`` counts as a spreadsheet does, header = 1."""

    row: int
    column: str
    text: str

    def __str__(self) -> str:
        if self.column:
            return sentence(
                "Row {row}, {column}: {text}.",
                row=self.row,
                column=self.column,
                text=self.text,
            )
        return sentence("Row {row}: {text}.", row=self.row, text=self.text)


@dataclass(eq=False)
class SheetInvalid(CodedError):
    """The file is not a table that can be read."""

    code = "sheet-invalid"
    title = sentence("The file cannot be read")
    status = HTTPStatus.CONFLICT
    why: str = ""

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("{title}: {why}.", title=self.title, why=self.why)


@dataclass(frozen=True, slots=True)
class SheetRow:
    """One row: its number and its cells by column."""

    number: int
    cells: dict[str, str]

    def __getitem__(self, column: str) -> str:
        return self.cells.get(column, "")

    def __contains__(self, column: str) -> bool:
        return column in self.cells


def wrapped(text: str) -> str:
    """Keep a spreadsheet from running a cell; ``unwrapped`` takes it back.

    Nor a part of it, where the spreadsheet splits at semicolons or tabs.

    >>> wrapped("=1+1"), wrapped("'=1"), wrapped("'tis"), unwrapped("'=1+1")
    ("'=1+1", "''=1", "'tis", '=1+1')
    >>> wrapped("a; =1"), unwrapped("a; '=1")
    ("a; '=1", 'a; =1')
    """
    text = _SPLIT.sub(r"\1'", text)
    return "'" + text if text.lstrip("'")[:1] in _RUN else text


def unwrapped(text: str) -> str:
    """Return a cell without the apostrophe that ``wrapped`` added."""
    inner = text[1:]
    if text[:1] == "'" and inner.lstrip("'")[:1] in _RUN:
        text = inner
    return _JOINED.sub(r"\1", text)


_RUN = frozenset(FORMULA)
_SPLIT = re.compile(r"([;\t\r\n]\s*)(?='*[=+@-])")
_JOINED = re.compile(r"([;\t\r\n]\s*)'(?='*[=+@-])")


def decoded(data: bytes) -> str:
    """Return the text of a file.

    Raises:
        SheetInvalid: too large, or no Unicode.
    """
    if len(data) > MOST_BYTES:
        raise SheetInvalid(
            why=sentence("it is larger than {most} MiB", most=MOST_BYTES >> 20)
        )
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
        (b"", "utf-8"),
    ):
        if data.startswith(mark):
            try:
                text = data.decode(encoding)
            except UnicodeDecodeError as error:
                raise SheetInvalid(
                    why=sentence("it is not UTF-8; save it as “CSV UTF-8”")
                ) from error
            break
    if "\0" in text:
        raise SheetInvalid(why=sentence("it is not a text file"))
    return text.removeprefix("\ufeff")


def read_sheet(
    text: str, *, known: Sequence[str], needed: Sequence[str]
) -> list[SheetRow]:
    """Return the rows of a table with a header.

    Args:
        known: the columns that are understood. Names are compared without case.

    Raises:
        SheetInvalid: no header, columns unknown, twice or missing, too many rows.
    """
    first = text.lstrip("\r\n").split("\n", 1)[0]
    mark = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
    rows: list[SheetRow] = []
    head: list[str] | None = None
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if head is None:
                head = _head(cells, known=known, needed=needed)
                continue
            if len(rows) >= MOST_ROWS:
                raise SheetInvalid(
                    why=sentence("it has more than {most} rows", most=MOST_ROWS)
                )
            if len(cells) > len(head) and any(c.strip() for c in cells[len(head) :]):
                raise SheetInvalid(
                    why=sentence(
                        "row {line_num} has more cells than the header",
                        line_num=reader.line_num,
                    )
                )
            values = [unwrapped(cell.strip(" \u00a0")) for cell in cells]
            rows.append(
                SheetRow(reader.line_num, dict(zip(head, values, strict=False)))
            )
    except csv.Error as error:
        raise SheetInvalid(
            why=sentence(
                "line {line_num}: {error}", line_num=reader.line_num, error=error
            )
        ) from error
    if head is None:
        raise SheetInvalid(why=sentence("it is empty"))
    return rows


def _head(
    cells: Sequence[str], *, known: Sequence[str], needed: Sequence[str]
) -> list[str]:
    head = [cell.strip().lower().replace(" ", "_") for cell in cells]
    while head and not head[-1]:
        head.pop()
    unknown = [name for name in head if name not in known]
    if unknown:
        raise SheetInvalid(
            why=sentence(
                "there is no column “{unknown}”; known are {known}",
                unknown=unknown[0][:40],
                known=", ".join(known),
            )
        )
    if len(set(head)) != len(head):
        raise SheetInvalid(why=sentence("a column appears twice"))
    missing = [name for name in needed if name not in head]
    if missing:
        raise SheetInvalid(
            why=sentence("the column “{missing}” is missing", missing=missing[0])
        )
    return head


def too_long(row: SheetRow) -> Iterable[RowError]:
    """Report cells that are too long, or that have two lines."""
    for column, text in row.cells.items():
        if len(text) > LONGEST_CELL:
            yield RowError(row.number, column, sentence("is too long"))
        elif "\n" in text or "\r" in text:
            yield RowError(row.number, column, sentence("holds more than one line"))


def written(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV whose cells a spreadsheet does not run."""
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(head)
    for cells in rows:
        writer.writerow("" if c is None else wrapped(str(c)) for c in cells)
    return out.getvalue()
