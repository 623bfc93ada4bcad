"""`manage.py enroll_node` and `manage.py sample`."""

import io
import json
import stat
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from telemetry.models import Node
from tests.telemetry.messages import GIB, gpu_info


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


class TestEnrollNode:
    def test_the_token_is_in_a_file_that_only_its_owner_reads(
        self, db, settings, tmp_path
    ):
        settings.VAR_DIR = tmp_path
        said = run("enroll_node", "node-a", "--simulated")
        path = tmp_path / "secret" / "node-node-a.token"
        assert str(path) in said
        token = path.read_text()
        assert token not in said
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        node = Node.objects.get()
        assert (node.simulated, node.accepts(token)) == (True, True)

    def test_a_second_enrolment_is_refused_and_renew_replaces_the_token(
        self, db, settings, tmp_path
    ):
        settings.VAR_DIR = tmp_path
        run("enroll_node", "node-a")
        path = tmp_path / "secret" / "node-node-a.token"
        old = path.read_text()
        with pytest.raises(CommandError, match="already"):
            run("enroll_node", "node-a")
        assert path.read_text() == old
        run("enroll_node", "node-a", "--renew")
        assert not Node.objects.get().accepts(old)
        assert Node.objects.get().accepts(path.read_text())
        assert list(path.parent.iterdir()) == [path]

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["a/b"], "no name of a node"),
            (["node-z", "--renew"], "no node is enrolled"),
        ],
    )
    def test_what_cannot_be_is_one_clear_line(
        self, db, settings, tmp_path, arguments, why
    ):
        settings.VAR_DIR = tmp_path
        with pytest.raises(CommandError, match=why):
            run("enroll_node", *arguments)

    def test_simulated_nodes_are_refused_where_the_site_takes_none(self, db, settings):
        settings.ALLOW_SIMULATED_GPUS = False
        with pytest.raises(CommandError, match="ALLOW_SIMULATED_GPUS"):
            run("enroll_node", "node-a", "--simulated")
        assert not Node.objects.exists()


@pytest.mark.pure
class TestSample:
    @pytest.fixture
    def simulated(self, settings, tmp_path: Path) -> None:
        settings.VAR_DIR = tmp_path
        (tmp_path / "sim").mkdir()
        state = {
            "gpus": [gpu_info("GPU-0", 0), gpu_info("GPU-1", 1)],
            "fast_links": [],
            "actors": [],
        }
        (tmp_path / "sim" / "node-a.json").write_text(json.dumps(state))

    def test_a_reading_is_a_table_for_people(self, simulated):
        said = run("sample", "--simulated", "--node", "node-a")
        lines = said.splitlines()
        assert lines[0].startswith("node-a")
        assert len(lines) == 4
        assert "80 GiB" in lines[2]

    def test_as_json_it_is_what_nodes_send(self, simulated):
        told = json.loads(run("sample", "--simulated", "--node", "node-a", "--json"))
        assert told["kind"] == "sample"
        assert [gpu["uuid"] for gpu in told["gpus"]] == ["GPU-0", "GPU-1"]
        assert told["gpus"][0]["memory_used_bytes"] < GIB

    def test_without_gpus_it_ends_with_2_and_one_line(self, settings, tmp_path, capsys):
        settings.VAR_DIR = tmp_path
        with pytest.raises(SystemExit) as ended:
            run("sample", "--simulated", "--node", "nobody")
        assert ended.value.code == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
