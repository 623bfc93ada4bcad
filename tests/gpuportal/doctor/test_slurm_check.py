"""``manage.py slurm`` as an operator types it, and the lines of its check."""

import json
from dataclasses import replace

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from gpuportal.doctor.diagnosis import CheckState
from gpuportal.doctor.slurm_diagnosis import (
    SlurmBooking,
    SlurmFacts,
    SlurmReading,
    slurm_report,
)
from telemetry.models import SlurmCluster
from telemetry.rules.slurm_use import WholeNodes
from telemetry.slurm.slurm_commands import SlurmVersion, read_version
from telemetry.slurm.slurm_output import SlurmOutputInvalid

NEW = SlurmVersion(25, 5, 3)
GOOD = SlurmFacts(
    cluster="lab",
    version=NEW,
    user="portal",
    user_id=999,
    may_reserve=True,
    config={
        "ClusterName": "lab",
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageTRES": "cpu,mem,node,billing,gres/gpu",
        "PrivateData": "jobs,usage",
        "SlurmUser": "slurm(64030)",
    },
    gpus={"a100": 8},
    gpu_nodes=2,
    admin_level="Operator",
    reading=SlurmReading(age_seconds=4.0, failure="", skipped=()),
)


def lines(facts: SlurmFacts) -> dict[str, tuple[str, str]]:
    return {one.check: (one.state.value, one.fact) for one in slurm_report(facts)}


def config(**values: str) -> SlurmFacts:
    return replace(GOOD, config={**GOOD.config, **values})


def books(**values: object) -> SlurmFacts:
    known = {"agent": "login", "agent_age_seconds": 2.0, "agent_isolates": True}
    return replace(GOOD, booking=SlurmBooking(**(known | values)))


def reads(**values: object) -> SlurmFacts:
    reading = replace(GOOD.reading, imports=True, **values)
    return replace(GOOD, reading=reading)


@pytest.mark.pure
class TestReport:
    def test_the_remedy_has_the_name_of_the_command_here(self):
        facts = replace(reads(import_failure="x"), manage_command="manage.py")
        [found] = [one for one in slurm_report(facts) if one.check == "import"]
        assert found.fix.startswith("Run `manage.py slurm import`")

    def test_a_cluster_with_everything(self):
        assert {state for state, _fact in lines(GOOD).values()} == {"ok"}
        assert lines(GOOD)["GPUs"][1] == "8 on 2 nodes: 8 × a100"

    @pytest.mark.parametrize(
        ("facts", "check", "state", "words"),
        [
            (replace(GOOD, version=SlurmVersion(21, 8)), "version", "problem", "21.08"),
            (replace(GOOD, cluster="hpc"), "cluster", "problem", "hpc"),
            (replace(GOOD, cluster=""), "cluster", "note", "lab"),
            (replace(GOOD, gpus={}), "GPUs", "problem", "no node"),
            (replace(GOOD, gpus={"": 2}), "types", "note", "2 GPUs"),
            (replace(books(), unknown_types=("a100",)), "cards", "note", "of a100"),
            (replace(GOOD, failure="no answer"), "controller", "problem", "no answer"),
            (replace(GOOD, may_reserve=False), "rights", "problem", "jobs"),
            (
                replace(config(PrivateData="none"), may_reserve=False),
                "rights",
                "note",
                "may not reserve",
            ),
            (replace(GOOD, reading=None), "board", "problem", "not read"),
            (books(held=3), "booking", "ok", "Slurm: 3"),
            (books(failures=(("gp_7", "it is taken"),)), "booking", "problem", "gp_7"),
            (
                replace(books(), may_reserve=False),
                "booking",
                "problem",
                "portal may not reserve",
            ),
            (
                replace(books(), strange_holds=("gp_b0b0_1", "gp_b0b0_2")),
                "other reservations",
                "note",
                "know gp_b0b0_1, gp_b0b0_2, and",
            ),
            (books(), "jobs", "ok", "login"),
            (books(agent=""), "jobs", "note", "sbatch"),
            (books(agent_age_seconds=None), "jobs", "problem", "does not report"),
            (
                replace(books(), config=GOOD.config | {"MinJobAge": "5 sec"}),
                "short jobs",
                "note",
                "5 s",
            ),
            (books(agent_isolates=False), "jobs", "problem", "other Unix users"),
            (
                replace(GOOD, version=SlurmVersion(22, 5, 8)),
                "reservations",
                "note",
                "whole nodes only",
            ),
            (
                replace(GOOD, version=SlurmVersion(24, 11, 5)),
                "reservations",
                "note",
                "25.05.3",
            ),
            (
                config(AccountingStorageType="accounting_storage/none"),
                "slurmdbd",
                "note",
                "none",
            ),
            (
                config(AccountingStorageTRES="cpu,mem"),
                "reservations",
                "note",
                "gres/gpu",
            ),
            (
                replace(GOOD, whole_nodes={"gp2": WholeNodes.NO_CORES}),
                "reservations",
                "note",
                "as a whole: gp2. gres.conf does not name the processors",
            ),
            (reads(import_failure="odd line"), "import", "problem", "odd line"),
            (reads(import_age_seconds=9e4), "import", "problem", "ago"),
            (reads(), "import", "note", "every hour"),
            (reads(import_age_seconds=60.0), "import", "ok", "was imported"),
            (
                replace(GOOD, shared_users={"ada": ("alice", "bob")}),
                "Unix user ada",
                "problem",
                "alice, bob",
            ),
        ],
    )
    def test_what_is_missing(self, facts, check, state, words):
        found = lines(facts)[check]
        assert found[0] == state
        assert words in found[1]

    @pytest.mark.parametrize(
        ("level", "storage", "words"),
        [
            ("", "none", "Run the portal as slurm, or set up slurmdbd"),
            ("", "slurmdbd", "sacctmgr add user portal account=ACCOUNT AdminLevel="),
            ("None", "slurmdbd", "sacctmgr modify user portal set AdminLevel=Operator"),
            ("Operator", "slurmdbd", "`id -u portal` must print 999"),
        ],
    )
    def test_a_missing_right_has_the_remedy_of_the_site(self, level, storage, words):
        facts = config(AccountingStorageType=f"accounting_storage/{storage}")
        facts = replace(facts, may_reserve=False, admin_level=level)
        fixes = {one.check: one.fix for one in slurm_report(facts)}
        assert words in fixes["rights"]

    def test_every_problem_has_a_remedy(self):
        bad = replace(
            GOOD,
            version=SlurmVersion(21, 8),
            cluster="hpc",
            gpus={},
            admin_level="",
            may_reserve=False,
            reading=SlurmReading(
                age_seconds=None,
                failure="away",
                skipped=tuple((f"n{i}", "taken") for i in range(5)),
            ),
            shared_users={"ada": ("alice", "bob")},
        )
        found = list(slurm_report(bad))
        problems = [one for one in found if one.state is CheckState.PROBLEM]
        assert len(problems) == 9
        assert all(one.fix for one in problems)
        assert found[-2].fact == "the board leaves out 2 more"

    def test_without_an_answer_it_says_nothing_about_the_cluster(self):
        found = lines(replace(GOOD, failure="no answer", config={}, gpus={}))
        assert list(found) == ["version", "controller", "board"]

    @pytest.mark.parametrize(
        ("text", "version"),
        [
            ("slurm-wlm 22.05.8", "22.05.8"),
            ("slurm 25.11.0-0rc1", "25.11.0"),
            ("slurm 24.05", "24.05.0"),
        ],
    )
    def test_reads_versions(self, text, version):
        assert str(read_version(text)) == version

    def test_refuses_what_is_no_version(self):
        with pytest.raises(SlurmOutputInvalid):
            read_version("command not found")


