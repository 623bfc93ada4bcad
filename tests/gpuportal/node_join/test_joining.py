"""A token, a machine's request, and the rows that come of it."""

import base64
import socket
import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from django.utils import timezone

from gpuportal.doctor.machine_diagnosis import MachineFacts
from gpuportal.node_join import join_channel, service
from gpuportal.node_join.code_archive import _members, code_archive
from gpuportal.node_join.queries import join_rows
from gpuportal.node_join.rules import MOST_FAILURES, MOST_WRONG
from placement.protocol.join_messages import (
    JoinAnswer,
    JoinRequest,
    SeenGpu,
    opened,
    signed_request,
)
from reservations.models import AuditEntry
from telemetry.inventory.node_identity import identity_warnings, record_boot
from telemetry.live.broker_client import BROKER
from telemetry.models import Node, NodeIdentity, NodeJoin
from telemetry.protocol.codec import decode, encode
from telemetry.protocol.hardware import Isolation
from tests.factories import make_node, make_user

pytestmark = pytest.mark.django_db
NONCE = "ab" * 16


@pytest.fixture
def operator(db):
    return make_user("olga", is_superuser=True, is_staff=True)


@pytest.fixture(autouse=True)
def _reachable(settings):
    settings.REDIS_URL = "rediss://portal:x@gpu.example.org:6379/0"
    settings.PORTAL_URL = "https://gpu.example.org"
    settings.BROKER_USER_SOCKET = "/nowhere/broker-user.sock"
    yield
    for key in BROKER.scan_iter("join.failures.*"):
        BROKER.delete(key)


@pytest.fixture
def made(operator, client):
    """Make a token as an operator, through the page's service."""

    def make(name="atlas", *, again=False):
        return service.make_token(
            name=name, again=again, actor=operator, now=timezone.now()
        )

    return make


KEY = Ed25519PrivateKey.generate()


def request_of(key=KEY, **other) -> bytes:
    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    values = {
        "nonce": NONCE,
        "public_key": base64.b64encode(raw).decode(),
        "machine_hash": "1" * 64,
        "boot_id": "boot-a",
        "hostname": "atlas.lab",
        "gpus": (SeenGpu("NVIDIA A100", "GPU-1", 80 * 2**30),),
    }
    return signed_request(JoinRequest(**(values | other)), key)


def join(client, token, body=None, **headers):
    return client.post(
        "/join/v1/node",
        body or request_of(),
        content_type="application/json",
        headers={"Authorization": token.credential(), **headers},
    )


def answer_of(response, token) -> JoinAnswer:
    assert response.status_code == 200, response.content
    values = opened(
        response.content.decode(), kind="answer", pin=token.pin, nonce=NONCE
    )
    return decode(JoinAnswer, values["answer"])


def test_a_machine_joins_once_and_the_database_keeps_no_secret(client, made):
    row, token = made()
    answer = answer_of(join(client, token), token)
    assert (answer.node, answer.web_url) == ("atlas", "https://gpu.example.org")
    assert answer.broker_url.startswith("rediss://node-atlas:")
    assert not answer.broker_ready
    node = Node.objects.get(name="atlas")
    assert node.accepts(answer.token)
    row.refresh_from_db()
    stored = [str(vars(one)) for one in (row, node, node.identity)]
    password = answer.broker_url.split(":")[2].partition("@")[0]
    for secret in (token.secret, answer.token, password):
        assert secret not in "".join(stored)
    again = join(client, token)
    assert (again.status_code, again.json()["code"]) == (403, "join-refused")
    assert "used already" in again.json()["detail"]
    verbs = list(AuditEntry.objects.order_by("pk").values_list("verb", flat=True))
    assert verbs == ["node.join-token-made", "node.joined"]


def test_each_bad_token_gets_its_own_sentence_and_changes_nothing(client, made):
    _, token = made()
    NodeJoin.objects.update(expires_at=timezone.now())
    _, other = made("borg")
    for wanted, said in (
        (token, "has expired"),
        (token._replace(secret="x" * 32), "does not know"),
        (token._replace(public_id="0" * 16), "does not know"),
        (token._replace(secret="short"), "no join token"),
    ):
        refused = join(client, wanted)
        assert refused.status_code == 403
        assert said in refused.json()["detail"]
    assert service.withdraw_token(
        join_id=NodeJoin.objects.get(name="borg").pk,
        actor=AuditEntry.objects.first().actor,
        now=timezone.now(),
    )
    assert "withdrew" in join(client, other).json()["detail"]
    assert not Node.objects.exists()
    assert not NodeJoin.objects.exclude(used_at=None).exists()


