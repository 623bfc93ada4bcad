"""What people used in Slurm becomes charges, once for each run."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction

from reservations.fairshare import slurm_import
from reservations.fairshare import tasks as slurm_tasks
from reservations.fairshare.slurm_charges import (
    NO_GROUP,
    SEVERAL_GROUPS,
    UNKNOWN_USER,
    SlurmCharge,
    SlurmPayer,
    charge_of,
)
from reservations.fairshare.slurm_import import SlurmImport, import_day, import_runs
from reservations.models import EngineHold, LedgerEntry
from reservations.store.booking_facts import site_policy
from reservations.store.usage import past_usage
from telemetry.live.broker_client import BROKER
from telemetry.models import SlurmCluster
from telemetry.slurm.sacct_usage import (
    SacctReading,
    read_sacct,
)
from telemetry.slurm.slurm_commands import SlurmCommands, SlurmSilent
from tests.factories import (
    make_membership,
    make_pool,
    make_reservation,
    make_user,
)

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
END = int((NOW - timedelta(hours=1)).timestamp())
TRES = "cpu=2,gres/gpu:a100=2,gres/gpu=2"


def runs(
    *numbers: int,
    user: str = "ada",
    account: str = "vision",
    tres: str = TRES,
    hold: str = "",
):
    lines = (
        f"lab|{number}|900|{END - 600}|{END}|600|{user}|{account}|{tres}|{hold}\n"
        for number in numbers
    )
    return read_sacct(one.encode() for one in lines)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("payers", "pays"),
    [
        (None, UNKNOWN_USER),
        ([], NO_GROUP),
        ([SlurmPayer(1, "nlp", active=False)], NO_GROUP),
        ([SlurmPayer(1, "nlp", active=True)], 1),
        (
            [SlurmPayer(1, "nlp", active=True), SlurmPayer(2, "robots", active=True)],
            SEVERAL_GROUPS,
        ),
        (
            [SlurmPayer(1, "nlp", active=True), SlurmPayer(2, "Vision", active=False)],
            2,
        ),
        (
            [
                SlurmPayer(3, "vision", active=True),
                SlurmPayer(9, "vision", active=False),
            ],
            3,
        ),
    ],
)
def test_the_group_of_the_account_pays_or_the_only_one(payers, pays):
    found = charge_of(runs(7)[0], payers, {})
    assert (found.membership_pk if isinstance(found, SlurmCharge) else found) == pays


@pytest.mark.pure
@pytest.mark.parametrize(
    ("tres", "weights", "rate"),
    [
        (TRES, {}, 2),
        (TRES, {"a100": 5, "": 3}, 10),
        ("gres/gpu=2", {"a100": 5, "": 3}, 6),
        ("gres/gpu:a100=1,gres/gpu:v100=1,gres/gpu=2", {"a100": 5}, 6),
        ("gres/gpu:a100=1,gres/gpu=4", {"a100": 5, "": 3}, 14),
    ],
)
def test_each_type_has_its_weight(tres, weights, rate):
    payers = [SlurmPayer(1, "vision", active=True)]
    found = charge_of(runs(7, tres=tres)[0], payers, weights)
    assert found.gpu_seconds == 600 * rate
    assert found.reason == "Slurm lab: job 7"


@pytest.fixture
def ada(db):
    return make_membership(make_user("ada.l", unix_user="ada"), "vision")


def test_a_second_import_changes_nothing_and_fair_tree_counts_the_first(ada):
    make_pool("a100 (Slurm lab)", weight=5)
    still = replace(runs(9)[0], end=None)
    done = import_runs([*runs(7, 8), *runs(7), still], now=NOW)
    assert (done.added, done.known, done.running) == (2, 0, 1)
    assert done.gpu_seconds == 2 * 600 * 10
    rows = list(LedgerEntry.objects.values())
    assert {row["kind"] for row in rows} == {"import"}
    assert {row["membership_id"] for row in rows} == {ada.pk}
    assert {row["at"].timestamp() for row in rows} == {END}
    used = past_usage(NOW, site_policy())
    assert used[ada.pk] > 0
    again = import_runs([*runs(7, 8), replace(still, end=END)], now=NOW)
    assert (again.added, again.known) == (1, 2)
    assert [row for row in LedgerEntry.objects.values() if row in rows] == rows
    call_command("check_books", stdout=StringIO())


def test_a_run_of_nobody_is_left_out_until_somebody_has_it(ada):
    theirs = [*runs(1, user="bo"), *runs(2, user="bo"), *runs(3, user="")]
    done = import_runs(theirs, now=NOW)
    assert not done.added
    assert done.left_out == {
        ("bo", "vision", UNKNOWN_USER): 2,
        ("", "vision", UNKNOWN_USER): 1,
    }
    first = make_user("bo.1", unix_user="bo")
    make_membership(first, "vision")
    second = make_user("bo.2", unix_user="bo")
    # Two people with one Unix user.
    assert not import_runs(theirs, now=NOW).added
    second.unix_user = ""
    second.save()
    assert import_runs(theirs, now=NOW).added == 2


def test_the_database_takes_a_run_once_and_nothing_without_a_reservation(ada):
    import_runs(runs(7), now=NOW)
    given = {"membership": ada, "gpu_seconds": 5, "reason": "x"}
    source = LedgerEntry.objects.get().source
    for wrong in (
        {"kind": "import", "source": source},
        {"kind": "import", "source": ""},
        {"kind": "charge", "source": "slurm:lab:1:1:1"},
        {"kind": "hold", "source": ""},
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            LedgerEntry.objects.create(**given, **wrong)


def test_a_process_of_the_release_before_still_adds_rows(ada):
    """It does not know `source`, and goes on between `migrate` and its restart."""
    booked = make_reservation(ada.user)
    columns = "membership_id, reservation_id, kind, gpu_seconds, at, reason"
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO reservations_ledgerentry ({columns})"
            " VALUES (%s, %s, 'charge', 5, %s, 'x')",
            [ada.pk, booked.pk, NOW],
        )
    assert LedgerEntry.objects.get(kind="charge").source == ""


def test_the_command_says_what_it_added_and_whom_it_left_out(
    ada, monkeypatch, settings
):
    answer(monkeypatch, [*runs(7), *runs(8, 9, user="bo")])
    monkeypatch.setattr("django.utils.timezone.now", lambda: NOW)
    out = StringIO()
    call_command("slurm", "import", "--days", "5", stdout=out)
    assert out.getvalue().splitlines() == [
        "Added 1 runs (0.3 credits). 0 were there, and 0 still run.",
        f"Left out 2 runs of Unix user bo, account vision: {UNKNOWN_USER}.",
    ]
    answer(monkeypatch, runs(7), invalid=2, first_invalid="sacct: no number 'x'")
    out = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("slurm", "import", "--days", "1", stdout=out)
    assert ended.value.code == 1
    assert out.getvalue().splitlines()[1:] == [
        "Not everything was read: lines that cannot be read: 2, the first is sacct: no "
        "number 'x'."
    ]


def answer(monkeypatch, found, **more):
    """Let each call of `sacct` print these runs."""
    reading = SacctReading(found, **more)
    monkeypatch.setattr(SlurmCommands, "readable_runs", lambda *_: reading)


def test_each_day_counts_the_runs_that_ended_in_it(ada, monkeypatch):
    days = list(slurm_import.days_before(NOW, 3))
    assert days[-1][1] == NOW
    assert days[0][0] == NOW - timedelta(days=3)
    [run] = runs(1)
    border = int(days[0][1].timestamp())
    over = [
        replace(run, job_id=number, end=border + ends)
        for number, ends in enumerate((-9, 0, 1, 86_400, 86_401))
    ]
    # `sacct` prints a run on each day in which it ran.
    answer(monkeypatch, [*over, replace(run, job_id=9, end=None)])
    done = SlurmImport()
    added = []
    for start, end in days:
        import_day(SlurmCommands(), start, end, now=NOW, done=done)
        added.append(done.added)
    assert added == [2, 4, 5]
    assert (done.known, done.running) == (0, 1)


def test_a_row_that_another_import_adds_meanwhile_is_not_counted(ada, monkeypatch):
    import_runs(runs(7), now=NOW)
    read, answers = slurm_import._known, [set()]
    monkeypatch.setattr(
        slurm_import, "_known", lambda some: answers.pop() if answers else read(some)
    )
    done = import_runs(runs(7, 8), now=NOW)
    assert (done.added, done.known, done.gpu_seconds) == (1, 1, 1200)
    assert LedgerEntry.objects.count() == 2


def test_the_task_stores_how_it_ended_and_gives_back_only_its_own_turn(
    ada, monkeypatch, settings
):
    settings.SLURM_CLUSTER, settings.SLURM_IMPORT = "lab", True
    monkeypatch.setattr("django.utils.timezone.now", lambda: NOW)
    answer(monkeypatch, runs(7), invalid=1, first_invalid="odd")
    assert slurm_tasks.import_slurm() == {"added": 1, "left_out": 0}
    cluster = SlurmCluster.objects.get()
    assert cluster.imported_at == NOW
    assert cluster.import_failure.startswith("lines that cannot be read: 2")
    assert not BROKER.exists(slurm_tasks.TURN)

    answer(monkeypatch, runs(8))
    assert slurm_tasks.import_slurm()["added"] == 1
    cluster.refresh_from_db()
    assert cluster.import_failure == ""

    def silent(*_):
        # The turn has run out, and another worker has it.
        BROKER.set(slurm_tasks.TURN, "another")
        raise SlurmSilent("sacct: no answer in 120 s")

    monkeypatch.setattr(SlurmCommands, "readable_runs", silent)
    slurm_tasks.import_slurm()
    cluster.refresh_from_db()
    assert cluster.import_failure == "sacct: no answer in 120 s"
    assert BROKER.get(slurm_tasks.TURN) == b"another"
    assert slurm_tasks.import_slurm() == {}


def test_the_page_of_the_ledger_shows_an_import(ada, client, settings):
    settings.SLURM_CLUSTER = "lab"
    import_runs(runs(7), now=NOW)
    client.force_login(ada.user)
    page = client.get("/standing/?kind=import").content.decode()
    assert "Slurm lab: job 7" in page
    assert '<option value="import" selected>' in page
    sheet = client.get("/standing/ledger.csv").content.decode()
    assert "Slurm lab: job 7" in sheet
    row = client.get("/api/v1/standing").json()["ledger"][0]
    assert (row["kind"], row["reservation"]) == ("import", None)


def test_a_run_in_a_booking_of_the_portal_is_not_charged_again(ada, settings):
    settings.SLURM_SITE = "lab1"
    made = make_reservation(ada.user, [], start=NOW)
    EngineHold.objects.create(reservation=made)
    done = import_runs(
        [*runs(1, hold=f"gp_lab1_{made.pk}"), *runs(2, hold="gp_lab1_999")], now=NOW
    )
    assert (done.booked, done.added) == (1, 1)
