"""What the pages can do, from a shell: every command against the portal over HTTP."""

import json
import os
import struct
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.utils import timezone

from placement.jobs.nodes import log_store
from placement.models import Job, ModelFile, StoredPlan, Workspace
from reservations.accounts.api_tokens import create_token
from reservations.models import (
    ApiToken,
    CoUser,
    Notice,
    Offer,
    RequestKey,
    Reservation,
    SshKey,
    WaitingRequest,
)
from reservations.rules.booking_alerts import SQUATTER
from reservations.rules.lifecycle import Kind, State
from reservations.rules.policy import Policy
from telemetry.alerts.service import open_alert
from tests.factories import make_gpus, make_membership, make_node, make_reservation
from tests.placement.lab import make_lab, send_frame
from tests.placement.serving.networks import mlp_bytes

# The tests of the API send the same SQL on both databases.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture
def lab(alice, bob):
    """Return two GPUs of node-a, of which Alice holds the first."""

    class Lab:
        gpus = make_gpus(2, make_node("node-a"))
        hour = timezone.now().replace(minute=0, second=0, microsecond=0)
        end = hour + timedelta(hours=3)
        now = make_reservation(alice, gpus[:1], hour, end, state=State.ACTIVE)

    return Lab()


def ok(found):
    assert (found.status, found.err) == (0, ""), found
    return found.out


def refused(found, status, words):
    assert found.status == status and words in found.err, found
    assert found.err.startswith(("gp: ", "gp ")) and "Traceback" not in found.err, found
    assert found.err.count("\n") == 1, found


def test_the_board_as_a_table(gp, lab, bob):
    one, two = ok(gp("gpus")).splitlines()
    assert one.startswith("node-a:0  NVIDIA A100 80GB  ") and "you until " in one
    assert "node-a:1" in two and two.endswith("  free")
    assert ok(gp("gpus", "--free")).splitlines() == [two]
    start = timezone.now() + timedelta(days=1)
    make_reservation(bob, lab.gpus[1:], start, start + timedelta(hours=1))
    assert "  free until " in ok(gp("gpus", "--free")), "the holder names the next"
    assert ok(gp("gpus", "--node", "other")) == ""
    rows = json.loads(ok(gp("gpus", "--free", "--json")))["gpus"]
    assert [row["index"] for row in rows] == [1]
    assert "node-a  2 GPUs  isolation none  gate open" in ok(gp("nodes"))
    assert ok(gp("quota")) == ok(gp("standing")) and "  rank " in ok(gp("quota"))
    assert json.loads(ok(gp("standing", "--json")))["memberships"]

    assert ok(gp("star", "node-a:1")) == "favourites: node-a:1\n"
    assert ok(gp("star", "node-a:1", "--off")) == "favourites: no GPU\n"
    refused(gp("star", "no such class"), 1, "")
    refused(gp("star", "node-a:99"), 2, "there is no GPU node-a:99")


def test_every_listing_also_as_json(gp, lab):
    listings = (
        *("calendar", "files", "find", "gaps", "gpus", "jobs", "keys", "mine"),
        *("model-files", "nodes", "notices", "offers", "plans", "quota", "series"),
        *("served", "served-text", "standing", "tokens", "waitlist", "workspace"),
    )
    for name in listings:
        more = {"files": ["1"], "find": ["--hours", "1"]}.get(name, [])
        found = gp(name, *more, "--json")
        if name == "files":
            assert found.status == 1, found  # there is no job
            continue
        assert isinstance(json.loads(ok(found)), dict), name
        assert gp(name, *more).status == 0, name


def test_notices_are_listed_and_read(gp, alice, bob):
    now = timezone.now()
    for _ in range(3):
        Notice.objects.create(user=alice, kind="released", told_at=now)
    other = Notice.objects.create(user=bob, kind="released", told_at=now)
    assert ok(gp("notices")).count("  *  ") == 3
    first = Notice.objects.filter(user=alice).earliest("pk")
    assert ok(gp("notices", "--read", first.pk)) == f"notice {first.pk} is read\n"
    assert len(ok(gp("notices", "--unread")).splitlines()) == 2
    assert ok(gp("notices", "--read", "all")) == "2 notices are read\n"
    assert ok(gp("notices", "--unread")) == ""
    refused(gp("notices", "--read", other.pk), 1, "")
    refused(gp("notices", "--read", "x"), 2, "'x' is not the number")


