"""Results: read as the job's user, uploaded completely, given to their owner alone."""

import hashlib
import json
import os
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone

from placement.agent.job_folder import JobFolder
from placement.agent.portal_channel import ChannelDown, failure
from placement.agent.storage import results_reader, results_upload
from placement.agent.storage.results_upload import ResultCarrier
from placement.jobs.job_erasure import forget
from placement.jobs.nodes import result_files
from placement.models import Job, PlacementPolicy, ResultFile
from reservations.accounts.name_removal import names_of
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation
from tests.placement import nodes
from tests.placement.lab import signed_in

BIG = b"weights" * 400_000  # 2.8 MB: more than one piece


def left_by_a_job(folder: Path) -> Path:
    """Fill a results folder, honest files and traps."""
    place = folder / "results"
    (place / "plots").mkdir(parents=True)
    (place / "model.bin").write_bytes(BIG)
    (place / "plots" / "loss ä.svg").write_text("<svg onload='alert(1)'/>")
    (place / "empty").write_text("")
    (folder / "secret").write_text("not yours")
    (place / "link").symlink_to(folder / "secret")
    (place / "out").symlink_to(folder)
    os.mkfifo(place / "pipe")
    (place / "two\nlines").write_text("x")
    return place


@pytest.mark.pure
def test_only_regular_files_are_listed_and_no_link_is_followed(tmp_path, capsys):
    place = left_by_a_job(tmp_path)
    told = results_reader.listing(str(place), 10, 10**9)
    assert [row["path"] for row in told["files"]] == [
        "empty",
        "model.bin",
        "plots/loss ä.svg",
    ]
    assert told["files"][1]["sha256"] == hashlib.sha256(BIG).hexdigest()
    why = {row["path"]: row["why"] for row in told["left_out"]}
    assert why["link"] == why["out"] == "is a link"
    assert why["pipe"] == "is not a regular file"
    assert why["two\nlines"] == "its name cannot be printed"
    for path in ("link", "out/secret", "../secret", "pipe", "plots", "/etc/passwd", ""):
        with pytest.raises(results_reader.NotThere):
            results_reader.open_inside(str(place), path)
    few = results_reader.listing(str(place), 1, 10**9)
    assert len(few["files"]) == 1
    assert "more than 1 files" in [row["why"] for row in few["left_out"]]
    small = results_reader.listing(str(place), 10, 100)
    assert [row["path"] for row in small["files"]] == ["empty", "plots/loss ä.svg"]
    linked = tmp_path / "other"
    linked.symlink_to(place)
    assert results_reader.main(["list", str(linked), "9", "9"]) == 1
    assert capsys.readouterr().err


KEPT = ("script", "plan.json", "checkpoint")


def told_of(results: Path, capfd, most_files: int = 10) -> dict[str, list]:
    """List the results and the folder around them, as the agent does."""
    words = ["list", str(results), str(most_files), "1000000000", str(results.parent)]
    assert results_reader.main([*words, *KEPT]) == 0
    return json.loads(capfd.readouterr().out)


@pytest.mark.pure
def test_what_a_script_leaves_in_its_own_folder_becomes_a_result(tmp_path, capfd):
    results = tmp_path / "results"
    results.mkdir()
    for name in ("script", "plan.json", "model.pt", ".cache", "both"):
        (tmp_path / name).write_text(name)
    (results / "both").write_text("of the results")
    (results / "z").write_text("z")
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "runs" / "1").mkdir(parents=True)
    (tmp_path / "runs" / "1" / "events").write_text("x")
    (tmp_path / "out").symlink_to("/etc")
    told = told_of(results, capfd)
    paths = [row["path"] for row in told["files"]]
    assert paths == ["both", "z", "model.pt", "runs/1/events"]
    assert not told["left_out"]
    for path, data in (("both", "of the results"), ("runs/1/events", "x")):
        assert (
            results_reader.main(["send", str(results), path, "0", str(tmp_path)]) == 0
        )
        assert capfd.readouterr().out == data
    assert results_reader.main(["send", str(results), "model.pt", "0"]) == 1
    # Here the folder can be read only by its path.
    (tmp_path / "own").symlink_to(tmp_path)
    told = results_reader.listing(str(results), 10, 10**9, str(tmp_path / "own"))
    assert [row["path"] for row in told["files"]] == ["both", "z"]
    (row,) = told["left_out"]
    assert row["path"] == "." and "cannot be opened" in row["why"]


@pytest.mark.pure
def test_what_a_script_leaves_displaces_no_result(tmp_path, capfd, monkeypatch):
    results = tmp_path / "results"
    (results / "a").mkdir(parents=True)
    (results / "a" / "model.pt").write_text("weights")
    (tmp_path / "data").mkdir(mode=0o755)
    for number in range(12):
        (tmp_path / "data" / f"{number:02}").touch()
    (tmp_path / "data").chmod(0o555)  # as Go and conda leave their caches
    told = told_of(results, capfd, most_files=3)
    paths = [row["path"] for row in told["files"]]
    assert paths == ["a/model.pt", "data/00", "data/01"]
    assert {row["why"] for row in told["left_out"]} == {"more than 3 files"}
    monkeypatch.setattr(results_reader, "MOST_ENTRIES", 5)
    monkeypatch.setattr(results_reader, "MOST_LEFT_OUT", 0)
    told = told_of(results, capfd)
    paths = [row["path"] for row in told["files"]]
    assert paths == ["a/model.pt", "data/00", "data/01"]
    (row,) = told["left_out"]
    assert (row["path"], row["why"]) == ("data/02", results_reader.TOO_MANY)
    (tmp_path / "data").chmod(0o755)


