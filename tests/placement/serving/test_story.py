"""A model from its file to its answers, through all layers in between."""

import html
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from django.conf import settings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.utils import timezone

from placement.agent.job_folder import job_folders
from placement.agent.serving.model_limits import NOTE_VARIABLE, RunNote
from placement.jobs import service as jobs
from placement.models import ServedModel
from placement.planner.values.errors import LaunchInvalid
from placement.protocol.serving_frames import MOST_REQUEST_BYTES
from placement.serving import endpoint_move, model_store
from placement.serving import service as serving
from placement.serving.serving_refusals import FileServed
from reservations.accounts.api_tokens import create_token
from reservations.rules.errors import NotAllowed, NotFound
from reservations.rules.lifecycle import State
from telemetry.proc_stat import descendants
from tests.factories import make_gpus, make_node, make_reservation
from tests.placement import nodes
from tests.placement.lab import send_frame, signed_in
from tests.placement.serving.archives import zipped
from tests.placement.serving.hostile import loop_bytes
from tests.placement.serving.kitchen import Kitchen, token_of
from tests.placement.serving.networks import expected, mlp_bytes, outside_files

pytestmark = pytest.mark.django_db(transaction=True)


def ask(url, token="", body=None, headers=None, method=None):
    """Send one request. Return (status, headers, body). Redirects are not followed."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    asked = urllib.request.Request(url, data=data, method=method)
    for name, value in {
        "Content-Type": "application/json",
        **({"Authorization": f"Bearer {token}"} if token else {}),
        **(headers or {}),
    }.items():
        asked.add_header(name, value)
    try:
        with urllib.request.urlopen(asked, timeout=nodes.PATIENCE_SECONDS) as answer:
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
    here = nodes.make_settings(
        node.node_dir.parent, redis_url=node.redis_url, web_url=live_asgi
    )
    token_of(row, here)
    nodes.write_simulation(here, tuple(gpu.uuid for gpu in gpus))
    send_frame(redis_client, used_mib={0: 60_000})
    made = Kitchen(here, redis_client)
    made.gpus = gpus
    yield made
    made.close()


@pytest.fixture
def other_web(transactional_db):
    """A second web process on the same database and broker, which has no tunnel."""
    known = connection.settings_dict
    place = f"sqlite:///{known['NAME']}"
    if connection.vendor == "postgresql":
        who = f"{known['USER']}:{known['PASSWORD']}" if known["USER"] else ""
        host = f"{known['HOST']}:{known['PORT']}" if known["PORT"] else known["HOST"]
        place = f"postgres://{who}@{quote(host, safe=':')}/{known['NAME']}"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        web = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "uvicorn",
                "gpuportal.asgi:application",
                "--lifespan",
                "off",
                "--fd",
                str(listener.fileno()),
                "--log-level",
                "warning",
            ],
            env=os.environ | {"DATABASE_URL": place, "REDIS_URL": settings.REDIS_URL},
            pass_fds=[listener.fileno()],
        )
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        web.terminate()
        web.wait(nodes.PATIENCE_SECONDS)


def infer_body(rows, datatype="FP32", **more):
    shape = [len(rows), len(rows[0])]
    data = [one for row in rows for one in row]
    one = {"name": "x", "datatype": datatype, "shape": shape, "data": data}
    return {"inputs": [one], **more}


def binary_body(rows):
    """The binary form, with the answer wanted in it too."""
    raw = np.asarray(rows, dtype="<f4").tobytes()
    one = {
        "name": "x",
        "datatype": "FP32",
        "shape": [len(rows), len(rows[0])],
        "parameters": {"binary_data_size": len(raw)},
    }
    head = {"inputs": [one], "parameters": {"binary_data_output": True}}
    text = json.dumps(head).encode()
    headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(text)),
    }
    return text + raw, headers


def until_ready(url, shown):
    end = time.monotonic() + nodes.PATIENCE_SECONDS
    while (answer := ask(f"{url}/ready", shown))[0] != 200:
        assert time.monotonic() < end, answer[2]
        time.sleep(0.1)


def raw_request(address, text):
    """Send raw bytes of an invalid request. Return the status line."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as line:
        line.sendall(text.encode())
        return line.recv(4096).decode("latin-1").split("\r\n")[0]


ROWS = [[1.0, 2.0, 3.0, 4.0], [0.5, 0.0, -1.0, 2.0]]