def test_a_booking_of_a_gpu_from_now_ends_on_a_full_step(gp, lab):
    began = timezone.now()
    ok(gp("book", "--on", "node-a:1", "--hours", 1))
    end = Reservation.objects.latest("pk").end
    step = timedelta(seconds=Policy().grid_seconds)
    assert end.timestamp() % step.total_seconds() == 0
    assert began + timedelta(hours=1) - timedelta(seconds=1) <= end
    assert end < timezone.now() + timedelta(hours=1) + step


def test_a_search_that_finds_nothing_says_why(gp, lab):
    refused(gp("find", "--gpu-class", "x", "--hours", 2), 1, "There is no class x.")
    refused(gp("find", "--memory", 90, "--hours", 2), 1, "No GPU here has 90 GiB.")
    past = (timezone.now() - timedelta(hours=3)).isoformat()
    wish = ("--gpus", 1, "--hours", 2, "--at", past)
    for word in ("find", "book"):
        refused(gp(word, *wish), 2, "that time is over")
    over = gp("book", *wish, "--on", "node-a:1")
    assert over.status == 1 and "The end is" in over.err, over


def test_who_is_in_two_groups_names_the_one_that_pays(gp, lab, alice):
    second = make_membership(alice, "nlp")
    wish = ("book", "--on", "node-a:1", "--hours", 1)
    refused(gp(*wish), 1, "")
    refused(gp(*wish, "--group", "bio"), 2, "(yours: ")
    assert "credits: " in ok(gp(*wish, "--group", "nlp", "--check"))
    ok(gp("book", "--gpus", 1, "--hours", 1, "--group", "nlp"))
    assert Reservation.objects.latest("pk").membership == second
    assert "node-a:" in ok(gp("find", "--hours", 1, "--group", "nlp"))


def test_a_booking_of_certain_gpus_is_checked_changed_cancelled_and_undone(gp, lab):
    later = (timezone.localtime() + timedelta(days=1)).replace(
        minute=0, second=0, microsecond=0
    )
    at = later.isoformat()
    wish = ("book", "--on", "node-a:1", "--hours", 2, "--at", at)
    assert "credits: " in ok(gp(*wish, "--check"))
    assert Reservation.objects.count() == 1
    ok(gp(*wish, "--for", "first"))
    made = Reservation.objects.latest("pk")
    assert (made.start, made.end) == (later, later + timedelta(hours=2))
    refused(gp(*wish, "--check"), 1, "node-a:1")
    assert "first" in ok(gp("mine"))
    assert "you" in ok(gp("calendar")) and "first" in ok(gp("calendar"))
    end = (later + timedelta(hours=3)).isoformat()
    ok(gp("change", made.pk, "--end", end, "--for", "second"))
    made.refresh_from_db()
    assert (made.end, made.purpose) == (later + timedelta(hours=3), "second")
    assert "returns " in ok(gp("give-back", made.pk, "--hours", 1, "--check"))
    ok(gp("give-back", made.pk, "--hours", 1))
    made.refresh_from_db()
    assert made.end == later + timedelta(hours=2)
    assert ok(gp("cancel", made.pk)) == "cancelled\n"
    ok(gp("undo", made.pk))
    made.refresh_from_db()
    assert made.state == State.CONFIRMED
    refused(gp("change", made.pk), 2, "give --start, --end, --on or --for")
    refused(gp("give-back", made.pk), 2, "give --on or --hours")
    refused(gp("change", made.pk, "--on", "node-z:9"), 2, "there is no GPU node-z:9")
    refused(gp("calendar", "--days", 99), 2, "--days must be 1 to 31")
    refused(gp("book", "--hours", 1, "--times", 3), 2, "are for --repeat")
    refused(gp("book", "--hours", 1, "--repeat", "daily"), 2, "--times or --until")


