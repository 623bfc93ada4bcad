"""Workspaces over the JSON API: what a token may start, list, open, share and stop."""

from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.utils import timezone

from placement.models import Job, Workspace
from placement.workspace.service import use_code, visit_target
from reservations.accounts.api_tokens import create_token, revoke_token
from reservations.models import CoUser, Reservation
from reservations.rules.errors import NotFound
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_membership, make_node, make_reservation
from tests.reservations.calling import Caller

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def caller():
    def sign_in(user, *scopes):
        row, text = create_token(
            user=user,
            label="t",
            scopes=scopes or ["read", "book", "job"],
            days=1,
            now=timezone.now(),
        )
        made = Caller(token=text)
        made.row = row
        return made

    return sign_in


@pytest.fixture
def held(alice, settings):
    settings.WORKSPACE_ORIGIN = "https://*.ws.gpu.lab"
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    node = make_node("node1")
    return make_reservation(alice, make_gpus(2, node), state=State.ACTIVE)


def start(call, held, app="jupyter-lab", **more):
    return call("POST", "/workspaces", {"reservation": held.pk, "app": app, **more})


def test_a_program_starts_lists_opens_shares_and_stops(caller, alice, bob, held):
    call = caller(alice)
    answer = start(call, held, environment_folder="/home/al/venv", gpus=1)
    assert answer.status_code == 201, answer.body
    made = answer.body
    assert (made["app"], made["state"], made["own"]) == ("jupyter-lab", "queued", True)
    assert start(call, held).body["id"] == made["id"], "the one that runs"
    path = f"/workspaces/{made['id']}"
    assert call("GET", path).body["environment_folder"] == "/home/al/venv"
    assert call("POST", f"{path}/entry").body["code"] == "not-ready"

    Job.objects.update(state=Job.State.RUNNING)
    CoUser.objects.create(reservation=held, user=bob, added_by=alice)
    other = caller(bob)
    assert other("GET", "/workspaces").body["workspaces"] == []
    assert other("POST", f"{path}/entry").status_code == 404
    assert call("POST", f"{path}/share", {"shared": True}).body["shared"]
    (seen,) = other("GET", "/workspaces").body["workspaces"]
    assert (seen["own"], seen["owner"]) == (False, alice.username)
    assert other("POST", f"{path}/stop").status_code == 403
    assert other("POST", f"{path}/share", {"shared": False}).status_code == 403
    assert Job.objects.get().state == Job.State.RUNNING

    assert call("POST", f"{path}/stop").body["state"] == "stopping"
    assert call("GET", f"/workspaces?reservation={held.pk + 1}").body == {
        "workspaces": [],
        "next": None,
    }
    Job.objects.update(state=Job.State.STOPPED)
    assert call("GET", "/workspaces").body["workspaces"] == []
    (over,) = call("GET", "/workspaces?ended=true").body["workspaces"]
    assert over["state"] == "stopped"
    assert call("POST", f"{path}/stop").status_code == 409


def test_an_entry_ends_with_the_token_that_made_it(caller, alice, held):
    call = caller(alice)
    made = start(call, held).body
    Job.objects.update(state=Job.State.RUNNING)
    label = Workspace.objects.get().label
    path = f"/workspaces/{made['id']}/entry"

    def cookie():
        address = urlsplit(call("POST", path).body["address"])
        assert address.netloc == f"w-{label}.ws.gpu.lab"
        code = parse_qs(address.query)["code"][0]
        found = use_code(code, label, now=timezone.now())
        assert use_code(code, label, now=timezone.now()) is None, "it works once"
        return found

    kept, now = cookie(), timezone.now()
    assert visit_target(kept, label, now=now).access.login == alice.username
    with pytest.raises(NotFound):
        visit_target(kept, label, now=call.row.expires_at)
    alice.is_active = False
    alice.save()
    with pytest.raises(NotFound):
        visit_target(kept, label, now=now)
    alice.is_active = True
    alice.save()
    revoke_token(token_id=call.row.pk, user=alice, now=now)
    with pytest.raises(NotFound):
        visit_target(kept, label, now=now)


def test_a_terminal_is_started_and_its_address_is_the_portals(
    caller, alice, bob, held, settings
):
    settings.WORKSPACE_ORIGIN = ""
    call = caller(alice)
    refused = start(call, held)
    assert refused.status_code == 422 and "app" in refused.body["fields"]
    made = start(call, held, app="terminal").body
    path = f"/workspaces/{made['id']}"
    entry = call("POST", f"{path}/entry")
    assert entry.body["until"] is None
    assert entry.body["address"].endswith(f"/reservations/{held.pk}/terminal/")
    # Nobody shares a terminal, whatever its row says.
    CoUser.objects.create(reservation=held, user=bob, added_by=alice)
    assert call("POST", f"{path}/share", {"shared": True}).status_code == 404
    Workspace.objects.update(shared=True)
    assert caller(bob)("GET", "/workspaces").body["workspaces"] == []
    assert call("POST", f"{path}/stop").body["state"] == "stopped"


@pytest.mark.once
@pytest.mark.parametrize(
    ("body", "field"),
    (
        ({"app": "emacs"}, "app"),
        ({"app": "tensorboard"}, "folder"),
        ({"app": "jupyter-lab", "environment_folder": "../x y"}, "environment_folder"),
        ({"app": "jupyter-lab", "gpus": 0}, "gpus"),
        ({"app": "jupyter-lab", "gpus": 3}, "gpu_count"),
        ({"app": "jupyter-lab", "folder": "a\x07"}, "folder"),
        ({"app": "jupyter-lab", "reservation": "x"}, "reservation"),
        ({"app": "jupyter-lab", "command": "rm"}, "command"),
        ({}, "app"),
    ),
)
def test_a_bad_value_is_refused_at_its_field(caller, alice, held, body, field):
    answer = caller(alice)("POST", "/workspaces", {"reservation": held.pk, **body})
    assert answer.status_code == 422 and field in answer.body["fields"], answer.body
    assert not Job.objects.exists()


def test_another_persons_reservation_is_unknown(caller, bob, held):
    assert start(caller(bob), held).status_code == 404


@pytest.mark.once
def test_a_gpu_is_booked_and_the_program_starts_in_one_request(caller, alice, held):
    gpu = make_gpus(1, make_node("node2"))[0]
    make_membership(alice, "second")
    call = caller(alice)
    now = timezone.now()
    body = {"gpu": gpu.pk, "hours": 3, "environment_folder": "/home/al/venv"}
    made = call("POST", "/workspaces/book", body)
    assert made.status_code == 201, made.body
    booked = Reservation.objects.get(pk=made.body["reservation"])
    assert booked.end - now >= timedelta(hours=3)
    assert made.body["app"] == "jupyter-lab" and made.body["node"] == "node2"
    assert call("POST", "/workspaces/book", body).status_code == 409
    wrong = call("POST", "/workspaces/book", {"gpu": gpu.pk, "hours": 25})
    assert "hours" in wrong.body["fields"]
    wrong = call("POST", "/workspaces/book", {"gpu": gpu.pk, "membership": 2**40})
    assert wrong.status_code == 404
