"""Measure the import of Slurm's usage, and check that a second import changes nothing.

    python bench/slurm/import_cost.py [--jobs 100000] [--days 31]

A command in the place of sacct prints the jobs that ran between two times.
`manage.py slurm import` runs twice on SQLite. The times are CPU seconds of the command,
sacct included.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.rig.cluster import ROOT, setup

USERS = 200
DAY_SECONDS = 86_400
SACCT = """#!/bin/sh
for word; do
  case $word in
    --starttime=*) start=${{word#*=}};;
    --endtime=*) end=${{word#*=}};;
  esac
done
cat {folder}/${{start%%T*}} {folder}/${{end%%T*}} 2>/dev/null |
  awk -F'|' -v start=$(date -ud $start +%s) -v end=$(date -ud $end +%s) \
    '$5 >= start && $4 < end'
"""


def write_sacct(folder: Path, jobs: int, days: int) -> None:
    """Write a command that prints the jobs which ended on a day."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    dice, number = random.Random(7), 0
    for back in range(1, days + 1):
        day = today - timedelta(days=back)
        lines = []
        for _ in range(jobs // days + (back <= jobs % days)):
            number += 1
            end = int(day.timestamp()) + dice.randrange(7200, DAY_SECONDS)
            run = dice.randrange(60, 7200)
            lines.append(
                f"lab|{number}|{end - run - 9}|{end - run}|{end}|{run}|"
                f"u{dice.randrange(USERS)}|vision|cpu=4,gres/gpu:a100=2,gres/gpu=2|\n"
            )
        (folder / f"{day:%Y-%m-%d}").write_text("".join(lines))
    program = folder / "sacct"
    program.write_text(SACCT.format(folder=folder))
    program.chmod(0o755)


def make_people() -> None:
    """Make the people who have the jobs' Unix users."""
    from django.core.management import call_command

    from reservations.models import Account, Membership, User
    from telemetry.models import Pool

    call_command("migrate", verbosity=0, interactive=False)
    Pool.objects.create(gpu_class="a100 (Slurm lab)", weight=1)
    group = Account.objects.create(name="vision")
    for number in range(USERS):
        user = User.objects.create_user(f"bench{number}", unix_user=f"u{number}")
        Membership.objects.create(user=user, account=group)


def children_cpu_seconds() -> float:
    """Return user and system time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def import_once(days: int) -> tuple[float, dict[str, object]]:
    """Return the CPU seconds of an import, and what it printed."""
    before = children_cpu_seconds()
    done = subprocess.run(
        [
            *(sys.executable, "manage.py", "slurm", "import"),
            *("--days", str(days + 1), "--json"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return children_cpu_seconds() - before, json.loads(done.stdout)


def ledger() -> tuple[int, int]:
    """Return the number and the sum of the imported rows."""
    from django.db.models import Count, Sum

    from reservations.models import LedgerEntry

    rows = LedgerEntry.objects.filter(kind=LedgerEntry.Kind.IMPORT)
    found = rows.aggregate(number=Count("pk"), total=Sum("gpu_seconds"))
    return found["number"], found["total"] or 0


def main() -> None:
    """Import twice, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--days", type=int, default=31)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slurm-import-") as var:
        folder = Path(var) / "bin"
        folder.mkdir()
        write_sacct(folder, options.jobs, options.days)
        os.environ |= {
            "SLURM_CLUSTER": "lab",
            "SLURM_IMPORT": "yes",
            "SLURM_FOLDER": str(folder),
        }
        setup(var)
        make_people()
        first, told = import_once(options.days)
        stored = ledger()
        second, again = import_once(options.days)
        if told["added"] != options.jobs or stored[0] != options.jobs:
            raise SystemExit(f"the first import added {told}")
        if again["added"] or again["known"] != options.jobs or ledger() != stored:
            raise SystemExit(f"the second import changed something: {again}")
    print(
        f"{options.jobs} jobs of {options.days} days: {first:.1f} s of CPU, and "
        f"{second:.1f} s if all have their row. The second import changed nothing."
    )


if __name__ == "__main__":
    main()