def test_an_extension_that_is_refused_says_what_would_work(gp, lab, bob):
    later = lab.end + timedelta(hours=1)
    make_reservation(bob, lab.gpus[:1], later, later + timedelta(hours=2))
    found = gp("extend", lab.now.pk, "--hours", 2)
    assert found.status == 1 and "is taken" in found.err
    words = found.err.partition(" works: gp ")[2].split()
    ok(gp(*words))
    lab.now.refresh_from_db()
    assert lab.now.end == later
    refused(gp("extend", lab.now.pk, "--hours", 0), 2, "--hours must be more than 0")


def test_a_running_booking_is_checked_in_kept_and_stays_on(gp, lab, bob):
    assert "checked in" in ok(gp("checkin", lab.now.pk))
    lab.now.refresh_from_db()
    assert lab.now.checked_in_at is not None
    ok(gp("keep", lab.now.pk, "--reason", "a long import"))
    found = gp("stay", lab.now.pk)
    assert found.status in (0, 1), found
    assert "samples" in ok(gp("usage", lab.now.pk))
    refused(gp("usage"), 2, "give the number")
    refused(gp("usage", 99999), 1, "there is no reservation 99999")
    refused(gp("usage", "--job", 99999), 1, "there is no job 99999")
    for word in ("checkin", "keep", "cancel", "undo"):
        assert gp(word, lab.now.pk, user=bob).status == 1, word


def test_ssh_makes_a_key_only_for_what_runs(gp, lab, alice, bob, tmp_path, monkeypatch):
    from gpuportal_client import ssh_commands

    monkeypatch.setattr(ssh_commands, "KEYS", tmp_path / "ssh")
    start = timezone.now() + timedelta(hours=5)
    ahead = make_reservation(alice, lab.gpus[1:], start, start + timedelta(hours=1))
    refused(gp("ssh", ahead.pk), 1, f"reservation {ahead.pk} begins ")
    refused(gp("ssh", lab.now.pk, user=bob), 1, "you have no reservation")
    assert not (tmp_path / "ssh").exists() and not SshKey.objects.exists()


def test_what_runs_without_a_booking_is_listed_and_booked(gp, lab, alice, bob):
    assert ok(gp("adopt")).strip() == "You use no GPU without a booking."
    refused(gp("adopt", "node-a"), 1, "use of yours without a booking")
    now = timezone.now()
    detail = {"users": [alice.username]}
    open_alert(rule=SQUATTER, gpu_id=lab.gpus[1].pk, now=now, detail=detail)
    assert "node-a:1" in ok(gp("adopt"))
    assert gp("adopt", "node-a", user=bob).status == 1
    refused(gp("adopt", "node-a", "--hours", 99), 2, "hours")
    refused(gp("adopt", "node-a", "--group", "x", user=alice), 2, "no group of yours")
    group = lab.now.membership.account.name
    told = ok(gp("adopt", "node-a", "--hours", 1, "--group", group))
    made = Reservation.objects.exclude(pk=lab.now.pk).get()
    assert told.startswith(f"reservation {made.pk} on node-a until ")
    assert (made.user, made.kind) == (alice, Kind.FLEX)


def test_a_series_is_previewed_made_skipped_and_ended(gp, lab):
    later = (timezone.localtime() + timedelta(days=1)).replace(
        minute=0, second=0, microsecond=0
    )
    wish = ("book", "--on", "node-a:1", "--hours", 1, "--at", later.isoformat())
    daily = (*wish, "--repeat", "daily", "--times", 3)
    days = ok(gp(*daily, "--check")).splitlines()
    assert len(days) == 3 and days[0].startswith(later.date().isoformat())
    assert not Reservation.objects.exclude(pk=lab.now.pk)
    assert ok(gp(*daily)).startswith("series 1: ")
    assert RequestKey.objects.count() == 1, "it can be sent again"
    assert len(ok(gp("series")).splitlines()) == 4
    day = (later + timedelta(days=1)).date().isoformat()
    ok(gp("series", "skip", 1, "--day", day))
    ok(gp("series", "cancel-from", 1, "--day", day))
    ok(gp("series", "end", 1))
    refused(gp("series", "end"), 2, "needs a number")
    refused(gp("series", "skip", 1), 2, "--day is for skip")
    refused(gp("series", "skip", 1, "--day", "today"), 2, "is not a day")