class Item:
    """The keeper's facts about one ended Job."""

    ended = True

    def __init__(self, folder: JobFolder) -> None:
        self.folder = folder
        self.reported: dict[str, bool] = {}

    def report(self, **what: bool) -> None:
        self.reported |= what


@pytest.fixture
def channel(monkeypatch):
    """Requests of the node reach the web. `broken` is the number after which they
    fail.
    """

    class Channel:
        left = 10**9

        def request(self, method, url, *, node, token, body=None, key=""):
            self.left -= 1
            if self.left < 0:
                raise ChannelDown("the web cannot be reached")
            shown = {"Authorization": f"Node {node}:{token}", "X-Job-Key": key}
            client = Client(headers=shown)
            path = url.removeprefix("http://127.0.0.1:1")
            answer = client.generic(
                method,
                path,
                body or b"",
                content_type="application/octet-stream",
                CONTENT_LENGTH=str(len(body or b"")),
            )
            if answer.status_code in (200, 409):
                return answer.status_code, answer.content
            raise failure(answer.status_code, answer.content[:200].decode())

    made = Channel()
    monkeypatch.setattr(results_upload.portal_channel, "request", made.request)
    return made


@pytest.fixture
def ended(db, alice, tmp_path, settings):
    """An ended Job of Alice on node1, its folder there, and its uploader."""
    settings.MEDIA_ROOT = tmp_path / "media"
    node = make_node("node1")
    view = nodes.make_settings(tmp_path)
    Path(view.token_file).write_text(node.new_token())
    node.save()
    held = make_reservation(alice, make_gpus(1, node), state=State.ACTIVE)
    now = timezone.now()
    job = Job.objects.create(
        reservation=held,
        owner=alice,
        node=node,
        name="run",
        kind="script",
        state="done",
        attempt=1,
        started_at=now,
        ended_at=now,
    )
    folder = JobFolder.of(view.node_dir / "jobs", job.pk, 1, job.key)
    folder.path.mkdir(parents=True)
    script = {"recipe": None, "settings": {}, "script_sha256": "0" * 64}
    order = nodes.make_order(job=job.pk, key=job.key, **script)
    folder.write("order", {"payload": order.payload()})
    return job, Item(folder), ResultCarrier(view)


def test_results_come_up_whole_and_are_their_owners_alone(
    ended, channel, alice, bob, omar, django_capture_on_commit_callbacks
):
    job, item, carrier = ended
    left_by_a_job(item.folder.work)
    (item.folder.work / "checkpoint.pt").write_bytes(b"weights")
    channel.left = 4  # the list, the empty file, one piece of the large one
    with pytest.raises(ChannelDown):
        carrier.carry(item, threading.Event())
    assert not item.reported
    channel.left = 10**9
    carrier.carry(item, threading.Event())
    assert item.reported == {"results": True}
    rows = {row.path: row for row in result_files.of_job(job)}
    model = rows["model.bin"]
    assert model.complete_at and result_files.path_of(model).read_bytes() == BIG
    assert rows["checkpoint.pt"].complete_at
    assert rows["empty"].complete_at and rows["plots/loss ä.svg"].complete_at
    assert rows["link"].refused == "is a link"
    carrier.carry(item, threading.Event())
    assert ResultFile.objects.count() == len(rows)

    address = f"/jobs/{job.pk}/files/{rows['plots/loss ä.svg'].pk}"
    answer = signed_in(alice).get(address)
    assert b"".join(answer) == b"<svg onload='alert(1)'/>"
    assert answer["Content-Disposition"].startswith("attachment")
    assert answer["Content-Type"] == "application/octet-stream"
    assert answer["X-Content-Type-Options"] == "nosniff"
    for other in (bob, omar):
        assert signed_in(other).get(address).status_code == 404
        assert signed_in(other).get(f"/api/v1{address}").status_code == 404
    # Everybody who sees the page sees the names.
    shown = signed_in(omar).get(f"/api/v1/jobs/{job.pk}/files").json()["files"]
    assert {row["path"] for row in shown} == set(rows)
    assert signed_in(bob).get(f"/api/v1/jobs/{job.pk}/files").status_code == 404
    got = signed_in(alice).get(f"/api/v1/jobs/{job.pk}/files/{model.pk}")
    assert b"".join(got) == BIG and got["X-Sha256"] == model.sha256

    now = timezone.now()
    assert result_files.drop_due(now + timedelta(days=29)) == 0
    assert result_files.drop_due(now + timedelta(days=31)) == 5
    assert not result_files.path_of(model).exists()
    assert signed_in(alice).get(address).status_code == 404
    model.refresh_from_db()
    assert model.path == "model.bin"
    result_files.path_of(model).write_bytes(b"again")
    with django_capture_on_commit_callbacks(execute=True):
        result_files.forget([job.pk])
    assert not ResultFile.objects.exists()
    assert not result_files.path_of(model).parent.exists()


