"""A node that will not come back leaves the board, and its history stays."""

from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from reservations.models import Allocation, AuditEntry, Reservation
from reservations.rules.lifecycle import State
from telemetry.inventory.queries import load_cluster
from telemetry.inventory.roster import record_roster
from telemetry.models import Gpu, Node
from telemetry.protocol.errors import NodeUnknown
from telemetry.protocol.hardware import Backend, NodeInfo
from tests.factories import make_gpus, make_node, make_reservation

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def node() -> Node:
    node = make_node("atlas")
    make_gpus(2, node)
    make_gpus(1, make_node("borea"))
    return node


@pytest.fixture
def token(node) -> str:
    token = node.new_token()
    node.save()
    return token


def end_all() -> None:
    Allocation.objects.update(live=False)
    Reservation.objects.update(state=State.ENDED)


def test_a_booked_node_stays_and_the_command_names_the_bookings(node, alice):
    booked = make_reservation(alice, list(node.gpus.all()))
    with pytest.raises(
        CommandError, match=rf"still booked \(reservations {booked.pk}\)"
    ):
        call_command("retire_node", "atlas")
    assert Node.objects.in_service().filter(name="atlas").exists()
    with pytest.raises(CommandError, match="no node is enrolled"):
        call_command("retire_node", "nowhere")


def test_a_retired_node_leaves_the_pages_and_keeps_its_history(
    node, token, alice, omar, client, capsys
):
    booked = make_reservation(alice, list(node.gpus.all()))
    end_all()
    node.simulated = False
    node.save()
    assert node.accepts(token)
    call_command("retire_node", "atlas", "--reason", "its board is dead")
    assert "atlas is retired, with 2 GPUs" in capsys.readouterr().out

    assert list(load_cluster().nodes) == ["borea"]
    client.force_login(omar)
    for address in ("/", "/api/v1/nodes"):
        answer = client.get(address)
        assert answer.status_code == 200
        assert "atlas" not in answer.content.decode()
    assert not Gpu.objects.bookable().filter(node=node).exists()
    # What was booked there is still there to be read.
    assert client.get(f"/reservations/{booked.pk}/").status_code == 200
    node.refresh_from_db()
    assert not node.accepts(token)
    (act,) = AuditEntry.objects.filter(verb="node.retired")
    assert (act.reason, act.detail) == (
        "its board is dead",
        {"name": "atlas", "gpus": 2},
    )
    # A worker that still runs brings nothing back.
    info = NodeInfo(node="atlas", backend=Backend.NVML, gpus=())
    with pytest.raises(NodeUnknown):
        record_roster(info=info, now=timezone.now())


def test_a_node_comes_back_with_a_new_token(node, settings, tmp_path, monkeypatch):
    monkeypatch.setenv("GPUPORTAL_VAR", str(tmp_path))
    settings.VAR_DIR = tmp_path
    call_command("retire_node", "atlas")
    call_command("enroll_node", "atlas", "--renew")
    node.refresh_from_db()
    assert node.accepts((tmp_path / "secret" / "node-atlas.token").read_text())
    assert Gpu.objects.bookable().filter(node=node).count() == 2


def test_a_gpu_that_was_retired_before_stays_retired(
    node, omar, client, settings, tmp_path, monkeypatch
):
    monkeypatch.setenv("GPUPORTAL_VAR", str(tmp_path))
    settings.VAR_DIR = tmp_path
    broken, sound = node.gpus.order_by("index")
    # An admin ticks "retired" of one GPU, later the whole node leaves.
    client.force_login(omar)
    address = f"/admin/telemetry/gpu/{broken.pk}/change/"
    form = client.get(address).context["adminform"].form
    said = {name: form[name].value() for name in form.fields}
    said = {name: value for name, value in said.items() if value not in (None, False)}
    answer = client.post(address, said | {"retired": "on"})
    assert answer.status_code == 302
    call_command("retire_node", "atlas")
    call_command("enroll_node", "atlas", "--renew")

    assert list(Gpu.objects.bookable().filter(node=node)) == [sound]
    broken.refresh_from_db()
    assert broken.retired


def test_the_admin_retires_what_is_free_and_names_what_is_not(
    node, alice, omar, client
):
    start = timezone.now() + timedelta(days=2)
    borea = Node.objects.get(name="borea")
    make_reservation(alice, list(borea.gpus.all()), start, start + timedelta(hours=1))
    client.force_login(omar)
    answer = client.post(
        "/admin/telemetry/node/",
        {"action": "retire", "_selected_action": [node.pk, borea.pk]},
        follow=True,
    )
    said = [str(message) for message in answer.context["messages"]]
    assert said[0].startswith("atlas is retired")
    assert said[1].startswith("borea is still booked")
    retired = Node.objects.filter(retired=True).values_list("name", flat=True)
    assert list(retired) == ["atlas"]
    assert AuditEntry.objects.get(verb="node.retired").actor == omar
