"""Jobs in gaps through the doors: form, list, API, client and command."""

import io
import json
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.utils import timezone

from gpuportal.pages import client_files
from placement import tick as placement_tick
from placement.models import Backfill
from reservations.accounts.api_tokens import create_token
from reservations.models import Account
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_membership, make_node, make_reservation
from tests.placement.lab import signed_in
from tests.reservations.calling import Caller

pytestmark = pytest.mark.django_db
CLIENT = client_files.folder() / client_files.ONE_FILE


def command(*words):
    out, err = io.StringIO(), io.StringIO()
    try:
        call_command("job", *map(str, words), stdout=out, stderr=err)
    except SystemExit as ended:
        return ended.code, err.getvalue()
    return 0, out.getvalue()


def test_a_job_in_gaps_is_asked_for_shown_and_stopped_by_every_door(
    alice, bob, carol
) -> None:
    now = timezone.now()
    node = make_node("node-a", last_seen_at=now)
    gpus = make_gpus(2, node)
    page, call = signed_in(alice), Caller(alice)
    form = {
        "where": "gaps",
        "name": "night sweep",
        "what": "burn-in",
        "burn-in.seconds": "30",
        "gap_minutes": "20",
        "gap_hours": "5",
    }
    for wrong, field in (
        ({"gap_minutes": "0"}, "gap_minutes"),
        ({"gap_memory_gib": "4000"}, "gpu_count"),
        ({"gpu_count": "3"}, "gpu_count"),
        ({"sweep": "seconds = 1, 2"}, "sweep"),
        ({"where": "", "reservation": ""}, "reservation"),
    ):
        answer = page.post("/jobs/new/", form | wrong)
        assert answer.status_code == 422 and field in answer.context["form"].errors
    held = make_reservation(
        bob,
        gpus,
        start=now - timedelta(hours=1),
        end=now + timedelta(hours=2),
        state=State.ACTIVE,
    )
    answer = page.post("/jobs/new/", form)
    row = Backfill.objects.get()
    assert answer["Location"] == "/jobs/#gaps"
    assert (row.shortest_seconds, row.total_seconds, row.owner) == (1200, 18000, alice)
    placement_tick.tick(now)
    text = page.get("/jobs/").content.decode()
    assert "night sweep" in text and "needs 1 GPU, and none is free now" in text
    assert "Number 1 of 1 in the queue" in text
    assert "night sweep" not in signed_in(bob).get("/jobs/").content.decode()
    (told,) = call("GET", "/jobs/gaps").body["gaps"]
    assert told["state"] == "queued" and told["place"] == 1
    assert told["likely_at"] == held.end.strftime("%Y-%m-%dT%H:%M:00Z") or (
        told["likely_at"] > held.end.strftime("%Y-%m-%dT%H:%M:%SZ")
    )

    # The API: its own fields, its own refusals; strangers see and stop nothing.
    job = {"name": "by hand", "recipe": "burn-in", "recipe_settings": {"seconds": 5}}
    made = call("POST", "/jobs", job | {"backfill": {"shortest_minutes": 15}})
    assert made.status_code == 201 and made.body["backfill"]["state"] == "queued"
    pk = made.body["backfill"]["id"]
    for body, code in (
        (job | {"backfill": {"shortest_minutes": 0}}, 422),
        (job | {"backfill": {"colour": "red"}}, 422),
        (job | {"backfill": {"membership": 99}}, 404),
        (job | {"backfill": {}, "reservation": held.pk}, 422),
        (job, 422),
    ):
        assert call("POST", "/jobs", body).status_code == code, body
    _, token = create_token(user=alice, label="x", scopes=["job"], days=1, now=now)
    assert Caller(token=token)("POST", "/jobs", made.body).status_code == 403
    assert Caller(carol)("POST", f"/jobs/gaps/{pk}/stop").status_code == 404
    assert call("GET", f"/jobs/gaps/{pk}").body["shortest_seconds"] == 900
    assert call("POST", f"/jobs/gaps/{pk}/stop", {"reason": ""}).status_code == 200
    assert call("POST", f"/jobs/gaps/{pk}/stop").status_code == 409
    assert page.post(f"/jobs/gaps/{row.pk}/stop")["Location"] == "/jobs/#gaps"
    assert Backfill.objects.get(pk=row.pk).state == "stopped"


def test_with_two_memberships_it_must_be_said_who_pays(alice, carol) -> None:
    make_gpus(2, make_node("node-a"))
    call = Caller(alice)
    job = {"name": "by hand", "recipe": "burn-in", "recipe_settings": {"seconds": 5}}
    first = ("submit", "--user", "alice", "--name", "a", "--recipe", "burn-in")
    assert command(*first, "--backfill")[0] == 0
    make_membership(alice, Account.objects.get(name="nlp"))
    assert call("POST", "/jobs", job | {"backfill": {}}).status_code == 409
    common = ("submit", "--user", "alice", "--name", "c", "--recipe", "burn-in")
    status, text = command(*common, "--backfill", "--account", "nlp", "--gpus", 2)
    assert status == 0, text
    assert command(*common)[0] == command(*common, "--backfill", "--node", "x")[0] == 2
    assert "alice         c: waits for a gap" in command("gaps")[1]
    assert json.loads(command("gaps", "--json")[1])[1]["account"] == "Nlp"
    stopped = command("stop", text.strip(), "--as", "alice", "--gaps")
    assert stopped == (0, "stopped\n")
