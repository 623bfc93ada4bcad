"""A node proves its key, renews its token, and a clone of its disk is refused."""

import errno
import json
import logging
import os
import shutil
from dataclasses import replace
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.test import Client
from django.utils import timezone

from gpuportal.doctor.machine_diagnosis import machine_report
from gpuportal.doctor.node_facts import _short_token
from gpuportal.doctor.portal_diagnosis import portal_report
from gpuportal.doctor.portal_facts import _nodes
from placement.agent import channel_check, token_renewal
from placement.agent.channel_check import ChannelWatch
from placement.agent.portal_channel import ChannelDown, ChannelRefused, failure
from placement.jobs.nodes import node_channel, token_channel
from placement.protocol.events import ChannelState
from telemetry.inventory.node_identity import identity_warnings
from telemetry.inventory.short_tokens import (
    LIFE,
    OVERLAP,
    node_with_token,
    renew_short_token,
)
from telemetry.models import Node, NodeIdentity
from telemetry.protocol.node_proof import (
    NodeProof,
    ProofFault,
    public_key_of,
    sealed_proof,
)
from telemetry.protocol.node_token import RENEW_AFTER_SECONDS, token_hash
from telemetry.token_files import TokenFiles
from tests.factories import make_node
from tests.gpuportal.doctor.test_diagnosis import NODE, PORTAL
from tests.placement import nodes

pytestmark = pytest.mark.django_db
URL = "http://portal"


class Portal:
    """The portal's side in this process, at a time that the test sets."""

    def __init__(self) -> None:
        self.client, self.now = Client(), timezone.now()
        self.lost: set[str] = set()
        """Addresses whose answers are lost."""
        self.asked: list[str] = []

    def request(self, method, url, *, node, token, body=None, headers=None, key=None):
        """Answer as `portal_channel.request` does."""
        path = url.removeprefix(URL)
        self.asked.append(path)
        shown = {"Authorization": f"Node {node}:{token}", **(headers or {})}
        answer = self.client.generic(
            method, path, body or b"", "application/octet-stream", headers=shown
        )
        if path in self.lost:
            raise ChannelDown("the answer was lost")
        if answer.status_code in (200, 409):
            return answer.status_code, answer.content
        raise failure(answer.status_code, answer.content.decode()[:200])

    def knows(self, settings, token=None):
        """Whether the portal accepts a token now."""
        shown = settings.token() if token is None else token
        return node_with_token(settings.name, shown, self.now) is not None


@pytest.fixture
def portal(monkeypatch):
    made = Portal()
    monkeypatch.setattr(token_renewal, "request", made.request)
    monkeypatch.setattr(channel_check, "request", made.request)
    for module in (node_channel, token_channel):
        monkeypatch.setattr(module.timezone, "now", lambda: made.now)
    return made


@pytest.fixture
def red(tmp_path):
    """Settings of an enrolled node without a key."""
    row = make_node("red", release="0.2.0")
    token = row.new_token()
    row.save()
    return settings_of(tmp_path / "red", token)


def settings_of(folder, token):
    folder.mkdir()
    made = nodes.make_settings(folder, name="red", web_url=URL)
    made.token_file.write_text(token)
    return made


def clone_of(settings, folder):
    """Return the settings of a machine with a copy of the disk."""
    shutil.copytree(settings.token_file.parent, folder)
    return replace(settings, token_file=folder / settings.token_file.name)


def looked(settings):
    """What the worker finds each minute."""
    watch = ChannelWatch(settings)
    watch.check_and_report(lambda fact: True)
    return watch.known


def short_of(settings):
    return _short_token(TokenFiles(settings.token_file))[0]


def make_due(settings):
    """Let two thirds of the life of the token be over, by the node's clock."""
    file = TokenFiles(settings.token_file).short
    old = file.stat().st_mtime - RENEW_AFTER_SECONDS - 1
    os.utime(file, (old, old))


