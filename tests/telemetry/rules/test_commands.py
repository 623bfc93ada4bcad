"""`manage.py enroll_node` and `manage.py sample`."""

import io
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from telemetry.agent import terminal_view
from telemetry.management.commands import sample
from telemetry.models import Node
from telemetry.protocol.hardware import Backend, GpuInfo, NodeInfo
from telemetry.protocol.sample import GpuReading, NodeSample, ProcessReading
from telemetry.protocol.units import UNKNOWN
from tests.nvml_sim.nvmlsim import Sim
from tests.telemetry.agent.children import BASE_DIR
from tests.telemetry.messages import GIB, gpu_info


class Terminal(io.StringIO):
    """Somebody looks at it."""

    def isatty(self) -> bool:
        return True


def run(*arguments: str, out: io.StringIO | None = None) -> str:
    out = out or io.StringIO()
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

    def test_it_makes_the_order_key_and_says_what_to_copy_where(
        self, db, settings, tmp_path, monkeypatch
    ):
        """The first job of a node needs the key, long before there is an order."""
        monkeypatch.setenv("GPUPORTAL_VAR", str(tmp_path))
        settings.VAR_DIR = tmp_path
        for words in (["node-a"], ["node-a", "--renew"]):
            said = run("enroll_node", *words)
            for made, wanted in (
                ("node-node-a.token", "node.token"),
                ("order_key.pub", "order_key.pub"),
            ):
                path = tmp_path / "secret" / made
                assert path.read_text()
                assert f"{path}  ->  /etc/gpuportal/{wanted}" in said
        assert "BEGIN PUBLIC KEY" in (tmp_path / "secret/order_key.pub").read_text()

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
        assert not list(path.parent.glob(".*"))

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["a/b"], "not a valid node name"),
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

    def test_colour_is_for_terminals_and_those_who_ask(self, simulated, monkeypatch):
        arguments = ("sample", "--simulated", "--node", "node-a")
        assert "\x1b[" not in run(*arguments)
        assert "\x1b[1mnode-a\x1b[0m" in run(*arguments, "--force-color")
        assert "\x1b[" in run(*arguments, out=Terminal())
        assert "\x1b[" not in run(*arguments, "--no-color", out=Terminal())
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b[" not in run(*arguments, out=Terminal())

    def test_a_driver_that_hangs_at_its_start_is_one_line(self, capsys, monkeypatch):
        let_go = threading.Event()
        monkeypatch.setattr(sample, "make_probe", lambda *_, **__: let_go.wait(30))
        monkeypatch.setattr(sample, "OPEN_WITHIN_SECONDS", 0.2)
        try:
            with pytest.raises(SystemExit) as ended:
                run("sample")
        finally:
            let_go.set()
        assert ended.value.code == 2
        assert "does not answer" in capsys.readouterr().err


MANAGE = [sys.executable, "manage.py", "sample"]


@pytest.mark.pure
class TestSampleOfADriver:
    """The command as people type it, over the simulated driver."""

    def sample(self, sim: Sim, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*MANAGE, "--node", "atlas", *arguments],
            env=sim.env(),
            cwd=BASE_DIR,
            capture_output=True,
            text=True,
        )

    def test_everything_one_looks_for_is_on_the_screen(self, make_sim):
        sim = make_sim(4, model="a100", util="93", temp="71", power="350")
        sim.add("gpu 0", "proc", f"pid:{os.getpid()} mem:10GiB sm:70")
        sim.set("gpu 1", lost="yes")
        sim.set("gpu 2", delay__util="forever", name=r"caf\xE9")
        sim.set("gpu 3", throttle="sw_thermal", ecc_uncorrected="3", util="na")
        done = self.sample(sim)
        assert done.returncode == 0, done.stderr
        head, _titles, first, process, *rest = done.stdout.splitlines()
        assert head.startswith("atlas  3 GPUs  driver 570.124.06  CUDA 12.8")
        for part in ("[0]", "93 %", "10.0 / 80 GiB", "71 °C", "350 / 400 W", "MHz"):
            assert part in first
        for part in (f"pid {os.getpid()}", "10 GiB", "70 %", "since"):
            assert part in process
        text = "\n".join(rest)
        assert "hung: the driver does not answer for it" in text
        assert "lost: the driver lists it and gives no name" in text
        assert "slowed down: sw thermal" in text
        assert "3 uncorrected memory errors" in text
        assert max(map(len, done.stdout.splitlines())) < 200

    def test_without_a_driver_it_ends_with_2_and_one_line(self, make_sim):
        sim = make_sim(1)
        sim.set("", driver="unloaded")
        done = self.sample(sim)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "nvml: the NVIDIA driver is not loaded\n"

    def test_watching_goes_on_through_a_driver_reload(self, make_sim):
        sim = make_sim(1, model="t4")
        watching = subprocess.Popen(
            [*MANAGE, "--watch", "--json"],
            env=sim.env(),
            cwd=BASE_DIR,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert _state(watching) == "ok"
            sim.set("", driver_generation="1", stale_error="UNINITIALIZED")
            assert _state(watching, until="error") == "error"
            assert _state(watching, until="ok") == "ok"
        finally:
            watching.kill()
            watching.communicate()


def _state(watching: subprocess.Popen[str], *, until: str = "") -> str:
    for _ in range(8):
        state = json.loads(watching.stdout.readline())["gpus"][0]["state"]
        if until in ("", state):
            return state
    raise AssertionError(f"never {until}")


class TestLines:
    """What the screen never does with what machines say."""

    INFO = NodeInfo("n", Backend.NVML, (GpuInfo("G", 0, "T4", "T4", 16 * GIB),))

    def lines(self, **reading: object) -> str:
        gpu = GpuReading(uuid="G", **reading)
        shown = terminal_view.lines(self.INFO, NodeSample("n", 100.0, (gpu,)))
        return "\n".join(shown)

    def test_what_the_card_cannot_say_is_a_dash_and_never_nought(self):
        (row,) = [x for x in self.lines().splitlines() if x.startswith("[0]")]
        assert row.count(UNKNOWN) == 6
        assert " 0" not in row

    def test_a_name_cannot_command_the_terminal(self):
        evil = ProcessReading(pid=1, user="a\x1b[2J", command="x\u202ey\x07")
        assert "a?[2J  x?y?" in self.lines(processes=(evil,))

    def test_a_crowd_is_counted_and_not_listed(self):
        crowd = tuple(ProcessReading(pid=n) for n in range(1, 40))
        assert "and 27 more processes" in self.lines(processes=crowd)