def test_the_waitlist(gp, lab):
    wish = ("wait", "--gpus", 2, "--hours", 4, "--for", "thesis")
    assert ok(gp(*wish)).startswith("request 1: waiting, number 1 in line")
    shown = ok(gp("waitlist"))
    assert "2 GPUs  4 h" in shown and "thesis" in shown
    refused(gp("waitlist", "accept", 1), 1, "")
    refused(gp("waitlist", "accept"), 2, "waitlist accept needs a number")
    assert ok(gp("waitlist", "withdraw", 1)) == "request 1 is withdrawn\n"
    assert WaitingRequest.objects.get().state == "cancelled"
    refused(gp("wait", "--gpus", 0, "--hours", 4), 2, "")


def test_a_booking_is_shared_offered_and_given(gp, lab, bob, alice):
    number = lab.now.pk
    refused(gp("unshare", number, bob.username), 2, "is shared with: nobody")
    for name in (bob.username, str(bob), bob.pk):
        assert ok(gp("share", number, bob.username)).startswith(f"{bob} can use")
        refused(gp("unshare", number, "nobody"), 2, f"shared with: {bob} (bob)")
        assert "no longer" in ok(gp("unshare", number, name))
        assert not CoUser.objects.sharing()
    refused(gp("share", number, "no such login"), 1, "")
    ok(gp("offer", number, "--to", bob.username, "--message", "I am done"))
    made = Offer.objects.get()
    refused(gp("offer", number), 2, "give --to LOGIN or --swap RESERVATION")
    assert "I am done" in ok(gp("offers"))
    assert "can be accepted" in ok(gp("offers", "check", made.pk, user=bob))
    assert "gift" in ok(gp("offers"))
    assert ok(gp("offers", "decline", made.pk)) == "declined\n"
    assert ok(gp("offers")) == "" and "declined" in ok(gp("offers", "--all"))
    refused(gp("ask", number, ""), 2, "write a message")
    assert ok(gp("ask", number, "Do you need it all day?")) == "sent\n"
    assert "all day" in ok(gp("notices", user=alice))


def test_an_answer_without_an_expected_field_is_one_line(gp, monkeypatch):
    from gpuportal_client.portal_api import Portal

    for answer in ({}, [], None, {"series": [{}]}, {"series": 5}):
        monkeypatch.setattr(Portal, "ask", lambda *_, _is=answer, **__: _is)
        refused(gp("series"), 3, "is not as expected")


def test_a_sweep_and_the_facts_of_a_job(gp, lab, tmp_path, monkeypatch, settings):
    run = ("run", "--recipe", "burn-in", "--reservation", lab.now.pk)
    assert ok(gp(*run, "--sweep", "seconds=30,60")) == "array 1: 2 jobs\n"
    assert RequestKey.objects.count() == 1, "it can be sent again"
    one = Job.objects.earliest("pk")
    assert "seconds=30" in ok(gp("array", 1)) and "state" in ok(gp("job", one.pk))
    log_store.append(one, attempt=0, offset=0, data=b"loss 1\nother\nloss 2\n")
    assert ok(gp("log", one.pk, "--search", "loss")) == "loss 1\nloss 2\n"
    refused(gp("log", one.pk, "--search", "x", "--follow"), 2, "--search or --follow")
    assert ok(gp("moves", one.pk)) == ""
    refused(gp("moves", one.pk, "--accept", 9), 1, "")
    assert gp("usage", "--job", one.pk).status == 0
    assert ok(gp("array", 1, "--stop")) == "stopped 2 jobs\n"
    assert ok(gp("jobs", "--state", "stopped")).count("\n") == 2
    assert ok(gp("jobs", "--state", "running")) == ""
    refused(gp(*run, "--sweep", "seconds=30", "--gaps"), 2, "--reservation NUMBER")
    own = ("run", "nofile.py", "--reservation", lab.now.pk)
    refused(gp(*own), 2, "there is no file nofile.py")
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "needs.txt"):
        (tmp_path / name).write_text("pass\n")
    own = ("run", "train.py", "--reservation", lab.now.pk, "--env")
    for named, told in (("needs.txt", "./needs.txt"), ("torch", "torch")):
        assert gp(*own, named).status == 0
        assert Job.objects.latest("pk").environment_folder == told
    refused(gp(*own, "none.txt"), 2, "there is no such file here")