def test_a_node_proves_itself_once_and_renews_at_two_thirds(portal, red):
    enrolment = red.token()
    assert looked(red).state is ChannelState.OK
    assert red.token() != enrolment and short_of(red) == 1
    folder = red.token_file.parent
    made = {path.name for path in folder.iterdir() if "node" in path.name}
    assert made == {"node.token", "node.token.short", "node_key"}
    for name in ("node.token.short", "node_key"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    # Requests with the token before are answered for some minutes.
    assert portal.knows(red, enrolment)
    portal.now += OVERLAP
    assert not portal.knows(red, enrolment) and portal.knows(red)
    portal.asked.clear()
    first = red.token()
    assert looked(red).state is ChannelState.OK
    assert portal.asked == ["/node/v1/hello"] and red.token() == first
    make_due(red)
    assert looked(red).state is ChannelState.OK
    assert short_of(red) == 2 and red.token() != first
    # What a Job fetches uses the token that is shown at that moment.
    assert TokenFiles(red.token_file).shown_token() == red.token()
    stored = str(vars(Node.objects.get())) + str(vars(NodeIdentity.objects.get()))
    for secret in (enrolment, first, red.token()):
        assert secret not in stored


def test_a_node_that_was_off_for_a_week_proves_itself_again(portal, red):
    looked(red)
    portal.now += LIFE - timedelta(seconds=1)
    assert portal.knows(red)
    portal.now += timedelta(days=7)
    assert not portal.knows(red)
    (line,) = [one for one in _nodes(portal.now) if one.name == "red"]
    assert line.token_age_seconds == LIFE.total_seconds() * 8 - 1
    assert looked(red).state is ChannelState.OK
    assert short_of(red) == 2 and portal.knows(red)


def test_a_lost_answer_costs_no_number(portal, red):
    portal.lost = {"/node/v1/token"}
    for _ in range(3):
        # The token of the enrolment still works.
        assert looked(red).state is ChannelState.OK
        assert short_of(red) == 0
    portal.lost = set()
    assert looked(red).state is ChannelState.OK
    assert short_of(red) == NodeIdentity.objects.get().token_number == 1
    assert portal.knows(red)


def test_a_cloned_disk_is_found_and_the_later_machine_is_refused(portal, red, tmp_path):
    looked(red)
    clone = clone_of(red, tmp_path / "clone")
    for machine in (red, clone):
        make_due(machine)
    assert looked(red).state is ChannelState.OK
    found = looked(clone)
    assert found.state is ChannelState.REFUSED
    assert "(127.0.0.1) has renewed the token of red" in found.detail
    assert "let it join again" in found.detail
    node = Node.objects.get()
    (warning,) = identity_warnings(node, portal.now)
    assert "Two machines prove that they are red" in warning
    assert warning.count("(127.0.0.1)") == 2
    (line,) = _nodes(portal.now)
    assert line.warnings == (warning,)
    report = portal_report(replace(PORTAL, nodes=(line,)))
    assert [one.fact for one in report if one.check == "node red"]
    # The right machine joins again. The clone has the token of no enrolment.
    token = node.new_token()
    node.save()
    red.token_file.write_text(token)
    portal.now += OVERLAP
    assert looked(red).state is ChannelState.OK and short_of(red) == 1
    assert looked(clone).state is ChannelState.REFUSED
    assert not portal.knows(clone)
    assert not identity_warnings(node, portal.now + timedelta(minutes=16))


def test_another_key_is_refused_once_the_first_one_is_bound(portal, red, tmp_path):
    other = clone_of(red, tmp_path / "other")
    looked(red)
    found = looked(other)
    assert found.state is ChannelState.REFUSED
    assert "bound to the key of" in found.detail
    assert identity_warnings(Node.objects.get(), portal.now)


def test_a_worker_of_the_first_release_goes_on_with_its_token(portal, red):
    enrolment = red.token()
    looked(red)
    portal.now += timedelta(days=30)
    assert not portal.knows(red, enrolment)
    # The node went back to 0.1.0, which reports no release and has no proof.
    Node.objects.update(release="")
    assert portal.knows(red, enrolment)
    Node.objects.update(retired=True)
    assert not portal.knows(red, enrolment) and not portal.knows(red)


def test_a_portal_of_the_first_release_gets_the_token_of_the_enrolment(
    portal, red, monkeypatch
):
    enrolment = red.token()
    looked(red)
    make_due(red)
    with monkeypatch.context() as patch:
        # It has no such address.
        patch.setattr(token_renewal, "_answer", _not_found)
        assert token_renewal.renew_if_due(red) is None
        assert red.token() == enrolment
    assert looked(red).state is ChannelState.OK and short_of(red) == 2


def _not_found(*_args):
    raise ChannelRefused(404, "no such page")


def test_a_node_of_the_portals_own_machine_keeps_its_token(portal, red):
    own = replace(red, supervisor_pid=1)
    assert looked(own).state is ChannelState.OK
    assert short_of(own) == 0
    assert not NodeIdentity.objects.exclude(token_number=0).exists()


def test_what_cannot_be_written_is_not_asked_for(portal, red, caplog):
    blocked = TokenFiles(red.token_file).draft
    blocked.mkdir()
    # The token of the enrolment does not end before the first proof.
    with caplog.at_level(logging.WARNING):
        assert looked(red).state is ChannelState.OK
    assert f"no short token: [Errno 21] Is a directory: '{blocked}'" in caplog.text
    assert not NodeIdentity.objects.exclude(token_number=0).exists()
    blocked.rmdir()
    assert looked(red).state is ChannelState.OK and short_of(red) == 1
    portal.now += LIFE
    red.token_file.with_name("node_key").write_text("nonsense")
    found = looked(red)
    assert found.state is ChannelState.TOKEN
    assert "delete it, and join again" in found.detail


def test_a_full_disk_leaves_no_empty_key(portal, red, monkeypatch):
    def full(_handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = red.token_file.with_name("node_key")
    with monkeypatch.context() as patch:
        patch.setattr(token_renewal.os, "fsync", full)
        for _ in range(2):
            assert looked(red).state is ChannelState.OK
            assert not path.exists() and short_of(red) == 0
    assert looked(red).state is ChannelState.OK and short_of(red) == 1
    left = {one.name for one in path.parent.iterdir() if "key" in one.name}
    assert left == {"node_key", "order_key.pub"}


def test_bad_proofs_are_refused_in_one_sentence_and_change_nothing(portal, red):
    key = Ed25519PrivateKey.generate()
    challenge = json.loads(portal.client.get("/node/v1/challenge").content)["challenge"]
    proof = NodeProof(
        node="red",
        challenge=challenge,
        public_key=public_key_of(key),
        enrolment=token_hash(red.token()),
        number=0,
        next_hash=token_hash("next"),
    )
    good = sealed_proof(proof, key)
    bent = {"node": "blue", "enrolment": "0" * 64, "challenge": challenge[:-1] + "!"}
    bodies = [
        (sealed_proof(replace_of(proof, **{name: value}), key), status)
        for (name, value), status in zip(bent.items(), (401, 401, 422), strict=True)
    ]
    bodies += [
        (sealed_proof(proof, Ed25519PrivateKey.generate()), 422),
        (good.replace(b"red", b"rad"), 422),
        (sealed_proof(replace_of(proof, hostname="a\0"), key), 422),
        (sealed_proof(replace_of(proof, number=-1), key), 422),
        (b"", 411),
        (b"[]", 422),
        (b'{"text": "{}", "signature": "x"}', 422),
        (b"\xff" * 100, 422),
        (b"x" * 10_000, 413),
    ]
    for body, status in bodies:
        answer = posted(portal, body, red.token())
        assert answer.status_code == status, (body[:80], answer.content)
        assert answer.json()["detail"]
    assert not NodeIdentity.objects.exists()
    # A dump of the database has the hash of the enrolment token, and so a whole proof.
    for shown in ("", Node.objects.get().token_hash, "gpn1.x"):
        assert posted(portal, good, shown).status_code == 401
    assert posted(portal, good, red.token(), name="blue").status_code == 401
    assert not NodeIdentity.objects.exists()
    portal.client.get("/node/v1/token")
    answer = posted(portal, good, red.token())
    assert answer.json() == {"number": 1, "seconds": 86_400}


def test_a_request_that_does_not_know_the_token_locks_nothing(
    portal, red, django_assert_num_queries, monkeypatch
):
    proof = NodeProof(
        node="red",
        challenge="x",
        public_key="A" * 43 + "=",
        enrolment=Node.objects.get().token_hash,
        number=0,
        next_hash=token_hash("next"),
    )
    # One read, and no transaction.
    with django_assert_num_queries(1):
        found = renew_short_token(proof, enrolment="x", machine="", now=portal.now)
    assert found is ProofFault.ENROLMENT
    monkeypatch.setattr(token_channel, "PER_MINUTE", 0)
    answer = posted(portal, b"{}", "x")
    assert (answer.status_code, answer.json()["code"]) == (429, "too-fast")
    assert int(answer["Retry-After"]) > 0


def test_a_node_of_another_engine_renews_its_token(portal, red):
    Node.objects.update(engine=Node.Engine.SLURM)
    assert looked(red).state is ChannelState.OK and short_of(red) == 1
    Node.objects.update(retired=True)
    make_due(red)
    assert looked(red).state is ChannelState.REFUSED


def test_the_life_of_a_token_begins_with_the_last_answer(portal, red):
    looked(red)
    first = red.token()
    make_due(red)
    portal.lost = {"/node/v1/token"}
    assert looked(red).state is ChannelState.OK and red.token() == first
    portal.lost, portal.now = set(), portal.now + LIFE + timedelta(hours=1)
    assert looked(red).state is ChannelState.OK
    assert short_of(red) == NodeIdentity.objects.get().token_number == 2
    assert portal.knows(red) and not portal.knows(red, first)


def posted(portal, body, token, name="red"):
    """The answer to a proof with an enrolment token."""
    return portal.client.post(
        "/node/v1/token",
        body,
        content_type="application/octet-stream",
        headers={"Authorization": f"Node {name}:{token}"},
    )


def replace_of(proof, **changes):
    values = {name: getattr(proof, name) for name in proof.__struct_fields__}
    return NodeProof(**(values | changes))


def test_a_challenge_ends_after_a_minute(portal, red, monkeypatch):
    answer = token_renewal._answer

    def slow(*args):
        found = answer(*args)
        monkeypatch.setattr("django.core.signing.time.time", lambda: 2.0**32)
        return found

    monkeypatch.setattr(token_renewal, "_answer", slow)
    assert "challenge" in token_renewal.renew(red).detail
    assert not NodeIdentity.objects.exists()


def test_the_doctor_names_number_and_age_of_the_token(red):
    def said(**facts):
        (found,) = [
            one
            for one in machine_report(replace(NODE, **facts))
            if one.check == "token"
        ]
        return found.state.value, str(found.fact)

    assert said() == ("note", "that of the enrolment, which does not end")
    age = {"token_number": 12, "token_age_seconds": 3 * 3600.0}
    assert said(**age) == ("ok", "number 12, 3 h old")
    assert said(**age | {"token_age_seconds": 2 * 86_400.0})[0] == "problem"