def test_a_token_ends_after_wrong_secrets_and_an_address_is_slowed_down(client, made):
    _, token = made()
    NodeJoin.objects.update(wrong_count=MOST_WRONG)
    assert "too often" in join(client, token).json()["detail"]
    wrong = token._replace(public_id="0" * 16)
    for _ in range(MOST_FAILURES):
        assert join(client, wrong).status_code == 403
    slowed = join(client, wrong)
    assert slowed.status_code == 429
    assert int(slowed["Retry-After"]) > 0
    # Machines of a lab share an address. A right token still works.
    _, right = made()
    answer_of(join(client, right), right)


def key_of(key) -> str:
    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return base64.b64encode(raw).decode()


def test_a_token_works_with_the_first_key_only(client, made):
    row, token = made()

    def greet(key: str):
        shown = {"Authorization": token.credential()}
        asked = {"nonce": NONCE, "key": key}
        return client.get("/join/v1/greeting", asked, headers=shown)

    assert greet("").status_code == 200
    for bad in ("x", "A" * 44, key_of(KEY) + "\n"):
        assert greet(bad).status_code == 400
    row.refresh_from_db()
    assert row.public_key == ""
    for _ in range(2):
        assert greet(key_of(KEY)).status_code == 200
    thief = Ed25519PrivateKey.generate()
    for refused in (greet(key_of(thief)), join(client, token, request_of(thief))):
        assert (refused.status_code, refused.json()["code"]) == (403, "join-refused")
        assert "another key used this token first" in refused.json()["detail"]
    row.refresh_from_db()
    assert row.used_at is None
    assert not Node.objects.exists()
    answer_of(join(client, token), token)
    row.refresh_from_db()
    assert row.public_key == key_of(KEY)


@pytest.mark.parametrize("which", ["portal", "broker"])
def test_certificates_that_cannot_be_read_leave_the_token_unused(
    client, made, settings, monkeypatch, tmp_path, which
):
    row, token = made()
    if which == "portal":
        monkeypatch.setattr(service, "PORTAL_CA", tmp_path)
    else:
        settings.BROKER_CA_FILE = str(tmp_path / "missing.pem")
    refused = join(client, token)
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    assert f"cannot read {tmp_path}" in refused.json()["detail"]
    row.refresh_from_db()
    assert row.used_at is None
    assert not Node.objects.exists()


@pytest.mark.once
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"\xff\xfe", 422, "invalid"),
        (b"a" * 200_000, 413, "too-large"),
        (request_of(hostname="a\x00b"), 422, "invalid"),
        (
            request_of().replace(b"atlas.lab", b"borg.lab."),
            403,
            "join-refused",
        ),
    ],
    ids=["bytes", "large", "null", "altered"],
)
def test_a_bad_request_leaves_the_token_unused(client, made, body, status, code):
    row, token = made()
    refused = join(client, token, body)
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    row.refresh_from_db()
    assert row.used_at is None


def test_a_name_that_was_enrolled_meanwhile_is_not_taken_over(client, made):
    row, token = made()
    make_node("atlas")
    refused = join(client, token)
    assert "after the token was made" in refused.json()["detail"]
    row.refresh_from_db()
    assert row.used_at is None


def test_an_enrolled_machine_joins_again_and_its_old_token_ends(client, made):
    _, token = made()
    first = answer_of(join(client, token), token)
    _, token = made(again=True)
    second = answer_of(join(client, token), token)
    node = Node.objects.get(name="atlas")
    assert node.accepts(second.token)
    assert not node.accepts(first.token)
    assert node.identity.join_count == 2
    assert node.identity.other_machine_at is None
    _, token = made(again=True)
    answer_of(join(client, token, request_of(machine_hash="2" * 64)), token)
    assert NodeIdentity.objects.get().other_machine_at is not None


@pytest.mark.once
def test_two_nodes_of_one_disk_are_found(client, made):
    for name in ("atlas", "borg"):
        _, token = made(name)
        answer_of(join(client, token), token)
    atlas, borg = Node.objects.order_by("name")
    now = timezone.now()
    (warning,) = identity_warnings(borg, now)
    assert "same key" in warning
    assert "clone" in warning
    _, token = made("borg", again=True)
    answer_of(join(client, token, request_of(Ed25519PrivateKey.generate())), token)
    assert "one image" in identity_warnings(atlas, now)[0]
    Node.objects.filter(pk=borg.pk).update(retired=True)
    assert not identity_warnings(atlas, now)