def test_an_export_is_a_job_of_its_recipe(gp, lab, settings):
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    export = ("export", "/srv/model", "--reservation", lab.now.pk)
    told = gp(*export, "--seq", 64)
    assert told.status == 0, told
    made = Job.objects.get()
    assert (made.recipe, made.gpu_count) == ("export-onnx", 1)
    told = made.recipe_settings
    assert (told["model"], told["seq"], told["folder"]) == ("/srv/model", 64, "")
    refused(gp("export", "../x", *export[2:]), 2, "absolute path of the model's folder")


def test_a_plan_is_made_kept_and_its_files_are_written(
    gp, alice, redis_client, tmp_path
):
    make_lab()
    send_frame(redis_client)
    small = ("--set", "batch=1", "--set", "sequence_length=64")
    shown = ok(gp("plan", "gpt2", *small, "--keep", 1))
    assert shown.startswith("gpt2: ") and "comfortable" in shown
    kept = StoredPlan.objects.get()
    assert f"kept as plan {kept.pk}\n" in shown
    assert kept.title in ok(gp("plans"))
    assert ok(gp("plans", kept.pk))
    place = tmp_path / "files"
    written = ok(gp("plans", kept.pk, "--get", "--to", place)).splitlines()
    assert written and {str(path) for path in place.iterdir()} == set(written)
    refused(gp("plans", kept.pk, "--get", "--to", place), 2, "exists")
    refused(gp("plan", "no such model"), 2, "")
    for name in ("./absent/config.json", "nofile.json"):
        refused(gp("plan", name), 2, f"there is no file {name}")
    refused(gp("plan", "gpt2", "--keep", 0), 2, "from 1")
    refused(gp("plan", "gpt2", "--set", "batch=-1"), 2, "batch")
    header = {"w": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}
    text = json.dumps(header).encode()
    large = tmp_path / "net.safetensors"
    large.write_bytes(struct.pack("<Q", len(text)) + text + bytes(64))
    assert ok(gp("plan", large)).startswith("net")
    large.write_bytes(b"\xff" * 20)
    refused(gp("plan", large), 2, "is not a .safetensors file")


def test_a_model_is_stored_and_served(gp, lab, tmp_path, settings):
    settings.MEDIA_ROOT = tmp_path / "media"
    path = tmp_path / 'my "net".onnx'
    path.write_bytes(mlp_bytes())
    found = gp("serve", path, "--reservation", lab.now.pk, "--name", "net")
    stored = ModelFile.objects.get()
    assert stored.size_bytes == path.stat().st_size
    assert "onnx" in ok(gp("model-files"))
    if found.status == 0:
        assert f"/serve/{Job.objects.get().pk}" in found.out
    assert gp("served").status == 0
    refused(gp("serve", path), 2, "give one of --reservation")
    refused(gp("serve", tmp_path / "none.onnx", "--hours", 1), 2, "none.onnx")
    refused(gp("served", "--move"), 2, "give the number")


