"""The node workers of a machine, and their tokens."""

import pytest

from gpuportal.supervisor import process_table
from gpuportal.supervisor.process_table import NodeProcess
from telemetry import paths
from telemetry.models import Node
from tests.factories import make_node

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def driver(monkeypatch):
    """Set whether there is a driver, and the machine's name."""

    def present(answer: bool) -> None:
        monkeypatch.setattr(process_table, "driver_present", lambda: answer)
        monkeypatch.setattr("platform.node", lambda: "Büro_3.example.org")

    return present


def test_without_a_driver_every_simulated_node_has_a_worker(driver):
    driver(False)
    make_node("sim-b")
    make_node("sim-a")
    make_node("atlas", simulated=False)
    assert process_table.local_nodes("auto") == [
        NodeProcess("sim-a", simulated=True),
        NodeProcess("sim-b", simulated=True),
    ]


def test_with_a_driver_the_machine_is_a_node_of_its_own(driver):
    driver(True)
    make_node("sim-a")
    assert process_table.local_nodes("auto") == [
        NodeProcess("B-ro-3", simulated=False),
        NodeProcess("sim-a", simulated=True),
    ]


def test_a_site_that_refuses_simulated_gpus_starts_none(driver, settings):
    driver(False)
    settings.ALLOW_SIMULATED_GPUS = False
    make_node("sim-a")
    assert process_table.local_nodes("auto") == []


def test_named_nodes_and_none_are_obeyed(driver):
    driver(True)
    make_node("sim-a")
    assert process_table.local_nodes("none") == []
    assert process_table.local_nodes("sim-a, atlas") == [
        NodeProcess("sim-a", simulated=True),
        NodeProcess("atlas", simulated=False),
    ]


def test_a_new_node_is_enrolled_and_its_token_kept_for_the_owner_only():
    process = NodeProcess("atlas", simulated=False)
    path = process_table.token_file(process)
    assert path.stat().st_mode & 0o077 == 0
    token = path.read_text().strip()
    assert Node.objects.get(name="atlas").accepts(token)
    assert process_table.token_file(process).read_text().strip() == token
    path.unlink()


def test_a_token_that_was_lost_or_replaced_is_renewed():
    process = NodeProcess("borea", simulated=True)
    path = process_table.token_file(process)
    for spoil in (path.unlink, lambda: path.write_text("wrong")):
        spoil()
        assert process_table.token_file(process) == path
        assert Node.objects.get(name="borea").accepts(path.read_text().strip())
    path.unlink()


def test_a_node_worker_is_told_where_everything_is(settings):
    make_node("sim-a")
    spec = process_table.node(
        NodeProcess("sim-a", simulated=True), web_url="http://127.0.0.1:8010"
    )
    assert spec.env["GPUPORTAL_BACKEND"] == "simulated"
    assert spec.env["GPUPORTAL_WEB_URL"] == "http://127.0.0.1:8010"
    assert spec.env["GPUPORTAL_ALLOW_SCRIPTS"] == "0"
    assert spec.env["GPUPORTAL_OWN_IDS"] == "0"
    assert "GPUPORTAL_ISOLATION" not in spec.env
    settings.OWN_IDS = True
    spec = process_table.node(NodeProcess("sim-a", simulated=True), web_url="http://x")
    assert spec.env["GPUPORTAL_OWN_IDS"] == "1"
    assert spec.env["GPUPORTAL_ISOLATION"] == "watched"
    assert paths.read_secret("order_key.pub").startswith("-----BEGIN PUBLIC KEY")
    assert not spec.essential


def test_no_worker_sends_heartbeats_to_a_broker_that_may_be_gone():
    """Celery's heartbeat retries without end, and the end of a worker waits for it."""
    specs = [
        *process_table.control(listener_fd=0),
        process_table.node(NodeProcess("sim-a", simulated=True), web_url="http://x"),
    ]
    workers = [spec for spec in specs if "worker" in spec.argv]
    assert [spec.name for spec in workers] == ["worker", "refine", "node-sim-a"]
    for spec in workers:
        assert "--without-heartbeat" in spec.argv, spec.name


def test_symbolic_estimates_have_a_worker_only_where_torch_is(monkeypatch):
    monkeypatch.setattr(process_table, "torch_installed", lambda: False)
    names = [spec.name for spec in process_table.control(listener_fd=0)]
    assert "refine" not in names
    assert names[0] == "web"


def test_a_machine_without_the_library_has_no_driver():
    assert not process_table.driver_present()


def test_nvml_that_answers_is_a_driver(make_sim, monkeypatch):
    sim = make_sim(gpus=2)
    for name in ("LD_LIBRARY_PATH", "NVML_SIM_CONFIG"):
        monkeypatch.setenv(name, sim.env()[name])
    assert process_table.driver_present()
    sim.set(driver="unloaded")
    assert not process_table.driver_present()
