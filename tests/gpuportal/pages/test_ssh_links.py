"""The way to a node by ssh on a reservation's page."""

import pytest

from placement.access.ssh_offers import note_offer
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation

pytestmark = pytest.mark.django_db


@pytest.mark.once
def test_an_active_reservation_shows_how_to_open_its_node(
    client, alice, bob, redis_client
):
    made = make_reservation(alice, make_gpus(1, make_node("node1")), state=State.ACTIVE)
    alice.unix_user = "al"
    alice.save()
    host = f"r{made.pk}.node1.gpuportal"
    link = f'href="vscode://vscode-remote/ssh-remote+{host}/home/al"'
    shell = f"python3 gp.py ssh {made.pk} --node node1"

    def page(user):
        client.force_login(user)
        return client.get(f"/reservations/{made.pk}/").content.decode()

    assert shell not in page(alice), "a node that offers no ssh"
    note_offer("node1")
    shown = page(alice)
    assert link in shown and link.replace("vscode:", "cursor:", 1) in shown
    assert shell in shown and "gp.py config-ssh" in shown
    assert shell not in page(bob)
    made.state = State.CONFIRMED
    made.save()
    assert shell not in page(alice), "before its start"