def test_a_workspace_is_started_opened_shared_and_stopped(
    gp, lab, settings, monkeypatch
):
    settings.WORKSPACE_ORIGIN = "http://*.localhost:8010"
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    place = ("--reservation", lab.now.pk, "--env", "/home/al/venv")
    made = ok(gp("workspace", "start", *place))
    one = Workspace.objects.get()
    where = f"reservation {lab.now.pk} on node-a"
    assert made == f"workspace {one.pk}: JupyterLab in {where}, queued\n"
    assert RequestKey.objects.count() == 1
    assert "queued  jupyter-lab  node-a" in ok(gp("workspace"))

    # It runs after the second look.
    from gpuportal_client import workspace_commands

    monkeypatch.setattr(workspace_commands, "LOOK_SECONDS", 0)
    looks = iter((Job.State.STARTING, Job.State.RUNNING))
    monkeypatch.setattr(
        workspace_commands.time,
        "sleep",
        lambda _seconds: Job.objects.update(state=next(looks)),
    )
    found = gp("workspace", "open", one.pk)
    address = f"http://w-{one.label}.localhost:8010/.gpuportal/enter?code="
    assert found.status == 0 and found.out.startswith(address), found
    opened = []
    monkeypatch.setattr(
        workspace_commands.webbrowser, "open", lambda url: opened.append(url) or True
    )
    assert ok(gp("workspace", "open", one.pk, "--browser")) == ""
    assert opened[0].startswith(address) and opened[0] != found.out.strip()

    assert "you and the co-users" in ok(gp("workspace", "share", one.pk))
    assert "you only" in ok(gp("workspace", "unshare", one.pk))
    assert ok(gp("workspace", "stop", one.pk)) == f"workspace {one.pk}: stopping\n"
    refused(gp("workspace", "open", one.pk), 1, "has ended")
    refused(gp("workspace", "open", 10**6), 1, "no workspace")
    refused(gp("workspace", "open"), 2, "needs a number")
    refused(gp("workspace", "start"), 2, "needs --reservation")
    refused(gp("workspace", "start", "--app", "emacs", *place), 2, "emacs")
    refused(gp("workspace", "book"), 2, "needs one GPU")
    booked = ok(gp("workspace", "book", "--on", "node-a:1", "--hours", 1))
    assert "JupyterLab" in booked
    assert "Terminal in" in ok(
        gp("workspace", "start", "--app", "terminal", *place[:2])
    )


def test_tokens_are_listed_and_revoked_but_not_made(gp, alice, bob):
    gp("tokens", user=bob)
    foreign = ApiToken.objects.get(user=bob)
    (own,) = json.loads(ok(gp("tokens", "--json", user=alice)))["tokens"][:1]
    assert own["current"] and own["scopes"] == ["read", "book", "job"]
    assert "this one" in ok(gp("tokens"))
    refused(gp("tokens", "revoke", foreign.pk), 1, f"token #{foreign.pk}")
    now = timezone.now()
    wider, _ = create_token(
        user=alice, label="w", scopes=["read", "metrics"], days=1, now=now
    )
    refused(gp("tokens", "revoke", wider.pk), 1, "permissions which yours lacks")
    less, _ = create_token(user=alice, label="l", scopes=["read"], days=1, now=now)
    assert ok(gp("tokens", "revoke", less.pk)) == f"token {less.pk} is revoked\n"
    assert ok(gp("tokens", "revoke", own["id"])) == f"token {own['id']} is revoked\n"
    refused(gp("tokens"), 1, "token that is valid")
    assert ApiToken.objects.get(pk=wider.pk).revoked_at is None


def test_a_language_model_is_served(gp, lab, settings):
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    words = ("--reservation", lab.now.pk, "--precision", "fp32", "--context", 512)
    found = gp("serve-text", "/models/tiny-gpt", *words)
    if found.status == 0:
        job = Job.objects.get()
        assert f"/serve/{job.pk}/v1" in found.out
        assert "tiny-gpt" in ok(gp("served-text", job.pk))
        shared = gp("served-text", job.pk, "--callers", "account")
        assert ok(shared) == "tiny-gpt may be called by: account\n"
    else:
        refused(found, 1, "No GPU can serve this model")
    refused(gp("serve-text", "/models/mine", *words), 2, "config.json")
    refused(gp("serve-text", "gpt2"), 2, "give one of --reservation")
    refused(gp("serve-text", "--hours", 1), 2, "give a model")
    refused(gp("serve-text", "gpt2", *words, "--config", "none.json"), 2, "none.json")
    refused(gp("served-text", "--callers", "account"), 2, "give the number")


