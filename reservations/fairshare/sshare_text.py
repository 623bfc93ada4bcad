"""The text that Slurm's ``sshare -l -a -P`` prints, read into the rows of its tree.

Format: Slurm, sshare(1), options ``--parsable`` and ``--parsable2``. The columns are
found by their names in the header, so that columns of other releases do no harm. Slurm
indents an account by one space for each level, and prints it before its subtree.
"""

from __future__ import annotations

import re
from typing import Any

from reservations.fairshare.sshare import MOST_ROWS, PARENT, RowsInvalid

SEPARATOR = "|"
NEEDED = ("Account", "User", "RawShares", "RawUsage")
NORM = "NormShares"
CLUSTER = "CLUSTER:"
"""Begins the line that ``sshare -M`` prints before each cluster."""


def sshare_rows(text: str) -> list[dict[str, Any]]:
    """Return account, user, parent, raw_shares, raw_usage and norm_shares of each line,
    in order. norm_shares is None without such a column.

    Lines before the header, for example a banner of the login shell, are left out.

    Raises:
        RowsInvalid: the text has no header or several, or a line does not fit it.
    """
    columns: dict[str, int] | None = None
    width = 0
    above: list[str] = []
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split(SEPARATOR)
        if set(NEEDED) <= set(fields):
            if columns is not None:
                raise RowsInvalid(f"line {number}: a second table. Give one cluster")
            columns, width = {name: at for at, name in enumerate(fields)}, len(fields)
        elif columns is not None and line.strip():
            if line.startswith(CLUSTER):
                raise RowsInvalid(f"line {number}: a second cluster. Give one cluster")
            if len(fields) != width:
                raise RowsInvalid(
                    f"line {number}: {len(fields)} columns, {width} are in the header"
                )
            if len(rows) >= MOST_ROWS:
                raise RowsInvalid(f"more than {MOST_ROWS:,} rows")
            account, user, shares, usage = (fields[columns[name]] for name in NEEDED)
            name = account.strip()
            depth = len(account) - len(account.lstrip(" "))
            parent = None
            if not user:
                if depth > len(above):
                    raise RowsInvalid(f"line {number}: the account above is not there")
                parent = above[depth - 1] if depth else None
                above[depth:] = [name]
            rows.append(
                {
                    "account": name,
                    "user": user.strip() or None,
                    "parent": parent,
                    "raw_shares": _shares(number, shares.strip()),
                    "raw_usage": _whole(number, "RawUsage", usage.strip()),
                    "norm_shares": _share(number, fields, columns.get(NORM)),
                }
            )
    if columns is None:
        raise RowsInvalid(
            "is neither JSON nor the output of sshare -l -a -P: no line has "
            "the columns " + ", ".join(NEEDED)
        )
    return rows


def _shares(line: int, text: str) -> int | str | None:
    """Return shares, ``parent``, or None for the root, where Slurm prints nothing."""
    return text if text == PARENT else _whole(line, "RawShares", text)


def _share(line: int, fields: list[str], column: int | None) -> float | None:
    """Return the share of its account that a row has, as Slurm printed it."""
    text = "" if column is None else fields[column].strip()
    if not text:
        return None
    if not re.fullmatch(r"[01]\.\d{1,12}", text, re.ASCII):
        raise RowsInvalid(f"line {line}: {NORM} must be from 0 to 1, not {text[:40]!a}")
    return float(text)


def _whole(line: int, column: str, text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise RowsInvalid(
            f"line {line}: {column} must be a whole number from 0, not {text[:40]!a}"
        )
    return int(text)
