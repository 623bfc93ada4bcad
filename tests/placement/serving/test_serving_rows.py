"""Files, places and neighbours of served models: services, API, pages, channel."""

import json
from datetime import timedelta

import onnx
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone
from onnx import TensorProto, helper

from placement.jobs import model_files
from placement.jobs.nodes import result_files
from placement.models import Job, ResultFile
from placement.planner.values.errors import LaunchInvalid, SpecInvalid
from placement.protocol.serving_frames import NAME_RULE
from placement.serving import model_store
from placement.serving import service as serving
from placement.serving.serving_refusals import FitsNowhere, ServesAlready
from reservations.models import Reservation
from reservations.rules.lifecycle import State
from telemetry.models import Node
from tests.factories import make_gpus, make_node, make_reservation
from tests.placement.lab import send_frame, signed_in
from tests.placement.serving.networks import mlp_bytes

pytestmark = pytest.mark.django_db(transaction=True)


def changed(change):
    """The tiny network, changed."""
    model = onnx.load_from_string(mlp_bytes())
    change(model)
    return model.SerializeToString()


def outside(model):
    weight = model.graph.initializer[0]
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../../etc/passwd")


def sequence(model):
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [1])
    model.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(kind))


def test_files_that_may_not_be_served_are_refused_with_the_reason(alice):
    refused = {
        "not a path inside the model": changed(outside),
        "never a library": changed(
            lambda model: model.opset_import.add(domain="my.ops", version=1)
        ),
        "functions of its own": changed(
            lambda model: model.functions.add(name="f", domain="")
        ),
        "is not a tensor": changed(sequence),
        "no graph": b"",
        "ZIP": b"PK\x03\x04" + bytes(60),
        "is cut off": mlp_bytes()[:-9],
    }
    for words, data in refused.items():
        upload = SimpleUploadedFile("m.onnx", data or b"\x08\x09")
        with pytest.raises(SpecInvalid, match=words):
            model_store.store_file(user=alice, upload=upload, now=timezone.now())
    with pytest.raises(SpecInvalid, match=r"end in \.onnx"):
        upload = SimpleUploadedFile("m.bin", b"x")
        model_store.store_file(user=alice, upload=upload, now=timezone.now())
    assert list(model_files.folder().iterdir()) == [], "nothing is left of them"


def nobody_is_served_by_root(web, upload):
    """On a site where jobs have their own users, and Alice has none."""
    Node.objects.update(isolation="watched")
    upload.seek(0)
    form = {
        "upload": upload,
        "place": "book",
        "hours": "2",
        "most_batch": "4",
        "deadline_ms": "50",
        "admits": "owner",
    }
    assert b"no Unix user in the portal" in web.post("/serve/new/", form).content
    assert not Job.objects.exists() and not Reservation.objects.exists()
    Node.objects.update(isolation="none")


WRONG = {
    "name": "two words",
    "place": "book",
    "hours": "400",
    "most_batch": "0",
    "deadline_ms": "50",
    "admits": "account",
}


def a_wrong_form_keeps_what_has_arrived(web, upload, alice):
    page = web.post("/serve/new/", WRONG | {"upload": upload})
    assert page.status_code == 422
    assert page.context["form"].errors == {
        "name": [NAME_RULE],
        "hours": ["must be a number of hours from 0.25 to 336"],
        "most_batch": ["must be a whole number from 1 to 256"],
    }
    chosen = f'<option value="{alice.model_files.get().pk}" selected>mlp.onnx</option>'
    assert chosen in page.content.decode(), "it need not be sent again"
    assert b'value="two words"' in page.content and not Job.objects.exists()


def what_a_job_left_is_offered(web, job, stranger):
    left = ResultFile.objects.create(
        job=job,
        attempt=1,
        path="export/mlp.onnx",
        size_bytes=len(mlp_bytes()),
        complete_at=timezone.now(),
    )
    result_files.path_of(left).parent.mkdir(parents=True)
    result_files.path_of(left).write_bytes(mlp_bytes())
    offered = (
        f'<option value="result:{left.pk}">export/mlp.onnx, result of job {job.pk}'
    )
    assert offered.encode() in web.get("/serve/new/").content
    asked = WRONG | {"file": f"result:{left.pk}"}
    page = web.post("/serve/new/", asked)
    file = job.owner.model_files.get()
    assert f'value="{file.pk}" selected'.encode() in page.content, "the same bytes"
    page = signed_in(stranger).post("/serve/new/", asked)
    assert "file" in page.context["form"].errors