def test_a_warning_of_the_portal_is_printed_beside_the_connection(main, capfd):
    from gpuportal_client import ssh_tunnel
    from gpuportal_client.websocket import TEXT

    ssh_tunnel.written(b"shell")
    for kind, data in ((TEXT, b"end"), (TEXT, b"news")):
        assert not ssh_tunnel.passed_on(None, kind, data)
    words = b"warning: reservation 17 ends in 10 min\x1b[2J"
    assert not ssh_tunnel.passed_on(None, TEXT, words)
    out, err = capfd.readouterr()
    assert out == "shell"
    assert err == "\r\ngp: reservation 17 ends in 10 min [2J\r\n"


@pytest.mark.parametrize("size", [0, 1, 3, 125, 126, 65_535, 65_536, 100_001])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_message_is_masked_and_says_its_length(main, monkeypatch, size, compiled):
    from gpuportal_client import websocket
    from gpuportal_client.websocket import BINARY, Socket

    assert websocket.compiled_mask() is not None, "the tests have websockets"
    if not compiled:
        monkeypatch.setattr(websocket, "compiled_mask", lambda: None)

    class Line:
        def send(self, data):
            taken = bytes(data[:70_000])
            sent.extend(taken)
            return len(taken)

    sent, data = bytearray(), bytes(i * 7 % 256 for i in range(size))
    socket = Socket.__new__(Socket)
    socket.line = Line()
    socket.send(BINARY, data)
    short, more = sent[1] & 0x7F, {126: 2, 127: 8}.get(sent[1] & 0x7F, 0)
    assert (sent[0], sent[1] & 0x80) == (0x82, 0x80)
    assert (int.from_bytes(sent[2 : 2 + more], "big") if more else short) == size
    mask, content = sent[2 + more : 6 + more], sent[6 + more :]
    assert bytes(b ^ mask[i % 4] for i, b in enumerate(content)) == data


def test_what_came_at_once_wakes_ssh_once_and_is_reported_then(main, monkeypatch):
    from gpuportal_client import ssh_tunnel
    from gpuportal_client.websocket import BINARY, TEXT

    calls = []
    line = SimpleNamespace(send=lambda kind, data: calls.append(data), line=None)
    monkeypatch.setattr(ssh_tunnel, "Socket", lambda to, path: line)
    monkeypatch.setattr(ssh_tunnel, "written", calls.append)
    there = ssh_tunnel._Connection(None, "17", None)
    for kind, data in ((TEXT, b"received 0"), (BINARY, b"a"), (BINARY, b"b")):
        there._take(kind, data)
    there._write()
    assert calls == [b"ab"]
    there._take(BINARY, bytes(ssh_tunnel.REPORT_BYTES))
    there._write()
    there._write()
    assert calls[2:] == [b"received %d" % (ssh_tunnel.REPORT_BYTES + 2)]


def test_a_copy_is_read_in_large_pieces_and_a_key_at_once(main):
    from gpuportal_client.ssh_tunnel import COPY_BYTES, FULL_BYTES, Pace

    pace = Pace()
    pace.sent(1, 10.0)
    assert pace.rest_seconds(10.0) == 0, "a key"
    pace.sent(COPY_BYTES, 10.0)
    assert 0 < pace.rest_seconds(10.0) < 0.01 and pace.rest_seconds(11.0) == 0
    pace.sent(FULL_BYTES, 10.0)
    assert pace.rest_seconds(10.0) == 0, "more may wait"
    pace.received(COPY_BYTES)
    pace.sent(40, 10.0)
    assert pace.rest_seconds(10.0) > 0, "one of many answers"
    pace.sent(40, 10.0)
    assert pace.rest_seconds(10.0) == 0


SSH = """#!/bin/sh
echo "$*" >> "$LOG"
[ "$(wc -l < "$LOG")" -gt "$LOSSES" ] && exit "$LAST"
printf 'the connection has ended: the portal restarts.' > "$GPUPORTAL_LOST_FILE"
exit 255
"""


