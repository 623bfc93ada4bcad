"""Shares and ranks as Slurm's ``sshare -l`` shows them: rows in, rows out.

A row is an Account (``user`` None, ``parent`` its parent's name, None for the root) or
an association of a user with an Account. Columns and words: Slurm, sshare(1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from reservations.rules.fairness.fair_tree import (
    AccountShares,
    Level,
    MemberShares,
    Ranking,
    TreeInvalid,
    rank_tree,
)
from telemetry.protocol.coded_error import CodedError

PARENT = "parent"
MOST_ROWS = 200_000
MOST = 10**18
NAME_LENGTH = 200
PRINTED_SHARES = 2e-6
"""How far a share with six digits may be off."""
MISSING_ROWS = "If users are missing, print all of them: sshare -l -a -P"
COLUMNS = "{:<24}{:<18}{:>10}{:>12}{:>16}{:>14}{:>13}{:>11}"
TITLES = (
    "Account",
    "User",
    "RawShares",
    "NormShares",
    "RawUsage",
    "EffectvUsage",
    "LevelFS",
    "FairShare",
)


class RowsInvalid(CodedError):
    """The rows of a file do not form a tree of shares."""

    code = "rows-invalid"


@dataclass(frozen=True, slots=True)
class ShareRow:
    """One line of ``sshare``: the given and the computed values."""

    account: str
    user: str | None
    parent: str | None
    raw_shares: int | Literal["parent"] | None
    raw_usage: int
    norm_shares: float
    effectv_usage: float
    level_fs: float | Literal["inf"] | None
    """None where Slurm prints nothing: the root, and associations with ``parent``."""
    fairshare: float | None
    """None for Accounts."""


def share_row(
    *,
    account: str,
    user: str | None,
    parent: str | None,
    raw_shares: int | Literal["parent"] | None,
    raw_usage: int,
    level: Level,
    fairshare: Fraction | None,
) -> ShareRow:
    """Return a line out of a Level; ratios as floats."""
    level_fs: float | Literal["inf"] | None
    if raw_shares == PARENT or (user is None and parent is None):
        level_fs = None
    else:
        level_fs = "inf" if level.level_fs is None else float(level.level_fs)
    return ShareRow(
        account=account,
        user=user,
        parent=parent,
        raw_shares=raw_shares,
        raw_usage=raw_usage,
        norm_shares=float(level.norm_shares),
        effectv_usage=float(level.effective_usage),
        level_fs=level_fs,
        fairshare=None if fairshare is None else float(fairshare),
    )


def rank_rows(rows: Sequence[Mapping[str, Any]]) -> list[ShareRow]:
    """Rank rows given by account, user, parent, raw_shares and raw_usage, in order.

    An Account's raw_usage may be left out. If it is given, it must equal the sum of its
    users within one unit for each user: ``sshare`` keeps usage as a decayed fraction
    and truncates each printed row separately.

    Raises:
        RowsInvalid: with the row and its problem.
    """
    if not rows or len(rows) > MOST_ROWS:
        raise RowsInvalid(f"{len(rows)} rows: 1 to {MOST_ROWS:,} are needed")
    checked = [_Row.read(number, row) for number, row in enumerate(rows)]
    accounts: dict[str, int] = {}
    people: set[tuple[str, str]] = set()
    for row in checked:
        if row.user is None:
            row.refuse_if(row.account in accounts, "an account of that name was there")
            accounts[row.account] = row.number
        else:
            twice = (row.account, row.user) in people
            row.refuse_if(twice, "that user of that account was there")
            people.add((row.account, row.user))
    ranking = _rank(checked, accounts)
    _check_sums(checked, accounts)
    ranked = [_share_row(row, ranking, checked, accounts) for row in checked]
    for row, found in zip(checked, ranked, strict=True):
        row.check_norm_shares(found.norm_shares)
    return ranked


@dataclass(frozen=True, slots=True)
class _Row:
    """A checked row; ``number`` counts from 0 and is its key in the tree."""

    number: int
    account: str
    user: str | None
    parent: str | None
    raw_shares: int | Literal["parent"] | None
    raw_usage: int | None
    norm_shares: object = None
    """As it was printed. None: it is not given."""

    @classmethod
    def read(cls, number: int, row: Mapping[str, Any]) -> _Row:
        """Read one row. Raises RowsInvalid."""
        if not isinstance(row, Mapping):
            raise RowsInvalid(f"row {number + 1}: must be an object")
        made = cls(
            number,
            row.get("account") or "",
            row.get("user") or None,
            row.get("parent") or None,
            row.get("raw_shares"),
            row.get("raw_usage"),
            row.get("norm_shares"),
        )
        names = (made.account, made.user or "", made.parent or "")
        fits = all(isinstance(n, str) and len(n) <= NAME_LENGTH for n in names)
        fits = fits and all(name.isprintable() for name in names)
        made.refuse_if(not fits, "account, user and parent must be names")
        made.refuse_if(not made.account, "there is no account")
        if made.raw_shares not in (None, PARENT):
            made.check_whole("raw_shares", made.raw_shares)
        if made.raw_usage is not None or made.user is not None:
            made.check_whole("raw_usage", made.raw_usage)
        return made

    def check_whole(self, name: str, value: object) -> None:
        """Raise RowsInvalid unless a value is a whole number in range."""
        wrong = type(value) is not int or not 0 <= value <= MOST
        self.refuse_if(wrong, f"{name} must be a whole number from 0, not {value!r}")

    def check_norm_shares(self, norm_shares: float) -> None:
        """Raise RowsInvalid if the row was printed with other shares of its account.

        ``sshare`` without ``-a`` prints the users who ask, and leaves out the others.
        """
        printed = self.norm_shares
        if not isinstance(printed, int | float) or self.raw_shares == PARENT:
            return
        wrong = not abs(printed - norm_shares) <= PRINTED_SHARES
        self.refuse_if(
            wrong,
            f"norm_shares is {norm_shares:.6f} by the rows, and not {printed:.6f}. "
            f"{MISSING_ROWS}",
        )

    def refuse_if(self, wrong: bool, why: str) -> None:
        """Raise RowsInvalid with the row's position if ``wrong``."""
        if wrong:
            # As ASCII: a file's text reaches a terminal.
            name = ascii(str(self.account)[:40]).strip("'\"")
            raise RowsInvalid(f"row {self.number + 1} ({name}): {why}"[:300])

    @property
    def shares(self) -> int | None:
        """Return the shares as the tree takes them. None for ``parent``."""
        return None if self.raw_shares == PARENT else int(self.raw_shares or 0)