def test_a_model_is_booked_served_shown_and_given_to_its_own_node_only(
    alice, carol, redis_client, client
):
    nodes = [make_node("node-a"), make_node("node-b")]
    gpus = [make_gpus(1, node)[0] for node in nodes]
    keys = {node.name: node.new_token() for node in nodes}
    for node in nodes:
        node.save()
    send_frame(redis_client, used_mib={0: 50_000})
    web = signed_in(alice)

    page = web.get("/serve/")
    assert b"Nothing is served yet" in page.content
    assert [one.label for one in page.context["portal"].nav if one.current] == ["Jobs"]
    upload = SimpleUploadedFile("mlp.onnx", mlp_bytes())
    a_wrong_form_keeps_what_has_arrived(web, upload, alice)

    nobody_is_served_by_root(web, upload)
    upload.seek(0)
    page = web.post(
        "/serve/new/",
        {
            "upload": upload,
            "place": "book",
            "hours": "2",
            "most_batch": "4",
            "deadline_ms": "50",
            "admits": "owner",
        },
    )
    assert page.status_code == 302, page.content
    job = Job.objects.get()
    endpoint = job.endpoint
    assert page["Location"] == f"/serve/{job.pk}/"
    assert (endpoint.gpu, endpoint.admits) == (gpus[1], "owner")
    booked = Reservation.objects.get()
    assert booked.user == alice
    assert booked.end - timezone.now() > timedelta(hours=1.9)
    assert [row.name for row in endpoint.models.all()] == ["mlp"]

    assert b"Try it" in web.get(f"/serve/{job.pk}/").content
    assert b"serve mlp" in web.get("/serve/?q=mlp&state=live").content
    assert b"serve mlp" in web.get(f"/jobs/{job.pk}/").content
    assert signed_in(carol).get(f"/serve/{job.pk}/").status_code == 404
    told = web.get(f"/api/v1/serve/{job.pk}").json()
    assert told["models"][0]["deadline_ms"] == 50
    assert web.get("/api/v1/serve").json()["count"] == 1

    what_a_job_left_is_offered(web, job, carol)

    # Only the node that the Job is on may have its models.
    row = endpoint.models.get()
    for name, status in (("node-b", 200), ("node-a", 404)):
        shown = {"HTTP_AUTHORIZATION": f"Node {name}:{keys[name]}"}
        address = f"/node/v1/jobs/{job.pk}/models"
        assert client.get(address, **shown).status_code == status
        answer = client.get(f"{address}/{row.pk}?offset=10", **shown)
        assert answer.status_code == status
        if status == 200:
            assert answer.content == mlp_bytes()[10:]
    assert client.get(f"/node/v1/jobs/{job.pk}/models").status_code == 401


def test_one_server_per_gpu_and_only_where_the_model_fits(alice, redis_client):
    gpu = make_gpus(1, make_node("node-a"))[0]
    send_frame(redis_client)
    now = timezone.now()
    held = make_reservation(alice, [gpu], state=State.ACTIVE)
    upload = SimpleUploadedFile("mlp.onnx", mlp_bytes())
    file = model_store.store_file(user=alice, upload=upload, now=now)

    def deploy(**said):
        return serving.deploy(
            user=alice, file_id=file.pk, said=said, reservation_id=held.pk, now=now
        )

    for said, field in (
        ({"name": "../x"}, "name"),
        ({"most_batch": "many"}, "most_batch"),
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"admits": "all"}, "admits"),
        ({"threads": 10**12}, "threads"),
    ):
        with pytest.raises(LaunchInvalid) as caught:
            deploy(**said)
        assert list(caught.value.fields) == [field]
    job = deploy(name="one")
    with pytest.raises(ServesAlready, match=f"Job {job.pk} "):
        deploy(name="two")
    file.weight_bytes = 200 * 2**30
    file.save()
    other = make_reservation(
        alice, make_gpus(1, make_node("node-b")), state=State.ACTIVE
    )
    send_frame(redis_client)
    with pytest.raises(FitsNowhere, match="are needed"):
        serving.deploy(
            user=alice, file_id=file.pk, said={}, reservation_id=other.pk, now=now
        )
    web = signed_in(alice)
    assert web.delete(f"/api/v1/serve/files/{file.pk}").status_code == 409
    body = json.dumps({"file": 10**9, "hours": 1})
    answer = web.post("/api/v1/serve", body, content_type="application/json")
    assert answer.status_code == 404


def test_a_token_for_one_served_model_is_made_on_the_page(alice):
    web = signed_in(alice)
    form = {"label": "robot", "scopes": ["serve"], "serve_job": "12", "days": "7"}
    assert web.post("/me/tokens/", form).status_code == 200
    assert alice.tokens.get().scopes == ["serve:12"]
    wrong = {**form, "scopes": ["read"]}
    assert web.post("/me/tokens/", wrong).status_code == 422
