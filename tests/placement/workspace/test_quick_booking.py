"""One click on the board: book a Gpu from now and start a program on it."""

from datetime import timedelta

import pytest
from django.utils import timezone

from placement.models import Job, Workspace
from placement.workspace.quick_booking import quick_start
from placement.workspace.service import open_workspace
from reservations.models import Reservation
from reservations.rules.lifecycle import State
from telemetry.models import Node
from tests.factories import make_gpus, make_membership, make_node, make_reservation
from tests.placement.lab import signed_in

pytestmark = pytest.mark.django_db(transaction=True)
ADDRESS = "/workspaces/book/"


@pytest.fixture
def gpu(alice, settings):
    settings.WORKSPACE_ORIGIN = "http://*.localhost:8010"
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    return make_gpus(1, make_node("node1"))[0]


def click(user, gpu):
    """Press the button on the board."""
    return signed_in(user).post(ADDRESS, {"gpu": gpu.pk})


def press(user, gpu, **fields):
    """Press the button on the page."""
    return signed_in(user).post(ADDRESS, {"gpu": gpu.pk, "hours": "2", **fields})


def test_one_click_books_and_starts_the_program_of_the_last_time(gpu, alice):
    other = make_gpus(1, make_node("node2"))
    before = make_reservation(alice, other, state=State.ACTIVE)
    open_workspace(
        user=alice,
        reservation_id=before.pk,
        app="marimo",
        environment_folder="/home/al/venv",
        folder="notes",
        now=timezone.now(),
    )
    now = timezone.now()
    answer = click(alice, gpu)
    made = Reservation.objects.exclude(pk=before.pk).get()
    assert answer["Location"] == f"/reservations/{made.pk}/#workspaces"
    assert made.state == State.ACTIVE and made.user == alice
    ahead = made.end - now
    assert timedelta(hours=2) <= ahead + timedelta(seconds=2) < timedelta(hours=3.01)
    job = Workspace.objects.get(job__reservation=made).job
    assert (job.name, job.environment_folder) == ("marimo", "/home/al/venv")
    assert job.recipe_settings["folder"] == "notes"
    assert click(alice, gpu).status_code == 409, "it is taken now"
    assert Reservation.objects.count() == 2


@pytest.mark.once
def test_the_first_time_asks_for_the_environment_before_it_books(gpu, alice):
    answer = click(alice, gpu)
    assert answer.status_code == 200
    assert 'name="environment_folder"' in answer.content.decode()
    assert not Reservation.objects.exists()
    answer = press(alice, gpu, environment_folder="venv/bin")
    assert answer.status_code == 422 and "absolute path" in answer.content.decode()
    assert not Reservation.objects.exists()
    assert press(alice, gpu, environment_folder="/home/al/venv").status_code == 302
    assert Job.objects.get().environment_folder == "/home/al/venv"


@pytest.mark.once
def test_it_ends_before_the_next_booking(gpu, alice, bob):
    soon = timezone.now().replace(minute=0, second=0, microsecond=0)
    soon += timedelta(hours=1)
    make_reservation(bob, [gpu], start=soon, end=soon + timedelta(hours=1))
    assert press(alice, gpu).status_code == 302
    assert Reservation.objects.get(user=alice).end == soon


def test_a_refusal_books_nothing_and_shows_a_form(gpu, alice, settings):
    for fields in ({"hours": "0"}, {"hours": "25"}, {"hours": "x"}):
        answer = press(alice, gpu, **fields)
        assert answer.status_code == 422, fields
        assert 'class="error"' in answer.content.decode()
    make_membership(alice, "robotics")
    answer = press(alice, gpu)
    assert answer.status_code == 409
    page = answer.content.decode()
    assert "Robotics" in page and 'name="membership"' in page
    settings.ALLOW_UNISOLATED_SCRIPTS = False
    answer = press(alice, gpu, membership=alice.memberships.first().pk)
    assert answer.status_code == 409
    assert "not isolated" in answer.content.decode()
    assert not Reservation.objects.exists() and not Job.objects.exists()


@pytest.mark.once
def test_nobody_pays_with_another_persons_membership(gpu, alice, bob, omar):
    theirs = bob.memberships.get().pk
    assert press(alice, gpu, membership=theirs).status_code == 422
    assert press(omar, gpu).status_code == 409, "he is in no group"
    assert signed_in(alice).post(ADDRESS, {"gpu": "99999"}).status_code == 404
    assert signed_in(alice).post(ADDRESS, {"gpu": "' or 1"}).status_code == 404
    assert not Reservation.objects.exists()


@pytest.mark.once
def test_the_board_offers_it_only_where_it_can_work(gpu, alice, settings, client):
    make_node("node2")
    settings.ALLOW_UNISOLATED_SCRIPTS = False
    Node.objects.filter(name="node2").update(isolation=Node.Isolation.ENFORCED)
    assert quick_start(alice) is None
    alice.unix_user = "al"
    alice.save()
    assert quick_start(alice).nodes == ("node2",)
    client.force_login(alice)
    page = client.get("/").content.decode()
    assert 'data-title="JupyterLab" data-nodes="node2"' in page
    settings.WORKSPACE_APPS = ["tensorboard"]
    assert quick_start(alice) is None and press(alice, gpu).status_code == 404
    settings.WORKSPACE_APPS = ["jupyter-lab"]
    settings.WORKSPACE_ORIGIN = ""
    assert quick_start(alice) is None and press(alice, gpu).status_code == 404
    assert 'id="quick"' not in client.get("/").content.decode()