def _rank(rows: Sequence[_Row], accounts: Mapping[str, int]) -> Ranking:
    tree, members = [], []
    for row in rows:
        if row.user is not None:
            row.refuse_if(row.account not in accounts, "there is no such account")
            members.append(
                MemberShares(
                    row.number, accounts[row.account], row.shares, row.raw_usage or 0
                )
            )
            continue
        unknown = row.parent is not None and row.parent not in accounts
        row.refuse_if(unknown, f"there is no parent {str(row.parent)[:40]}")
        parent = None if row.parent is None else accounts[row.parent]
        tree.append(AccountShares(row.number, parent, row.shares, row.raw_usage))
    try:
        return rank_tree(tree, members)
    except TreeInvalid as error:
        raise RowsInvalid(str(error)) from error


def _check_sums(rows: Sequence[_Row], accounts: Mapping[str, int]) -> None:
    """Raise RowsInvalid if an Account's usage differs from its users' beyond rounding.

    The rows form a tree: ``_rank`` has checked that.
    """
    users = dict.fromkeys(accounts.values(), 0)
    usage = dict.fromkeys(accounts.values(), 0)
    for row in rows:
        if row.user is None:
            continue
        above: int | None = accounts[row.account]
        while above is not None:
            users[above] += 1
            usage[above] += row.raw_usage or 0
            parent = rows[above].parent
            above = None if parent is None else accounts[parent]
    for number, together in usage.items():
        row = rows[number]
        if row.raw_usage is not None:
            wrong = abs(row.raw_usage - together) > users[number]
            row.refuse_if(
                wrong,
                f"raw_usage is not {together}, the sum of its users'. {MISSING_ROWS}",
            )


def _share_row(
    row: _Row, ranking: Ranking, rows: Sequence[_Row], accounts: Mapping[str, int]
) -> ShareRow:
    fairshare = None
    if row.user is None:
        level = ranking.account_level(row.number)
        if row.raw_shares == PARENT:
            above = row
            while above.raw_shares == PARENT and above.parent is not None:
                above = rows[accounts[above.parent]]
            norm = ranking.account_level(above.number).norm_shares
            level = Level(norm, level.effective_usage, None, level.usage)
    else:
        level = ranking.member_level(row.number)
        fairshare = ranking.ranks[row.number].fairshare
    return share_row(
        account=row.account,
        user=row.user,
        parent=row.parent,
        raw_shares=row.raw_shares,
        raw_usage=level.usage,
        level=level,
        fairshare=fairshare,
    )


def table(rows: Sequence[ShareRow]) -> str:
    """Return lines as ``sshare -l`` prints them: indented by depth, six digits."""
    depths: dict[str, int] = {}
    lines = [COLUMNS.format(*TITLES)]
    for row in rows:
        if row.user is None:
            above = depths.get(row.parent, -1) if row.parent is not None else -1
            depths[row.account] = above + 1
        depth = depths.get(row.account, 0) + (row.user is not None)
        lines.append(
            COLUMNS.format(
                " " * depth + row.account,
                row.user or "",
                "" if row.raw_shares is None else row.raw_shares,
                f"{row.norm_shares:.6f}",
                row.raw_usage,
                f"{row.effectv_usage:.6f}",
                _figure(row.level_fs),
                _figure(row.fairshare),
            ).rstrip()
        )
    return "\n".join(lines)


def _figure(value: float | str | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:.6f}"
