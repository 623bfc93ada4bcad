"""The page of a terminal, without a node: what it offers, and to whom."""

import pytest
from django.utils import timezone

from placement.models import Job, Workspace
from placement.workspace.service import open_workspace
from reservations.models import CoUser, Reservation
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation
from tests.placement.lab import signed_in

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def held(alice, settings):
    """Alice's active reservation of two Gpus."""
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    return make_reservation(alice, make_gpus(2, make_node("node1")), state=State.ACTIVE)


def address(held, more=""):
    return f"/reservations/{held.pk}/terminal/{more}"


@pytest.mark.once
def test_one_press_starts_one_terminal_and_another_press_stops_it(held, alice):
    browser = signed_in(alice)
    for _ in range(2):
        answer = browser.post(address(held))
        assert (answer.status_code, answer["Location"]) == (302, address(held))
    made = Workspace.objects.get()
    assert (made.app, made.job.name, made.job.owner) == ("terminal", "Terminal", alice)
    page = browser.get(address(held))
    assert "queued" in page.content.decode()
    assert browser.post(address(held, "stop/")).status_code == 302
    made.job.refresh_from_db()
    assert made.job.state == Job.State.STOPPED
    assert "Start the terminal" in browser.get(address(held)).content.decode()
    assert browser.post(address(held, "stop/")).status_code == 404


def test_a_co_user_has_another_terminal_and_nobody_else_has_one(
    held, alice, bob, carol, omar
):
    CoUser.objects.create(reservation=held, user=bob, added_by=alice)
    signed_in(alice).post(address(held))
    page = signed_in(bob).get(address(held)).content.decode()
    assert "Start the terminal" in page
    assert signed_in(bob).post(address(held, "stop/")).status_code == 404
    assert signed_in(bob).post(address(held)).status_code == 302
    owners = Workspace.objects.values_list("job__owner__username", flat=True)
    assert set(owners) == {"alice", "bob"}
    for other in (carol, omar):
        browser = signed_in(other)
        for answer in (
            browser.get(address(held)),
            browser.post(address(held)),
            browser.post(address(held, "stop/")),
        ):
            assert answer.status_code == 404
    assert Workspace.objects.count() == 2


def test_a_wrong_node_and_one_without_isolation_are_refused(held, alice, settings):
    browser = signed_in(alice)
    too_long = browser.post(address(held), {"node": "n" * 65})
    assert too_long.status_code == 422
    assert browser.post(address(held), {"node": "other"}).status_code == 409
    settings.ALLOW_UNISOLATED_SCRIPTS = False
    page = browser.get(address(held)).content.decode()
    assert "Start the terminal" not in page
    assert "separate Unix user" in page
    assert browser.post(address(held)).status_code == 409
    assert not Workspace.objects.exists()


@pytest.mark.once
def test_a_reservation_that_is_over_leads_to_its_page(held, alice):
    Reservation.objects.update(state=State.ENDED)
    answer = signed_in(alice).get(address(held))
    assert answer["Location"] == f"/reservations/{held.pk}/"
    link = f'href="{address(held)}"'
    assert link not in signed_in(alice).get(answer["Location"]).content.decode()


@pytest.mark.once
def test_a_terminal_is_no_workspace_to_enter_or_share(held, alice, settings):
    settings.WORKSPACE_ORIGIN = "http://*.localhost:8010"
    made = open_workspace(
        user=alice, reservation_id=held.pk, app="terminal", now=timezone.now()
    )
    browser = signed_in(alice)
    for act in ("enter", "share"):
        assert browser.post(f"/workspaces/{made.pk}/{act}/").status_code == 404
    page = browser.get(f"/reservations/{held.pk}/").content.decode()
    assert f'href="{address(held)}"' in page
    assert f"/workspaces/{made.pk}/" not in page
    policy = browser.get(address(held))["Content-Security-Policy"]
    # The header's directives have no fixed order.
    assert "script-src 'self'" in policy.split("; ") and "unsafe" not in policy