@pytest.mark.once
def test_two_machines_with_one_token_are_found_and_forgotten(client, made):
    _, token = made()
    answer = answer_of(join(client, token), token)

    def hello(boot_id):
        shown = {"Authorization": f"Node atlas:{answer.token}", "X-Boot-Id": boot_id}
        assert client.get("/node/v1/hello", headers=shown).status_code == 200

    node, now = Node.objects.get(), timezone.now()
    for boot_id in ("boot-a", "boot-b", "boot-b", "x" * 41):
        hello(boot_id)
    assert not identity_warnings(node, now)
    hello("boot-a")
    assert "Two machines" in identity_warnings(node, now)[0]
    assert not identity_warnings(node, now + timedelta(hours=1))


def test_a_node_that_was_enrolled_by_hand_is_watched_too():
    node, now = make_node("atlas"), timezone.now()
    for boot_id in ("a", "b", "a"):
        record_boot(node=node, boot_id=boot_id, now=now)
    assert identity_warnings(node, now)


@contextmanager
def broker_user_helper(path, answer: bytes):
    """A helper that gives one answer, and keeps what it was asked."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve():
            link, _ = server.accept()
            with link:
                asked.append(link.makefile("rb").read())
                link.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield asked
        thread.join(60)


def test_the_broker_user_is_made_by_the_helper_from_a_hash(
    client, made, settings, tmp_path
):
    row, token = made()
    settings.BROKER_USER_SOCKET = str(tmp_path / "s")
    with broker_user_helper(tmp_path / "s", b"ok\n") as asked:
        answer = answer_of(join(client, token), token)
    assert answer.broker_ready
    row.refresh_from_db()
    assert asked == [f"atlas {row.broker_hash}\n".encode()]
    assert row.broker_set


def test_the_page_shows_each_check_with_its_remedy(client, made):
    row, token = made()
    answer = answer_of(join(client, token), token)
    row.refresh_from_db()
    rows = {one.diagnosis.check: one.diagnosis for one in join_rows(row, row.used_at)}
    assert rows["gpus"].fact == "1 GPU seen: NVIDIA A100"
    # A site without the helper: the command for an operator, with the hash only.
    assert f"broker-user atlas {row.broker_hash}" in rows["user"].fix
    facts = MachineFacts(
        gpus=0,
        driver="",
        clock_seconds=3600.0,
        disk_free_bytes=None,
        folder="/var/lib/gpuportal-node",
        cgroup_v2=False,
        isolation=Isolation.NONE,
        gate=False,
        sshd_port=0,
        sshd=None,
        broker="refused",
        channel="",
        torch="",
        worker="failed",
    )
    shown = {"Authorization": f"Node atlas:{answer.token}"}
    post = client.post
    sent = post("/node/v1/doctor", encode(facts), "application/json", headers=shown)
    assert sent.status_code == 204
    wrong = post("/node/v1/doctor", b'{"gpus": "4"}', "application/json", headers=shown)
    assert wrong.status_code == 422
    assert post("/node/v1/doctor", b"{}", "application/json").status_code == 401
    row.refresh_from_db()
    rows = {one.diagnosis.check: one.diagnosis for one in join_rows(row, row.used_at)}
    assert "3600.0 s off" in rows["clock"].fact
    for check in ("clock", "disk", "cgroups", "isolation", "torch"):
        assert rows[check].fix
    # They fail because the broker does not know the user, which has its own line.
    assert not {"broker", "worker"} & rows.keys()
    NodeJoin.objects.update(broker_set=True)
    row.refresh_from_db()
    rows = {one.diagnosis.check: one.diagnosis for one in join_rows(row, row.used_at)}
    assert rows["worker"].fix
    assert rows["broker"].fix
    # Once samples arrive, what the broker said before is outdated.
    now = timezone.now() + timedelta(seconds=1)
    Node.objects.update(last_seen_at=now)
    row = NodeJoin.objects.select_related("node").get()
    rows = {one.diagnosis.check: one.diagnosis for one in join_rows(row, now)}
    assert "broker" not in rows
    assert rows["user"].state == "ok"


# --- the addresses before a machine joins ------------------------------------------


def test_greeting_and_code_need_a_token_and_agree(client, made):
    assert client.get(f"/join/v1/greeting?nonce={NONCE}").status_code == 403
    _, token = made()
    shown = {"Authorization": token.credential()}
    text = client.get(f"/join/v1/greeting?nonce={NONCE}", headers=shown)
    values = opened(text.content.decode(), kind="greeting", pin=token.pin, nonce=NONCE)
    assert values["node"] == "atlas"
    url = f"/join/v1/code/{values['code']}.tar.gz"
    assert client.get(url).status_code == 403
    assert client.get(url, headers=shown).content == code_archive().data
    other = client.get("/join/v1/code/0.tar.gz", headers=shown)
    assert other.status_code == 404
    for nonce in ("", "x" * 32, NONCE + "a"):
        bad = client.get(f"/join/v1/greeting?nonce={nonce}", headers=shown)
        assert bad.status_code == 400


def test_a_node_reads_the_present_code_with_its_own_token(client, made):
    _, token = made()
    answer = answer_of(join(client, token), token)
    shown = {"Authorization": f"Node atlas:{answer.token}"}
    text = client.get(f"/join/v1/greeting?nonce={NONCE}", headers=shown)
    values = opened(text.content.decode(), kind="greeting", pin=token.pin, nonce=NONCE)
    assert values["node"] == "atlas"
    # It may not let others join.
    assert (
        client.post("/join/v1/node", b"x", "text/plain", headers=shown).status_code
        == 403
    )


def test_the_script_has_the_portals_address_and_nothing_of_a_stranger(client, settings):
    script = client.get("/join.sh").content.decode()
    assert "\nportal=https://gpu.example.org\n" in script
    settings.PORTAL_URL = "https://gpu.lab.example.org:8443"
    script = client.get("/join.sh").content.decode()
    assert "\nportal=https://gpu.lab.example.org:8443\n" in script
    settings.PORTAL_URL = "https://x; rm -rf /"
    assert client.get("/join.sh").status_code == 404


def test_the_code_has_no_settings_and_no_links(tmp_path):
    (tmp_path / "LICENSE").write_text("text")
    (tmp_path / "gpuportal").mkdir()
    (tmp_path / "gpuportal" / "a.py").write_text("")
    (tmp_path / "gpuportal" / "secret.env").write_text("")
    (tmp_path / "gpuportal" / "b.py").symlink_to("/etc/passwd")
    assert [path.name for path in _members(tmp_path)] == ["LICENSE", "a.py"]


@pytest.mark.once
def test_a_portal_of_one_machine_lets_no_machine_join(client, made, settings, operator):
    _, token = made()
    settings.REDIS_URL = "unix:///run/valkey.sock?db=0"
    refused = join(client, token)
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    client.force_login(operator)
    page = client.get("/manage/machines/add/")
    assert "make run" in page.content.decode()
    assert client.post("/manage/machines/add/", {"name": "atlas"}).status_code == 409


# --- the pages ---------------------------------------------------------------------


def test_the_line_is_shown_once_and_can_be_withdrawn(client, operator):
    client.force_login(operator)
    page = client.post("/manage/machines/add/", {"name": "atlas"}).content.decode()
    assert 'value="curl -fsS https://gpu.example.org/join.sh | sudo sh"' in page
    assert page.count('value="gpj1_') == 1
    assert page.count("gpj1_") == 1
    row = NodeJoin.objects.get()
    watch = client.get(f"/manage/machines/{row.pk}/").content.decode()
    assert "gpj1_" not in watch
    assert "data-expires" in watch
    client.post("/manage/machines/add/", {"name": "atlas"})
    row.refresh_from_db()
    # One open token for a name.
    assert row.withdrawn_at is not None
    newer = NodeJoin.objects.exclude(pk=row.pk).get()
    client.post(f"/manage/machines/{newer.pk}/withdraw/")
    newer.refresh_from_db()
    assert newer.withdrawn_at is not None
    log = client.get("/manage/audit/").content.decode()
    assert "withdrew the join token of atlas" in log


@pytest.mark.parametrize(
    ("name", "again", "said"),
    [
        ("a/b", "", "letters, digits"),
        ("-a", "", "letters, digits"),
        ("_a", "", "begins with a letter"),
        ("a" * 64, "", "63"),
        ("borg", "", "enrolled already"),
        ("none", "on", "No node is enrolled"),
    ],
)
def test_a_name_that_cannot_join_is_refused_beside_its_field(
    client, operator, name, again, said
):
    make_node("borg")
    client.force_login(operator)
    page = client.post("/manage/machines/add/", {"name": name, "again": again})
    assert page.status_code == 422
    assert said in page.content.decode()
    assert not NodeJoin.objects.exists()


@pytest.mark.once
def test_only_operators_add_machines(client):
    row = NodeJoin.objects.create(
        public_id="0" * 16,
        secret_hash="",
        name="a",
        expires_at=timezone.now(),
    )
    client.force_login(make_user("sam"))
    for url in ("/manage/machines/add/", f"/manage/machines/{row.pk}/"):
        assert client.get(url).status_code == 403
    assert client.post(f"/manage/machines/{row.pk}/withdraw/").status_code == 403
    assert join_channel.SCRIPT.is_file()