def test_a_model_is_uploaded_placed_asked_shared_moved_and_stopped(
    kitchen, live_asgi, other_web, alice, bob, carol
):
    data = mlp_bytes()
    file = upload(alice, data)
    assert upload(alice, data).pk == file.pk, "the same bytes are kept once"
    reservation = make_reservation(alice, kitchen.gpus, state=State.ACTIVE)
    job = serving.deploy(
        user=alice,
        file_id=file.pk,
        said={"name": "mlp", "deadline_ms": "60000"},
        reservation_id=reservation.pk,
        now=timezone.now(),
    )
    assert job.endpoint.gpu == kitchen.gpus[1], "the one that nothing runs on"
    mine = token(alice, f"serve:{job.pk}")
    base = f"{live_asgi}/serve/{job.pk}/v2"
    assert ask(f"{base}/health/ready", mine)[0] == 503, "not begun"
    kitchen.order(job)
    kitchen.until_running(job)
    until_ready(f"{base}/models/mlp", mine)

    answered_in_both_forms(base, mine, expected(data, ROWS))
    refused_by_deadline_and_by_field(base, mine)
    closed_to_others(live_asgi, base, job, alice, bob, carol)
    crooked_requests_go_nowhere(live_asgi, base, job, mine)
    asked_from_the_page(live_asgi, base, job, alice)
    asked_as_the_page_prints_it(live_asgi, job, alice, mine)
    shared_within_the_account(kitchen, live_asgi, base, job, alice, bob, carol)
    asked_at_another_process(live_asgi, other_web, job, mine)

    stats = json.loads(ask(f"{live_asgi}/serve/{job.pk}/stats", mine)[2])
    mlp = next(one for one in stats["models"] if one["name"] == "mlp")
    assert mlp["in_time"] >= 3
    assert mlp["refused"] >= 1
    assert mlp["wrong"] >= 1
    assert mlp["points"]
    assert mlp["batches"]
    assert mlp["profile"][0]["runs"] >= 5

    job = moved_to_the_other_gpu(kitchen, base, job, alice, mine)
    jobs.stop(job_id=job.pk, user=alice, now=timezone.now())
    kitchen.stop(job)
    assert ask(f"{base}/health/live", mine)[0] == 410


def answered_in_both_forms(base, mine, right):
    _, _, body = ask(f"{base}/models/mlp", mine)
    assert json.loads(body)["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 4]}
    ]
    status, headers, body = ask(
        f"{base}/models/mlp/infer", mine, infer_body(ROWS, id="q")
    )
    said = json.loads(body)
    assert (status, said["id"], said["outputs"][0]["shape"]) == (200, "q", [2, 3])
    assert np.allclose(said["outputs"][0]["data"], right.ravel(), atol=1e-5)
    assert said["parameters"]["predicted_ms"] > 0
    assert headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"

    body, extra = binary_body(ROWS)
    status, headers, body = ask(f"{base}/models/mlp/infer", mine, body, extra)
    assert status == 200, body
    length = int(headers["Inference-Header-Content-Length"])
    assert json.loads(body[:length])["outputs"][0]["parameters"] == {
        "binary_data_size": 24
    }
    assert np.allclose(np.frombuffer(body[length:], "<f4"), right.ravel(), atol=1e-5)


def refused_by_deadline_and_by_field(base, mine):
    url = f"{base}/models/mlp/infer"
    hurry = {"X-Deadline-Ms": "0.01"}
    status, headers, body = ask(url, mine, infer_body(ROWS), hurry)
    assert (status, json.loads(body)["code"]) == (503, "deadline")
    assert json.loads(body)["predicted_ms"] > 0.01
    assert re.fullmatch(
        r"The deadline of 0\.01 ms cannot be met: about [\d.]+ ms are needed "
        r"\(network [\d.]+ ms, (queue [\d.]+ ms, )?model [\d.]+ ms\)\.",
        json.loads(body)["detail"],
    ), body
    assert headers["Retry-After"]
    named = infer_body(ROWS, parameters={"deadline_ms": 0.01})
    assert ask(url, mine, named)[0] == 503

    for wrong, field in (
        (infer_body(ROWS, datatype="INT64"), "inputs[0].datatype"),
        (infer_body([[1.0, 2.0]]), "inputs[0].shape"),
        ({"inputs": []}, "inputs"),
        (b"no json", "body"),
        (infer_body(ROWS * 5), "inputs[0].shape"),
    ):
        status, _, body = ask(url, mine, wrong)
        assert (status, list(json.loads(body)["fields"])) == (400, [field])
    assert ask(url, mine, b"x", {"X-Deadline-Ms": "soon"})[0] == 400
    assert ask(url, mine, b"x", {"Content-Type": "text/plain"})[0] == 415
    assert ask(f"{base}/models/other/infer", mine, infer_body(ROWS))[0] == 404


