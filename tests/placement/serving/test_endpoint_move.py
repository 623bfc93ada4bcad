"""A served model moves: started elsewhere, called there, the old place stopped,
reported.
"""

import json
from datetime import timedelta

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone

from placement.models import Endpoint, Job
from placement.protocol.call_refusal import CallRefused
from placement.protocol.job_lifecycle import JobState
from placement.serving import endpoint_move, model_states, model_store
from placement.serving import service as serving
from placement.serving.call_access import call_target
from placement.serving.serving_refusals import CannotMove
from reservations.models import Reservation
from reservations.rules.booking_alerts import INTRUDER
from reservations.rules.lifecycle import State
from telemetry.alerts.service import open_alert
from telemetry.rules.alert_rules import LOST
from tests.factories import make_gpus, make_node, make_reservation
from tests.placement.lab import send_frame, signed_in
from tests.placement.serving.networks import mlp_bytes

pytestmark = pytest.mark.django_db(transaction=True)


class Stage:
    """Two nodes with one Gpu each, Alice's endpoint on the first; no real server."""

    def __init__(self, alice, redis_client, **said):
        self.nodes = [make_node("node-a"), make_node("node-b")]
        self.keys = {}
        for node in self.nodes:
            self.keys[node.name] = f"Node {node.name}:{node.new_token()}"
            node.save()
        self.gpus = [make_gpus(1, node)[0] for node in self.nodes]
        send_frame(redis_client)
        upload = SimpleUploadedFile("mlp.onnx", mlp_bytes())
        now = timezone.now()
        self.file = model_store.store_file(user=alice, upload=upload, now=now)
        end = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=3)
        self.reservation = make_reservation(
            alice, self.gpus[:1], start=now, end=end, state=State.ACTIVE
        )
        self.job = serving.deploy(
            user=alice,
            file_id=self.file.pk,
            said=said,
            reservation_id=self.reservation.pk,
            now=now,
        )

    def run(self, job, state=JobState.RUNNING, **fields):
        Job.objects.filter(pk=job.pk).update(
            state=state, attempt=1, started_at=timezone.now(), **fields
        )
        job.refresh_from_db()

    def says(self, job, state, client, note=""):
        """Report the models' states over the channel, as the node does."""
        models = [
            {"id": row.pk, "state": state, "note": note}
            for row in job.endpoint.models.all()
        ]
        answer = client.put(
            f"/node/v1/jobs/{job.pk}/models",
            json.dumps({"models": models}),
            content_type="application/json",
            headers={"Authorization": self.keys[job.node.name]},
        )
        assert answer.status_code == 204, answer.content


def notices(user):
    return [
        (one.kind, one.detail.get("text", "")) for one in user.notices.order_by("pk")
    ]


def test_an_endpoint_moves_when_asked_and_its_address_stays(
    alice, bob, redis_client, client
):
    stage = Stage(alice, redis_client)
    old, web = stage.job, signed_in(alice)
    stage.run(old)
    stage.says(old, "ready", client)
    row = old.endpoint.models.get()
    assert (row.state, bool(row.ready_at)) == ("ready", True)
    assert signed_in(bob).post(f"/api/v1/serve/{old.pk}/move").status_code == 404

    send_frame(redis_client)
    made = web.post(f"/api/v1/serve/{old.pk}/move")
    assert made.status_code == 201, made.content
    new = Job.objects.get(pk=made.json()["job"])
    assert new.endpoint.gpu == stage.gpus[1]
    assert new.reservation_id != old.reservation_id, "both are held for a moment"
    assert new.reservation.end == old.reservation.end
    assert [one.name for one in new.endpoint.models.all()] == ["mlp"]
    assert (
        b"This endpoint is moving to node-b:0" in web.get(f"/serve/{old.pk}/").content
    )
    again = web.post(f"/api/v1/serve/{old.pk}/move")
    assert (again.status_code, again.json()["code"]) == (409, "endpoint-stays")
    with pytest.raises(Exception, match="add a model"):
        serving.bring(
            user=alice,
            job_id=old.pk,
            file_id=stage.file.pk,
            said={"name": "b"},
            now=timezone.now(),
        )

    now = timezone.now()
    assert endpoint_move.tick(now)["serves_switched"] == 0
    stage.run(new)
    stage.says(new, "loading", client)
    assert endpoint_move.tick(now)["serves_switched"] == 0, "not loaded yet"
    assert call_target(alice, old.pk, "mlp").job == old.pk
    stage.says(new, "ready", client)
    moved = endpoint_move.tick(now)
    assert (moved["serves_switched"], moved["serves_left"]) == (1, 0)
    target = call_target(alice, old.pk, "mlp")
    assert (target.job, target.node) == (new.pk, "node-b"), "the old address works"
    page = web.get(f"/serve/{old.pk}/").content
    assert b"Requests to this address are forwarded there" in page

    after = now + timedelta(seconds=endpoint_move.LEAVE_SECONDS + 1)
    assert endpoint_move.tick(after)["serves_left"] == 1
    old.refresh_from_db()
    assert (old.state, old.reason) == ("stopping", f"its models moved to job #{new.pk}")
    assert Reservation.objects.get(pk=old.reservation_id).state == State.RELEASED
    assert endpoint_move.tick(after)["serves_left"] == 0
    words = f"“serve mlp” moved from node-a:0 to node-b:0, as job {new.pk}. "
    assert ("moved", words + "Its address stays as it is.") in notices(alice)
    # The node refuses reports of another's models, and invalid states.
    assert (
        model_states.record(new.endpoint, [{"id": row.pk, "state": "ready"}], now) == 0
    )
    odd = [{"id": new.endpoint.models.get().pk, "state": "great"}, 7, {"id": [1]}]
    assert model_states.record(new.endpoint, odd, now) == 0
    assert model_states.record(new.endpoint, "x", now) == 0


