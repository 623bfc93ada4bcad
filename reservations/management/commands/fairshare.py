"""`manage.py fairshare`: the tree as Slurm's `sshare -l` prints it."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from reservations.fairshare.sshare import (
    PARENT,
    RowsInvalid,
    ShareRow,
    rank_rows,
    share_row,
    table,
)
from reservations.fairshare.sshare_text import sshare_rows
from reservations.models import Account, Membership
from reservations.rules.fairness.fair_tree import Level, Ranking, decayed_gpu_seconds
from reservations.rules.policy import Policy
from reservations.rules.window import unix
from reservations.store.booking_facts import site_policy
from reservations.store.usage import ranking
from telemetry.protocol.coded_error import EXIT_REFUSED, one_line

MOST_FILE_BYTES = 32 * 2**20
STDIN = "-"


class Command(BaseCommand):
    """Prints without changing anything. With --from it needs no database."""

    help = "Print shares, usage, level_fs and fairshare of every account and member."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the source of the tree and the format."""
        parser.add_argument(
            "--from",
            dest="source",
            metavar="FILE",
            help="rank the rows of a file instead of the live site's (-: standard "
            "input): what Slurm's `sshare -l -a -P` printed, or JSON (account, user, "
            "parent, raw_shares, raw_usage)",
        )
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        """Rank and print. A file that is no tree: one line, and exit 2."""
        if options["source"]:
            try:
                rows = rank_rows(_rows_of(options["source"]))
            except (RowsInvalid, OSError) as error:
                text = f"{options['source']}: {getattr(error, 'strerror', '') or error}"
                raise CommandError(one_line(text), returncode=EXIT_REFUSED) from error
        else:
            rows = live_rows(timezone.now())
        if options["json"]:
            self.stdout.write(json.dumps({"rows": [asdict(row) for row in rows]}))
        else:
            self.stdout.write(table(rows))


def _rows_of(source: str) -> list[Any]:
    stdin = nullcontext(sys.stdin.buffer)
    with stdin if source == STDIN else Path(source).open("rb") as file:
        content = file.read(MOST_FILE_BYTES + 1)
    if len(content) > MOST_FILE_BYTES:
        raise RowsInvalid(f"larger than {MOST_FILE_BYTES >> 20} MiB")
    if content.lstrip()[:1] not in (b"[", b"{"):
        return sshare_rows(content.decode(errors="replace"))
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RowsInvalid(f"is not JSON: {str(error)[:120]}") from error
    rows = data.get("rows") if isinstance(data, dict) else data
    if not isinstance(rows, list):
        raise RowsInvalid('has no list "rows"')
    return rows


def live_rows(now: datetime) -> list[ShareRow]:
    """Rank the site's own tree, from the root down.

    Raises:
        CommandError: there is no account yet.
    """
    policy = site_policy()
    ranks = ranking(now, policy)
    if ranks is None:
        raise CommandError("There is no account yet.")
    return list(_walk(ranks, now, policy))


def _walk(ranks: Ranking, now: datetime, policy: Policy) -> Iterator[ShareRow]:
    def gpu_seconds(level: Level) -> int:
        return round(
            decayed_gpu_seconds(
                level.usage,
                unix_seconds=unix(now),
                half_life_seconds=policy.half_life_seconds,
            )
        )

    children: dict[int | None, list[Account]] = {}
    for account in Account.objects.order_by("name"):
        children.setdefault(account.parent_id, []).append(account)
    members: dict[int, list[Membership]] = {}
    for member in Membership.objects.filter(active=True).select_related("user"):
        members.setdefault(member.account_id, []).append(member)
    names = {account.pk: account.name for own in children.values() for account in own}
    todo = list(reversed(children.get(None, [])))
    while todo:
        account = todo.pop()
        level = ranks.account_level(account.pk)
        yield share_row(
            account=account.name,
            user=None,
            parent=names.get(account.parent_id or 0),
            raw_shares=_shares(account),
            raw_usage=gpu_seconds(level),
            level=level,
            fairshare=None,
        )
        for member in members.get(account.pk, []):
            level = ranks.member_level(member.pk)
            yield share_row(
                account=account.name,
                user=member.user.username,
                parent=None,
                raw_shares=_shares(member),
                raw_usage=gpu_seconds(level),
                level=level,
                fairshare=ranks.ranks[member.pk].fairshare,
            )
        todo += reversed(children.get(account.pk, []))


def _shares(row: Account | Membership) -> Any:
    return PARENT if row.shares is None else row.shares