def closed_to_others(live_asgi, base, job, alice, bob, carol):
    url = f"{base}/models/mlp/infer"
    asked = infer_body(ROWS)
    assert ask(url, "", asked)[0] == 401
    assert ask(url, "gp_nothing", asked)[0] == 401
    for other in (bob, carol):
        shown = token(other, "serve")
        assert ask(url, shown, asked)[0] == 404
        assert ask(f"{base}/health/live", shown)[0] == 404
        assert ask(f"{live_asgi}/serve/{job.pk}/stats", shown)[0] == 404
    assert ask(url, token(alice, "read", "job"), asked)[0] == 403
    assert ask(url, token(alice, f"serve:{job.pk + 1}"), asked)[0] == 403
    assert ask(url, token(alice, "serve"), asked)[0] == 200
    # The token is for models, and the rest of the API refuses it.
    only = token(alice, f"serve:{job.pk}")
    assert ask(f"{live_asgi}/api/v1/jobs", only)[0] == 403


def crooked_requests_go_nowhere(live_asgi, base, job, mine):
    for path in (
        "v2/../stats",
        "v2/repository/models/mlp/unload",
        "v2/models/..%2f..%2frepository%2fmodels%2fmlp/unload",
        "v2/models/mlp/infer/../../../../repository/models/mlp/unload",
        "v2//models/mlp/infer",
        "v2/models/mlp/infer?x=/repository",
        "v2/models/%00",
    ):
        status, _, body = ask(
            f"{live_asgi}/serve/{job.pk}/{path}", mine, infer_body([[1.0]])
        )
        assert status in (400, 404, 405), (path, body)
    assert ask(f"{base}/models/mlp/ready", mine)[0] == 200, "it is still there"

    head = (
        f"POST /serve/{job.pk}/v2/models/mlp/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {mine}\r\nContent-Type: application/json\r\n"
    )
    long = f"Content-Length: {MOST_REQUEST_BYTES + 1}\r\n\r\n"
    assert " 413 " in raw_request(live_asgi, head + long), "before it is sent"
    twice = "Inference-Header-Content-Length: 2\r\n" * 2
    for lines in (
        f"{twice}Content-Length: 2\r\n\r\n{{}}",
        "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "X-Deadline-Ms: 5\n X-Way-Ms: 0\r\nContent-Length: 2\r\n\r\n{}",
    ):
        assert " 400 " in raw_request(live_asgi, head + lines), lines
    assert ask(f"{base}/models/mlp", mine, method="DELETE")[0] == 405