@pytest.fixture
def lossy_ssh(main, tmp_path, monkeypatch, capfd):
    """Return a function that runs ``gp ssh`` with an ssh that loses connections."""
    from gpuportal_client import ssh_commands

    facts = {"user": "al", "host_key_alias": "node1.gpuportal"}
    monkeypatch.setattr(ssh_commands, "_certified", lambda host: facts)
    monkeypatch.setattr(ssh_commands, "PAUSE_SECONDS", 0)
    program = tmp_path / "ssh"
    program.write_text(SSH)
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def call(*words, losses, last=0):
        log = tmp_path / "log"
        log.write_text("")
        for name, value in (("LOG", log), ("LOSSES", losses), ("LAST", last)):
            monkeypatch.setenv(name, str(value))
        try:
            status = main(["ssh", *words])
        except SystemExit as left:
            status = left.code
        return status, capfd.readouterr().err, log.read_text().splitlines()

    return call


def test_a_lost_shell_names_the_command_that_goes_on(lossy_ssh):
    words = "gp: the connection has ended: the portal restarts. Go on with: gp ssh 17"
    status, told, calls = lossy_ssh("17", "--user", "al", losses=1)
    assert (status, told, len(calls)) == (3, f"{words} --user al\n", 1)
    status, told, _ = lossy_ssh("17", "--", "ls", "a b", losses=1)
    assert (status, told) == (3, f"{words} -- ls 'a b'\n")
    assert lossy_ssh("17", "--", "false", losses=0, last=1)[:2] == (1, "")


def test_a_shell_in_tmux_is_connected_again(lossy_ssh, monkeypatch):
    from gpuportal_client import ssh_commands

    status, told, calls = lossy_ssh("17", "--tmux", losses=3)
    assert (status, len(calls)) == (0, 4)
    assert told == (
        "gp: the connection has ended: the portal restarts. Connecting again ...\n"
    )
    assert all(
        one.endswith("-l al r17.gpuportal tmux new-session -A -s gp") for one in calls
    )
    assert lossy_ssh("17", "--tmux", losses=0, last=127)[:2] == (
        1,
        "gp: the node has no tmux: leave out --tmux\n",
    )
    assert lossy_ssh("17", "--tmux", "--", "ls", losses=0)[0] == 2
    monkeypatch.setattr(ssh_commands, "AGAIN_SECONDS", -1)
    status, told, calls = lossy_ssh("17", "--tmux", losses=9)
    assert (status, len(calls)) == (3, 2)
    assert told.endswith(" Go on with: gp ssh 17 --tmux\n")


@pytest.mark.parametrize(("answers", "tries", "losses"), [(0, 7, 1), (3, 9, 3)])
def test_only_an_answer_of_the_node_begins_another_two_minutes(
    main, monkeypatch, capfd, answers, tries, losses
):
    from gpuportal_client import ssh_commands

    now, began = [10**9], []

    def connect(args, host, lost, quiet):
        began.append(now[0])
        if len(began) <= answers:
            opened = lost.with_name(ssh_commands.OPEN_NAME)
            opened.touch()
            os.utime(opened, (now[0], now[0]))
        now[0] += 20  # packets are lost
        lost.write_text("the portal does not answer")
        return 255

    def pause(seconds):
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0], sleep=pause)
    monkeypatch.setattr(ssh_commands, "time", clock)
    monkeypatch.setattr(ssh_commands, "_connected", connect)
    assert main(["ssh", "17", "--tmux"]) == 3
    told = capfd.readouterr().err
    assert (len(began), told.count("Connecting again")) == (tries, losses)
    assert told.endswith("Go on with: gp ssh 17 --tmux\n")


def test_text_of_other_people_cannot_steer_a_terminal(main):
    from gpuportal_client.listing import text

    assert text("a\x1b[31m\n\x9bb\u202e") == "a [31m  b "
    assert [text(one) for one in (None, True, 0.1 + 0.2, 3.0)] == [
        "",
        "yes",
        "0.3",
        "3",
    ]
