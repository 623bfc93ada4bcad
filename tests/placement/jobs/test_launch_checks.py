"""A script with a launcher and a Plan, from every door to its order and its files."""

import hashlib
import json

import pytest
from django.core.management import call_command
from django.test import Client

from placement.jobs import service as jobs
from placement.jobs.nodes.command_queue import planned_uuids, start_order
from placement.models import Job, ScriptFolder
from placement.planner.values.errors import LaunchInvalid
from reservations.rules.lifecycle import State
from tests.factories import make_reservation
from tests.placement.lab import plan_on, signed_in
from tests.placement.stage import NOW

pytestmark = pytest.mark.django_db
BIN = "/home/alice/venv/bin"


@pytest.fixture(autouse=True)
def _scripts_may_run(settings):
    settings.ALLOW_UNISOLATED_SCRIPTS = True


def launch(user, reservation, **changes):
    known = {"name": "mine", "kind": "script", "script": "print(1)", "now": NOW}
    return jobs.launch(user=user, reservation_id=reservation.pk, **{**known, **changes})


def test_a_script_with_a_plan_gets_its_gpus_by_rank_and_its_files(alice, cards):
    stored = plan_on(alice, "ddp")
    reservation = make_reservation(alice, cards, start=NOW, state=State.ACTIVE)
    job = launch(
        alice,
        reservation,
        plan_id=stored.pk,
        launcher="torchrun",
        environment_folder=BIN,
    )
    uuids = [shard["gpu_uuid"] for shard in stored.plan["shards"]]
    assert planned_uuids(job) == uuids
    Job.objects.filter(pk=job.pk).update(attempt=1, order_nonce="a" * 32)
    job.refresh_from_db()
    order = start_order(job, now=NOW)
    assert (order.launcher, order.environment_folder) == ("torchrun", BIN)
    assert order.gpu_uuids == tuple(uuids) and order.plan == {}
    token = job.node.new_token()
    job.node.save()
    web = Client(headers={"Authorization": f"Node {job.node.name}:{token}"})
    answer = web.get(f"/node/v1/jobs/{job.pk}/files")
    assert hashlib.sha256(answer.content).hexdigest() == order.files_sha256
    files = json.loads(answer.content)
    configs = {"accelerate.json", "deepspeed.json", "ds_config.json", "sft.yaml"}
    assert configs | {"plan.json"} == set(files)
    assert json.loads(files["accelerate.json"])["num_processes"] == len(uuids)
    other = launch(alice, reservation, node="node-a")
    assert start_order(other, now=NOW).files_sha256 == ""
    assert web.get(f"/node/v1/jobs/{other.pk}/files").status_code == 404


def test_every_door_takes_the_launcher_and_refuses_a_wrong_one_by_its_field(
    alice, cards, tmp_path
):
    reservation = make_reservation(alice, cards[:2], start=NOW, state=State.ACTIVE)
    given = {"launcher": "accelerate", "environment_folder": BIN}
    body = {"reservation": reservation.pk, "name": "a", "kind": "script", "script": "x"}
    student = signed_in(alice)

    def post(**changes):
        data = json.dumps({**body, **given, **changes})
        return student.post("/api/v1/jobs", data, content_type="application/json")

    files = {"datautils.py": "x = 1", "models/net.py": ""}
    assert post(files=files).status_code == 201
    page = {**body, **given, "what": "script", "arguments": "-x"}
    page["beside"] = json.dumps(files)
    assert student.post("/jobs/new/", page).status_code == 302
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    call_command(
        *("job", "submit", "--user", "alice", "--reservation", str(reservation.pk)),
        *("--name", "c", "--script", str(script), "--launcher", "accelerate"),
        *("--environment-folder", BIN),
    )
    rows = Job.objects.values_list("started_with", "environment_folder")
    assert list(rows) == [("accelerate", BIN)] * 3
    # Jobs with the same files share them.
    assert ScriptFolder.objects.get().jobs.count() == 2
    _files_beside_the_script(student, post, page)
    again = student.get(f"/jobs/new/?again={Job.objects.first().pk}").content.decode()
    assert 'value="accelerate" selected' in again and BIN in again
    _requirements_beside_the_script(post)
    refused = post(launcher="mpirun", environment_folder="venv/bin").json()
    assert {"launcher", "environment_folder"} <= set(str(refused).split("'"))
    with pytest.raises(LaunchInvalid, match="takes no launcher"):
        launch(
            alice,
            reservation,
            kind="recipe",
            recipe="burn-in",
            script="",
            launcher="python",
        )


def _files_beside_the_script(student, post, page):
    """Hostile files are refused at their field, by page and API."""
    job = Job.objects.filter(script_folder__isnull=False).latest("pk")
    for place in (f"/jobs/{job.pk}/", f"/jobs/new/?again={job.pk}"):
        assert "models/net.py" in student.get(place).content.decode()
    token = job.node.new_token()
    job.node.save()
    job.attempt, job.order_nonce = 1, "a" * 32
    order = start_order(job, now=NOW)
    assert json.loads(order.payload())["v"] == 5
    web = Client(headers={"Authorization": f"Node {job.node.name}:{token}"})
    sent = web.get(f"/node/v1/jobs/{job.pk}/beside").content
    assert hashlib.sha256(sent).hexdigest() == order.beside_sha256
    other = Job.objects.get(script_folder=None)
    assert web.get(f"/node/v1/jobs/{other.pk}/beside").status_code == 404
    plain = json.loads(start_order(other, now=NOW).payload())
    assert plain["v"] < 5 and "beside_sha256" not in plain
    for files in (
        {"../a.py": ""},
        {"/etc/a.py": ""},
        {"a//b.py": ""},
        {"a\nb.py": ""},
        {".ssh/rc": ""},
        {"script": ""},
        {"results/a": ""},
        {"a": "", "a/b": ""},
        {"/".join("a" * 9): ""},
        {"a.py": "x" * 2**20},
        {f"a{n}.py": "" for n in range(201)},
    ):
        answer = post(files=files)
        assert (answer.status_code, "files" in str(answer.json())) == (422, True), files
    for text in ("[]", "{", '{"a": 1}', '{"../a": ""}'):
        assert student.post("/jobs/new/", page | {"beside": text}).status_code == 422
    assert post(files={"a.py": "\0"}).status_code == 422
    assert post(files={"a.py": "\ud800"}).status_code in (400, 422)


def _requirements_beside_the_script(post):
    needs = {"environment_folder": "./needs.txt", "files": {"needs.txt": "torch"}}
    assert post(**needs).status_code == 201
    for wrong, why in (
        ({**needs, "files": {}}, "needs.txt is not sent with the script"),
        ({**needs, "environment_folder": "./../needs.txt"}, "cannot be sent"),
        ({**needs, "environment_folder": "./venv"}, "must be an absolute path"),
    ):
        answer = post(**wrong)
        assert (answer.status_code, why in str(answer.json())) == (422, True)