def test_the_site_says_how_much_and_the_node_is_not_believed(ended, channel, tmp_path):
    job, _, carrier = ended
    PlacementPolicy.objects.update_or_create(
        pk=1, defaults={"results_most_files": 1, "results_most_bytes": 100}
    )
    sums = hashlib.sha256(b"").hexdigest()
    client = Client(headers={"Authorization": f"Node node1:{carrier.node.token()}"})
    address = f"/node/v1/jobs/{job.pk}/results"

    def put(body, at=address, **query):
        asked = "&".join(f"{k}={v}" for k, v in ({"attempt": 1} | query).items())
        return client.put(
            f"{at}?{asked}", body, content_type="application/octet-stream"
        )

    for body in (b"", b"[]", b"{", b'{"files": 3}', b"[" * 5000):
        assert put(body).status_code in (413, 422)
    for path in ("../x", "/x", "a//b", "", "a\0b", "x" * 400, 5):
        row = {"path": path, "size": 1, "sha256": sums}
        assert put(json.dumps({"files": [row]}).encode()).status_code == 422
    for path, why in (("a", "n\0"), ("a\0", "n"), ("a", "\ud800")):
        row = {"path": path, "size": 1, "why": why}
        assert put(json.dumps({"left_out": [row]}).encode()).status_code == 422
    rows = [{"path": n, "size": 60, "sha256": sums} for n in ("a", "b")]
    assert put(json.dumps({"files": rows}).encode(), attempt=2).status_code == 404
    wanted = put(json.dumps({"files": rows}).encode()).json()["files"]
    assert [row["path"] for row in wanted] == ["a"]
    one = f"{address}/{wanted[0]['id']}"
    assert put(b"x" * 10, one, offset=5).json()["size"] == 0
    assert put(b"x" * 10, one, offset=0).json() == {"size": 10}
    assert put(b"x" * 51, one, offset=10).status_code == 422  # longer than listed
    assert put(b"x" * 50, one, offset=10).status_code == 422  # not what was listed
    row = ResultFile.objects.get(path="a")
    assert row.refused and not result_files.path_of(row).exists()
    assert put(b"x", one, offset=0).status_code == 404
    other = make_node("blue")
    stranger = Client(headers={"Authorization": f"Node blue:{other.new_token()}"})
    other.save()
    assert stranger.get(f"{address}?attempt=1").status_code in (401, 404)


def test_a_job_without_results_costs_nothing_and_an_erased_one_leaves_none(
    ended, channel, alice, tmp_path, django_capture_on_commit_callbacks
):
    job, item, carrier = ended
    channel.left = 0
    carrier.carry(item, threading.Event())
    assert item.reported == {"results": True}
    file = ResultFile.objects.create(
        job=job,
        attempt=1,
        path="thesis.pdf",
        size_bytes=1,
        sha256="0" * 64,
        complete_at=timezone.now(),
    )
    result_files.path_of(file).parent.mkdir(parents=True)
    result_files.path_of(file).write_bytes(b"x")
    with django_capture_on_commit_callbacks(execute=True):
        forget(user=alice, names=names_of("erased-1", ["alice"]))
    assert not result_files.path_of(file).exists() and not ResultFile.objects.exists()


def test_the_results_of_one_person_have_a_ceiling_that_says_its_numbers(ended, channel):
    job, _, _ = ended
    PlacementPolicy.objects.update_or_create(
        pk=1, defaults={"results_person_bytes": 3 * 2**20}
    )
    sums = hashlib.sha256(b"").hexdigest()
    files = [{"path": name, "size": 2 * 2**20, "sha256": sums} for name in ("a", "b")]
    said = {"files": files, "left_out": []}
    wanted = result_files.store_list(job=job, attempt=1, said=said, now=timezone.now())
    assert [row.path for row in wanted] == ["a"]
    refused = ResultFile.objects.get(path="b").refused
    assert refused == "your results hold 2 MiB of 3 MiB: delete those of old jobs"
    result_files.drop(ResultFile.objects.filter(path="a"), now=timezone.now())
    said["files"] = [{"path": "c", "size": 2 * 2**20, "sha256": sums}]
    wanted = result_files.store_list(job=job, attempt=1, said=said, now=timezone.now())
    assert [row.path for row in wanted] == ["c"], "what was deleted makes room"


def test_results_wait_for_the_next_token(ended, channel):
    job, item, carrier = ended
    left_by_a_job(item.folder.work)
    file = Path(carrier.node.token_file)
    good = file.read_text()
    file.write_text("ended")
    with pytest.raises(ChannelDown, match="401"):
        carrier.carry(item, threading.Event())
    assert not item.reported
    file.write_text(good)
    carrier.carry(item, threading.Event())
    assert item.reported == {"results": True} and result_files.of_job(job)
