"""A model from its file to its answers, through everything that is there in between."""

import json
import struct
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone

from placement.services import model_store, serving
from reservations.domain.lifecycle import State
from reservations.services.tokens import create_token
from tests.factories import make_gpus, make_node, make_reservation
from tests.placement import nodes
from tests.placement.lab import send_frame
from tests.placement.serving.kitchen import Kitchen, expected, mlp_bytes, token_of

pytestmark = pytest.mark.django_db(transaction=True)


def ask(url, token="", body=None, headers=None, method=None):
    """One request: (status, headers, body). Redirects are not followed."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    asked = urllib.request.Request(url, data=data, method=method)
    for name, value in {
        "Content-Type": "application/json",
        **({"Authorization": f"Bearer {token}"} if token else {}),
        **(headers or {}),
    }.items():
        asked.add_header(name, value)
    try:
        with urllib.request.urlopen(asked, timeout=40) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def upload(user, data, name="mlp.onnx"):
    file = SimpleUploadedFile(name, data)
    return model_store.store_file(user=user, upload=file, now=timezone.now())


def token(user, *scopes):
    return create_token(
        user=user, label="t", scopes=scopes, days=1, now=timezone.now()
    )[1]


@pytest.fixture
def kitchen(node, redis_client, live_asgi, alice, request):
    """Node node1 with two Gpus, its worker running against the live site."""
    row = make_node("node1")
    gpus = make_gpus(2, row)
    settings = nodes.make_settings(
        node.node_dir.parent, redis_url=node.redis_url, web_url=live_asgi
    )
    token_of(row, settings)
    nodes.write_simulation(settings, tuple(gpu.uuid for gpu in gpus))
    send_frame(redis_client, used_mib={0: 60_000})
    made = Kitchen(settings, redis_client)
    made.gpus = gpus
    yield made
    made.close()


def test_a_model_is_uploaded_placed_and_asked_through_the_portal(
    kitchen, live_asgi, alice, bob, carol
):
    data = mlp_bytes()
    file = upload(alice, data)
    reservation = make_reservation(alice, kitchen.gpus, state=State.ACTIVE)
    job = serving.deploy(
        user=alice, file_id=file.pk, said={"name": "mlp", "deadline_ms": "5000"},
        reservation_id=reservation.pk, now=timezone.now(),
    )  # fmt: skip
    mine = token(alice, f"serve:{job.pk}")
    base = f"{live_asgi}/serve/{job.pk}/v2"
    assert ask(f"{base}/health/ready", mine)[0] == 503, "not begun"
    kitchen.order(job)
    kitchen.until_running(job)

    end = time.monotonic() + 30
    while (answer := ask(f"{base}/models/mlp/ready", mine))[0] != 200:
        assert time.monotonic() < end, answer[2]
        time.sleep(0.1)
    status, _, body = ask(f"{base}/models/mlp", mine)
    assert json.loads(body)["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 4]}
    ]

    rows = [[1.0, 2.0, 3.0, 4.0], [0.5, 0.0, -1.0, 2.0]]
    asked = {"id": "q", "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": rows}
    ]}  # fmt: skip
    status, headers, body = ask(f"{base}/models/mlp/infer", mine, asked)
    assert status == 200, body
    said = json.loads(body)
    assert said["id"] == "q"
    assert said["outputs"][0]["shape"] == [2, 3]
    right = expected(data, rows)
    assert np.allclose(said["outputs"][0]["data"], right.ravel(), atol=1e-5)
    assert said["parameters"]["predicted_ms"] > 0