def test_an_endpoint_on_a_lost_gpu_is_begun_elsewhere_with_the_reservations_rest(
    alice, redis_client, client
):
    stage = Stage(alice, redis_client)
    old, now = stage.job, timezone.now()
    stage.run(old)
    stage.says(old, "ready", client)
    open_alert(rule=LOST, gpu_id=stage.gpus[0].pk, now=now, detail={})
    send_frame(redis_client)
    assert endpoint_move.tick(now)["serves_begun"] == 1
    after = old.endpoint.successors.get()
    assert after.gpu == stage.gpus[1]
    assert Reservation.objects.get(pk=old.reservation_id).state == State.RELEASED
    assert endpoint_move.tick(now)["serves_begun"] == 0, "once"
    # The server died with its Gpu: calls wait for the new one and for nothing else.
    stage.run(old, JobState.FAILED, ended_at=now)
    with pytest.raises(CallRefused):
        call_target(alice, old.pk, "mlp")
    stage.run(after.job)
    assert endpoint_move.tick(now)["serves_switched"] == 1
    assert call_target(alice, old.pk, "mlp").job == after.job_id


def test_what_cannot_move_or_does_not_answer_is_told_once(
    alice, bob, redis_client, client
):
    stage = Stage(alice, redis_client)
    old, now = stage.job, timezone.now()
    stage.run(old)
    upload = SimpleUploadedFile("his.onnx", mlp_bytes(inputs=2))
    his = model_store.store_file(user=bob, upload=upload, now=now)
    serving.set_admits(user=alice, job_id=old.pk, admits="account", now=now)
    serving.bring(user=bob, job_id=old.pk, file_id=his.pk, said={}, now=now)
    stage.says(old, "failed", client, note="no such operator")
    stage.says(old, "failed", client, note="no such operator")
    down = "Model {} of “serve mlp” cannot be served: no such operator."
    assert notices(bob) == [("serve_down", down.format("his"))]
    told = {text for _, text in notices(alice)}
    assert told == {down.format("mlp"), down.format("his")}

    make_reservation(bob, stage.gpus[1:], state=State.ACTIVE)
    open_alert(rule=INTRUDER, gpu_id=stage.gpus[0].pk, now=now, detail={})
    send_frame(redis_client)
    for _ in range(2):
        endpoint_move.tick(now)
    told = [text for kind, text in notices(alice) if "cannot move" in text]
    assert len(told) == 1
    assert "Someone else uses node-a:0" in told[0]
    assert "node-b:0 is booked by" in told[0]
    late = timezone.now() + model_states.SILENT + timedelta(seconds=5)
    assert [endpoint_move.tick(late)["serves_silent"] for _ in range(2)] == [1, 0]
    assert "has not answered for" in notices(bob)[-1][1]
    Endpoint.objects.update(heard_at=late)
    assert endpoint_move.tick(late)["serves_silent"] == 0
    quiet = stage.job.endpoint
    Job.objects.filter(pk=old.pk).update(may_move=False)
    assert list(endpoint_move._troubled_endpoints({quiet.gpu.uuid}, late)) == []
    Job.objects.filter(pk=old.pk).update(state=JobState.STOPPED)
    with pytest.raises(CannotMove, match="it is stopped"):
        endpoint_move.move_now(user=alice, job_id=old.pk, now=now)
