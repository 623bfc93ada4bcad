"""The panel of workspaces on a reservation's page."""

import pytest
from django.utils import timezone

from placement.jobs.nodes import command_queue, event_intake
from placement.jobs.tick import job_tick
from placement.models import Job, Workspace
from placement.planner.launch.recipes import runs_without_gpus
from placement.protocol.events import JobEventKind, JobFact
from reservations.rules.lifecycle import State
from telemetry.models import Node
from telemetry.protocol.codec import to_plain
from tests.factories import make_gpus, make_node, make_reservation

pytestmark = pytest.mark.django_db


@pytest.fixture
def made(alice, settings):
    settings.WORKSPACE_ORIGIN = "http://*.localhost:8010"
    settings.ALLOW_UNISOLATED_SCRIPTS = False
    return make_reservation(alice, make_gpus(1, make_node("node1")), state=State.ACTIVE)


@pytest.mark.once
def test_a_node_that_refuses_own_programs_offers_no_button(client, alice, made):
    client.force_login(alice)

    def page():
        return client.get(f"/reservations/{made.pk}/").content.decode()

    assert "Start JupyterLab" not in page()
    assert "Jobs on node1 are not isolated" in page()
    Node.objects.update(isolation=Node.Isolation.ENFORCED)
    assert "Start JupyterLab" not in page()
    assert "you have no Unix user in the portal" in page()
    step = "Work in a notebook or an editor:"
    assert step not in page()
    alice.unix_user = "al"
    alice.save()
    assert "Start JupyterLab" in page() and step in page()
    assert "not isolated" not in page()


@pytest.mark.once
def test_one_node_of_two_that_accepts_own_programs_is_enough(client, alice, settings):
    settings.WORKSPACE_ORIGIN = "http://*.localhost:8010"
    settings.ALLOW_UNISOLATED_SCRIPTS = False
    gpus = make_gpus(1, make_node("node1")) + make_gpus(1, make_node("node2"))
    both = make_reservation(alice, gpus, state=State.ACTIVE)
    Node.objects.filter(name="node2").update(isolation=Node.Isolation.ENFORCED)
    alice.unix_user = "al"
    alice.save()
    client.force_login(alice)
    shown = client.get(f"/reservations/{both.pk}/").content.decode()
    assert "Start JupyterLab" in shown


@pytest.mark.once
def test_a_failed_workspace_shows_its_last_lines(client, alice, made):
    Node.objects.update(isolation=Node.Isolation.ENFORCED)
    alice.unix_user = "al"
    alice.save()

    def make(label, **fields):
        job = Job.objects.create(
            owner=alice,
            reservation=made,
            node=made.allocations.first().gpu.node,
            name="JupyterLab",
            kind=Job.Kind.WORKSPACE,
            recipe="workspace",
            **fields,
        )
        Workspace.objects.create(job=job, app="jupyter-lab", label=label * 24)

    make(
        "a",
        state=Job.State.FAILED,
        reason="exit code 126",
        last_lines=["gpuportal: jupyter-lab is not installed <here>"],
    )
    client.force_login(alice)

    def shown():
        return client.get(f"/reservations/{made.pk}/").content.decode()

    # What the first process says is enough, once.
    assert "<span>jupyter-lab is not installed &lt;here&gt;</span>" in shown()
    assert "End of the log" not in shown() and "Exit code 126" not in shown()
    assert "Start another program" not in shown(), "this one does not run"
    Job.objects.update(last_lines=["Traceback", "gpuportal: it is gone"])
    assert "Exit code 126" in shown() and "Traceback\ngpuportal: it is gone" in shown()
    make("b", state=Job.State.RUNNING)
    assert "Start another program" in shown()


@pytest.mark.once
def test_the_page_shows_no_panel_to_those_who_cannot_use_it(client, omar, made):
    client.force_login(omar)
    assert (
        'id="workspaces"'
        not in client.get(f"/reservations/{made.pk}/").content.decode()
    )


@pytest.mark.once
def test_the_panel_costs_a_fixed_number_of_queries(
    client, alice, made, django_assert_max_num_queries
):
    Node.objects.update(isolation=Node.Isolation.ENFORCED)
    alice.unix_user = "al"
    alice.save()
    client.force_login(alice)
    client.get(f"/reservations/{made.pk}/")
    with django_assert_max_num_queries(26):
        shown = client.get(f"/reservations/{made.pk}/").content.decode()
    assert "Start JupyterLab" in shown


@pytest.fixture
def press(client, alice, made):
    """Start a program on the page, as Alice does."""
    Node.objects.update(isolation=Node.Isolation.ENFORCED)
    alice.unix_user = "al"
    alice.save()
    client.force_login(alice)

    def send(app, **fields):
        return client.post(
            f"/reservations/{made.pk}/workspaces/", {"app": app, **fields}
        )

    return send


def test_tensorboard_runs_beside_a_workspace_that_has_every_gpu(press, made):
    """It neither waits for Gpus, nor takes them, nor checks its owner in."""
    now = timezone.now()
    assert press("jupyter-lab").status_code == 302
    assert press("tensorboard", folder="runs", gpu_count="1").status_code == 302
    assert press("marimo", folder="/data/notes").status_code == 302
    for _ in range(2):
        job_tick.tick(now)
    jobs = {one.app: one.job for one in Workspace.objects.select_related("job")}
    assert {app: job.state for app, job in jobs.items()} == {
        "jupyter-lab": Job.State.STARTING,
        "tensorboard": Job.State.STARTING,
        "marimo": Job.State.QUEUED,
    }
    board = jobs["tensorboard"]
    assert (board.gpu_count, board.gpu_ids) == (0, [])
    assert board.recipe_settings["folder"] == "runs"
    assert "folder" not in jobs["jupyter-lab"].recipe_settings
    assert str(jobs["jupyter-lab"].pk) in jobs["marimo"].reason
    order = command_queue.start_order(board, now=now)
    assert order.gpu_uuids == ()
    fact = JobFact(board.pk, 1, JobEventKind.STARTED, now.timestamp(), key=board.key)
    assert event_intake.record_fact(
        "node1", {"v": 1, "kind": "job", **to_plain(fact)}, now
    )
    made.refresh_from_db()
    assert made.checked_in_at is None


@pytest.mark.once
@pytest.mark.parametrize(
    ("app", "fields", "told"),
    (
        ("tensorboard", {}, "TensorBoard needs the folder of its logs"),
        ("tensorboard", {"folder": "  "}, "TensorBoard needs the folder of its logs"),
        ("marimo", {"folder": "a\x07b"}, "Control characters are not allowed."),
        ("marimo", {"folder": "a" * 301}, '<p class="error">'),
        ("emacs", {"folder": "a"}, "jupyter-lab, code-server, marimo, tensorboard"),
    ),
)
def test_a_bad_folder_is_refused_at_its_field(press, app, fields, told):
    answer = press(app, **fields)
    assert answer.status_code == 422
    assert told in answer.content.decode()
    assert not Job.objects.exists()


def test_only_a_program_without_gpus_may_name_none(press):
    assert press("jupyter-lab", gpu_count="0").status_code == 422
    settings = {"app": "tensorboard", "folder": "runs"}
    assert runs_without_gpus("workspace", settings)
    assert not runs_without_gpus("burn-in", settings)
    assert not runs_without_gpus("workspace", {"app": "marimo"})
    assert not runs_without_gpus(None, settings)
