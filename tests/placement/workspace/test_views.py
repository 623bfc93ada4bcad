"""The panel of workspaces on a reservation's page."""

import pytest

from placement.models import Job, Workspace
from reservations.rules.lifecycle import State
from telemetry.models import Node
from tests.factories import make_gpus, make_node, make_reservation

pytestmark = pytest.mark.django_db


@pytest.fixture
def made(alice, settings):
    settings.WORKSPACE_ORIGIN = "http://*.localhost:8010"
    settings.ALLOW_UNISOLATED_SCRIPTS = False
    return make_reservation(alice, make_gpus(1, make_node("node1")), state=State.ACTIVE)


def test_a_node_that_refuses_own_programs_offers_no_button(client, alice, made):
    client.force_login(alice)

    def page():
        return client.get(f"/reservations/{made.pk}/").content.decode()

    assert "Start JupyterLab" not in page()
    assert "Jobs on node1 are not isolated" in page()
    Node.objects.update(isolation=Node.Isolation.ENFORCED)
    assert "Start JupyterLab" not in page()
    assert "you have no Unix user in the portal" in page()
    alice.unix_user = "al"
    alice.save()
    assert "Start JupyterLab" in page()
    assert "not isolated" not in page()


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


def test_a_failed_workspace_shows_its_last_lines(client, alice, made):
    job = Job.objects.create(
        owner=alice,
        reservation=made,
        node=made.allocations.first().gpu.node,
        name="JupyterLab",
        kind=Job.Kind.WORKSPACE,
        recipe="workspace",
        state=Job.State.FAILED,
        reason="exit code 126",
        last_lines=["gpuportal: jupyter-lab is not installed <here>"],
    )
    Workspace.objects.create(job=job, app="jupyter-lab", label="a" * 24)
    client.force_login(alice)
    shown = client.get(f"/reservations/{made.pk}/").content.decode()
    assert "Exit code 126" in shown
    assert "jupyter-lab is not installed &lt;here&gt;" in shown


def test_the_page_shows_no_panel_to_those_who_cannot_use_it(client, omar, made):
    client.force_login(omar)
    assert (
        'id="workspaces"'
        not in client.get(f"/reservations/{made.pk}/").content.decode()
    )


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