@pytest.mark.django_db
class TestCommand:
    def test_without_the_commands_it_ends_with_two(self, settings, tmp_path):
        settings.SLURM_FOLDER = str(tmp_path)
        with pytest.raises(CommandError, match="scontrol is not in") as ended:
            call_command("slurm", "check")
        assert ended.value.returncode == 2

    def test_without_the_file_it_ends_with_two(self, settings, fake_scontrol):
        settings.SLURM_CONF = "/nowhere/slurm.conf"
        with pytest.raises(CommandError, match="there is no file") as ended:
            call_command("slurm", "check")
        assert ended.value.returncode == 2

    def test_without_a_controller_it_ends_with_one(
        self, settings, fake_scontrol, capsys
    ):
        settings.SLURM_CLUSTER = "lab"
        SlurmCluster.objects.create(name="lab", read_at=timezone.now())
        with pytest.raises(SystemExit) as ended:
            call_command("slurm", "check", "--json")
        assert ended.value.code == 1
        rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
        assert rows["version"]["fact"] == "Slurm 23.11.4"
        assert rows["controller"]["state"] == "problem"
        assert "Unable to contact slurm controller" in rows["controller"]["fact"]
        assert rows["board"]["state"] == "ok"

    @pytest.mark.parametrize("days", [0, -1, 367])
    def test_days_out_of_range_end_with_two(self, days):
        with pytest.raises(CommandError, match="from 1 to 366") as ended:
            call_command("slurm", "usage", days=days)
        assert ended.value.returncode == 2

    def test_usage_without_accounting_ends_with_two(self, settings, tmp_path):
        settings.SLURM_FOLDER = str(tmp_path)
        self.write_sacct(tmp_path, "echo accounting storage is disabled >&2; exit 1")
        with pytest.raises(CommandError, match="storage is disabled") as ended:
            call_command("slurm", "usage")
        assert ended.value.returncode == 2

    def test_usage_of_each_user_and_account(self, settings, tmp_path, alice, capsys):
        type(alice).objects.filter(pk=alice.pk).update(unix_user="ada")
        settings.SLURM_FOLDER = str(tmp_path)
        start = int(timezone.now().timestamp()) - 7200
        lines = [
            f"lab|{job}|{start}|{start}|{start + 3600}|3600|{user}|vision|gres/gpu=2|"
            for job, user in ((1, "ada"), (2, "ada"), (3, "bo"))
        ]
        text = "\n".join(lines)
        self.write_sacct(
            tmp_path,
            f'echo "$*" >{tmp_path}/arguments\ncat <<END\n{text}\nEND',
        )
        call_command("slurm", "usage", "--days=2", "--json")
        rows = json.loads(capsys.readouterr().out)
        assert [(row["user"], row["person"], row["gpu_hours"]) for row in rows] == [
            ("ada", "Alice", 4.0),
            ("bo", None, 2.0),
        ]
        assert "--duplicates" in (tmp_path / "arguments").read_text()
        call_command("slurm", "usage")
        assert "4.0 GPU-hours       2 runs" in capsys.readouterr().out

    @staticmethod
    def write_sacct(folder, script):
        """A command in the place of sacct, because accounting needs slurmdbd."""
        program = folder / "sacct"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    @pytest.fixture
    def fake_scontrol(self, settings, tmp_path):
        """A command as of a machine whose controller does not answer."""
        program = tmp_path / "scontrol"
        program.write_text(
            '#!/bin/sh\ncase "$1" in --version) echo slurm 23.11.4;;\n'
            "*) echo 'Unable to contact slurm controller' >&2; exit 1;; esac\n"
        )
        program.chmod(0o755)
        settings.SLURM_FOLDER = str(tmp_path)
