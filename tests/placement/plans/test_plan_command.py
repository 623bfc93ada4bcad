"""`manage.py plan`: plans from a file or live, and one line for what is wrong."""

import io
import json
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.utils import timezone

from placement.planner.values.plan import PlanSet
from tests.factories import make_reservation
from tests.placement.lab import GIB

GPUS = [
    {"name": "NVIDIA A100 80GB", "free_bytes": 79 * GIB, "link_group": "a"},
    {"name": "NVIDIA A100 80GB", "free_bytes": 40 * GIB, "link_group": "a"},
]


def run(*arguments):
    out = io.StringIO()
    call_command("plan", *arguments, stdout=out)
    return out.getvalue()


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.count("\n") == 1
    return said


@pytest.fixture
def gpus_file(tmp_path):
    path = tmp_path / "gpus.json"
    path.write_text(json.dumps(GPUS))
    return str(path)


class TestAFile:
    """No database is used: the mark for it is missing on purpose."""

    def test_plans_come_as_json_that_is_read_back(self, gpus_file):
        data = json.loads(run("gpt2", "--gpus", gpus_file, "--json"))
        found = PlanSet.from_json(data)

        assert found.best.strategy == "single"
        assert "start" not in data

    def test_plans_come_as_a_table_with_what_lost(self, gpus_file):
        text = run("llama-3-8b", "--gpus", gpus_file, "--wish", "fastest")

        assert "local:0" in text
        assert "no  " in text
        assert "Limited by" in text

    def test_a_config_is_a_source_too(self, gpus_file, tmp_path):
        config = tmp_path / "config.json"
        config.write_text(json.dumps({"model_type": "gpt2", "n_layer": 3}))
        data = json.loads(run(str(config), "--gpus", gpus_file, "--json"))

        assert data["plans"][0]["layer_count"] == 5

    def test_the_wish_decides_the_order(self, gpus_file):
        data = json.loads(
            run("gpt2", "--gpus", gpus_file, "--wish", "fastest", "--json")
        )

        assert data["wish"] == "fastest"
        times = [one["step_seconds"] for one in data["plans"]]
        assert times == sorted(times)

    def test_remedies_and_strategies_are_obeyed(self, gpus_file):
        data = json.loads(
            run(
                *("gpt2-xl", "--gpus", gpus_file, "--batch", "64", "--json"),
                *("--strategy", "single", "--no-checkpointing", "--no-offload"),
            )
        )

        assert {one["strategy"] for one in data["plans"]} == {"single"}
        assert data["plans"][0]["workload"]["checkpointing"] == "none"

    def test_adapters_are_trained_alone(self, gpus_file):
        data = json.loads(
            run("llama-3-8b", "--gpus", gpus_file, "--lora", "8", "--json")
        )

        assert data["plans"][0]["remedies"] == []
        assert len(data["plans"][0]["shards"]) <= 2

    def test_that_nothing_fits_is_an_answer(self, tmp_path):
        path = tmp_path / "small.json"
        path.write_text(json.dumps([{"free_bytes": GIB}]))
        data = json.loads(run("llama-3-70b", "--gpus", str(path), "--json"))

        assert data["plans"] == []
        assert data["refusals"][0]["missing_bytes"] > 0

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("nosuch",), "source"),
            (("gpt2", "--batch", "0"), "batch"),
            (("gpt2", "--max-gpus", "0"), "max-gpus"),
            (("gpt2", "--at", "2030-01-01T00:00"), "at"),
            (("gpt2", "--hours", "3"), "hours"),
            (("gpt2", "--lora", "-1"), "lora_rank"),
        ],
    )
    def test_bad_input_is_one_line(self, gpus_file, capsys, arguments, words):
        assert words in refused(capsys, *arguments, "--gpus", gpus_file)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{", "is not JSON"),
            ("[]", "at least one"),
            ('[{"free_bytes": -3}]', "gpus[0].free_bytes"),
            ("[" * 100_000, "is not JSON"),
        ],
    )
    def test_a_bad_file_is_one_line(self, tmp_path, capsys, text, words):
        path = tmp_path / "bad.json"
        path.write_text(text)

        assert words in refused(capsys, "gpt2", "--gpus", str(path))

    def test_a_file_that_is_not_there_is_one_line(self, capsys):
        assert "cannot be read" in refused(capsys, "gpt2", "--gpus", "/nosuch.json")


@pytest.mark.django_db
class TestLive:
    """The portal's own Gpus and its calendar."""

    @pytest.mark.once
    def test_the_portals_gpus_are_planned_for_now(self, gpus):
        data = json.loads(run("gpt2", "--json"))

        assert data["plans"][0]["shards"][0]["gpu_label"].startswith("node-")
        assert data["earliest"]["same"]

    @pytest.mark.once
    def test_the_earliest_start_is_after_what_others_booked(self, gpus, bob):
        now = timezone.now()
        end = now + timedelta(hours=6)
        make_reservation(bob, gpus, now, end)
        data = json.loads(run("gpt2", "--wish", "soonest", "--json"))

        assert data["plans"][0]["wait_seconds"] > 5 * 3600
        assert data["start"] >= end.isoformat()[:16]

    @pytest.mark.once
    def test_bookings_of_a_user_are_theirs(self, gpus, alice):
        now = timezone.now()
        make_reservation(alice, gpus, now, now + timedelta(hours=9))

        assert json.loads(run("gpt2", "--json"))["plans"] == []
        mine = json.loads(run("gpt2", "--json", "--user", alice.username))
        assert mine["plans"]

    @pytest.mark.once
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("--at", "soon"), "at"),
            (("--at", "2030-13-45T00:00"), "at"),
            (("--hours", "0"), "hours"),
            (("--hours", "nan"), "hours"),
            (("--user", "nobody-here"), "user"),
        ],
    )
    def test_bad_input_is_one_line(self, gpus, capsys, arguments, words):
        assert words in refused(capsys, "gpt2", *arguments)