def asked_as_the_page_prints_it(live_asgi, job, alice, mine):
    """Copy the command of the page into a shell, like a student."""
    cookies = f"sessionid={signed_in(alice).cookies['sessionid'].value}"
    headers = {"Cookie": cookies, "Accept": "text/html"}
    page = ask(f"{live_asgi}/serve/{job.pk}/", headers=headers)[2].decode()
    found = re.search(r'(?s)<pre[^>]*id="call-command"[^>]*>(.*?)</pre>', page)
    command = html.unescape(found[1])
    assert "X-Deadline-Ms" not in command, "it has to work on a busy day"
    done = subprocess.run(
        ["bash", "-c", f"{command} --silent --show-error"],
        env=os.environ | {"TOKEN": mine},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outputs"][0]["shape"] == [1, 3], done.stdout


def asked_from_the_page(live_asgi, base, job, alice):
    client = signed_in(alice)
    page = client.get(f"/serve/{job.pk}/")
    assert page.status_code == 200
    assert b"Try it" in page.content
    cookies = f"sessionid={client.cookies['sessionid'].value}"
    url = f"{base}/models/mlp/infer"
    assert ask(url, "", infer_body(ROWS), {"Cookie": cookies})[0] == 403, "no CSRF"
    secret = client.cookies["csrftoken"].value
    headers = {"Cookie": f"{cookies}; csrftoken={secret}", "X-CSRFToken": secret}
    assert ask(url, "", infer_body(ROWS), headers)[0] == 200
    headers["Origin"] = "http://elsewhere.example"
    assert ask(url, "", infer_body(ROWS), headers)[0] == 403
    assert ask(f"{live_asgi}/serve/{job.pk}/stats", "", None, headers)[0] == 200


def shared_within_the_account(kitchen, live_asgi, base, job, alice, bob, carol):
    """Bob shares Alice's Account and brings a model; Carol may not, then may."""
    other = mlp_bytes(inputs=2, batch=1)
    # His has its weights in a file beside it, in a folder of its own.
    theirs = upload(bob, zipped(outside_files(other), "export/"), "net.zip")
    foreign = upload(carol, other)
    now = timezone.now()
    with pytest.raises(NotFound):
        serving.bring(user=bob, job_id=job.pk, file_id=theirs.pk, said={}, now=now)
    serving.set_admits(user=alice, job_id=job.pk, admits="account", now=now)
    with pytest.raises(NotFound):
        serving.bring(user=carol, job_id=job.pk, file_id=foreign.pk, said={}, now=now)
    with pytest.raises(NotFound):
        serving.bring(user=carol, job_id=job.pk, file_id=theirs.pk, said={}, now=now)
    row = serving.bring(
        user=bob, job_id=job.pk, file_id=theirs.pk, said={"name": "small"}, now=now
    )
    with pytest.raises(LaunchInvalid):
        serving.bring(
            user=alice,
            job_id=job.pk,
            file_id=job.endpoint.models.first().file_id,
            said={"name": "small"},
            now=now,
        )
    shown = token(bob, "serve")
    until_ready(f"{base}/models/small", shown)
    status, _, body = ask(f"{base}/models/small/infer", shown, infer_body([[1.0, 2.0]]))
    assert status == 200, body
    right = expected(other, [[1.0, 2.0]]).ravel()
    assert np.allclose(json.loads(body)["outputs"][0]["data"], right, atol=1e-5)
    assert ask(f"{base}/models/mlp/infer", shown, infer_body(ROWS))[0] == 404
    assert signed_in(bob).get(f"/serve/{job.pk}/").status_code == 200
    with pytest.raises(FileServed):
        model_store.drop_file(user=bob, file_id=theirs.pk, now=now)

    serving.set_admits(user=alice, job_id=job.pk, admits="anybody", now=now)
    serving.bring(
        user=carol, job_id=job.pk, file_id=foreign.pk, said={"name": "hers"}, now=now
    )
    with pytest.raises(NotAllowed):
        serving.take_out(user=bob, job_id=job.pk, name="hers", now=now)
    serving.take_out(user=alice, job_id=job.pk, name="hers", now=now)
    serving.take_out(user=bob, job_id=job.pk, name=row.name, now=now)
    model_store.drop_file(user=bob, file_id=theirs.pk, now=now)
    end = time.monotonic() + nodes.PATIENCE_SECONDS
    mine = token(alice, "serve")
    while ask(f"{base}/models/small", mine)[0] != 404:
        assert time.monotonic() < end
        time.sleep(0.1)


def asked_at_another_process(live_asgi, other_web, job, mine):
    """The node's tunnels end in this process; the request lands in the other."""
    url = f"{other_web}/serve/{job.pk}"
    end = time.monotonic() + nodes.PATIENCE_SECONDS
    while True:
        try:
            answer = ask(f"{url}/v2/health/ready", mine)
            break
        except urllib.error.URLError:
            assert time.monotonic() < end, "the second web process does not come up"
            time.sleep(0.2)
    assert answer[0] == 200, answer[2]
    assert ask(f"{url}/v2/models/mlp/infer", mine, infer_body(ROWS))[0] == 200
    assert json.loads(ask(f"{url}/stats", mine)[2])["models"]
    late = ask(
        f"{url}/v2/models/mlp/infer", mine, infer_body(ROWS), {"X-Deadline-Ms": "0.01"}
    )
    assert (late[0], json.loads(late[2])["code"]) == (503, "deadline")


def moved_to_the_other_gpu(kitchen, base, old, alice, mine):
    """Called all the time at the old address. Not one answer is missing."""
    answers, over = [], threading.Event()

    def keep_asking():
        while not over.is_set():
            url = f"{base}/models/mlp/infer"
            answers.append(ask(url, mine, infer_body(ROWS))[0])
            time.sleep(0.05)

    asking = threading.Thread(target=keep_asking, daemon=True)
    asking.start()
    send_frame(kitchen.redis)
    new = endpoint_move.move_now(user=alice, job_id=old.pk, now=timezone.now())
    assert new.endpoint.gpu == kitchen.gpus[0]
    kitchen.order(new)
    kitchen.until_running(new)
    end = time.monotonic() + nodes.PATIENCE_SECONDS
    while not endpoint_move.tick(timezone.now())["serves_switched"]:
        assert time.monotonic() < end, list(new.endpoint.models.values())
        time.sleep(0.1)
    later = timezone.now() + timedelta(seconds=endpoint_move.LEAVE_SECONDS + 1)
    assert endpoint_move.tick(later)["serves_left"] == 1
    kitchen.stop(old)
    time.sleep(0.3)
    over.set()
    asking.join()
    assert set(answers) == {200}, answers
    return new


def runs_in(pid):
    """Return the file of the model that a server runs at present; "" without one."""
    environ = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    (number,) = (
        value
        for name, _, value in (one.partition("=") for one in environ)
        if name == NOTE_VARIABLE
    )
    handle = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
    try:
        return RunNote(handle).read()[0]
    finally:
        os.close(handle)


def test_a_model_that_hangs_or_kills_the_server_costs_the_others_seconds(
    kitchen, live_asgi, alice, bob
):
    reservation = make_reservation(alice, kitchen.gpus, state=State.ACTIVE)
    job = serving.deploy(
        user=alice,
        file_id=upload(alice, mlp_bytes()).pk,
        said={"name": "mlp"},
        reservation_id=reservation.pk,
        now=timezone.now(),
    )
    base, now = f"{live_asgi}/serve/{job.pk}/v2/models", timezone.now()
    mine = token(alice, f"serve:{job.pk}")
    kitchen.order(job)
    kitchen.until_running(job)
    until_ready(f"{base}/mlp", mine)
    serving.set_admits(user=alice, job_id=job.pk, admits="account", now=now)
    file = upload(bob, loop_bytes(rounds=2**60), "loop.onnx")
    serving.bring(user=bob, job_id=job.pk, file_id=file.pk, said={}, now=now)

    def failed(name):
        end = time.monotonic() + nodes.PATIENCE_SECONDS
        while (row := ServedModel.objects.get(name=name)).state != "failed":
            assert time.monotonic() < end, (row.state, row.note)
            time.sleep(0.2)
        return row.note

    def served():
        until_ready(f"{base}/mlp", mine)
        # A model that failed before is not tried again beside it.
        for _ in range(20):
            begun = time.monotonic()
            answer = ask(f"{base}/mlp/infer", mine, infer_body(ROWS))
            assert answer[0] == 200, answer[2]
            assert time.monotonic() - begun < 5
            time.sleep(0.2)

    assert failed("loop") == "one run took longer than 10 s"
    served()
    assert (
        "cannot be served: one run took longer"
        in bob.notices.order_by("pk").last().detail["text"]
    )
    # The kernel ends the server in the middle of a run, as it does without memory.
    file = upload(bob, loop_bytes(), "counts.onnx")
    serving.bring(user=bob, job_id=job.pk, file_id=file.pk, said={}, now=now)
    shown = token(bob, "serve")
    until_ready(f"{base}/counts", shown)
    endless = infer_body([[1.0]])
    endless["inputs"][0]["shape"] = [1]
    endless["inputs"].append(
        {"name": "n", "datatype": "INT64", "shape": [], "data": [2**60]}
    )
    calling = threading.Thread(
        target=ask, args=(f"{base}/counts/infer", shown, endless), daemon=True
    )
    calling.start()
    folder = next(job_folders(kitchen.settings.node_dir / "jobs"))
    server = [one.pid for one in descendants(folder.read("status")["pid"])]
    nodes.until(lambda: runs_in(server[0]))
    os.kill(server[0], signal.SIGKILL)
    assert failed("counts") == "the server died of it: SIGKILL"
    served()
    calling.join(60)
