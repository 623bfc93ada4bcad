"""The caller's ssh public keys: /api/v1/ssh-keys."""

from typing import Any, TypedDict

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Status
from pydantic import Field

from reservations.accounts.second_factors.sign_in import check_proof
from reservations.accounts.ssh_keys import service as ssh_keys
from reservations.accounts.ssh_keys.public_key import MOST_CHARACTERS
from reservations.models import SshKey
from reservations.rules.errors import NotFound
from reservations.store.calendar_queries import iso
from reservations.web.api_parts import count_request, signed_in
from reservations.web.schemas import Line, _Strict
from telemetry.protocol.sentences import sentence
from telemetry.web.answer_types import UtcInstant
from telemetry.web.cursor_page import CURSOR, NextPage, cursor_page, link_next

router = Router(tags=["people"])


class SshKeyIn(_Strict):
    """A public key, as in a ``.pub`` file."""

    public_key: str = Field(min_length=1, max_length=MOST_CHARACTERS)
    name: Line = Field("", max_length=ssh_keys.MOST_NAME_CHARACTERS)


class SshKeyAnswer(TypedDict):
    """A stored public key."""

    id: int
    name: str
    kind: str
    """Its algorithm: ssh-ed25519, for example."""
    fingerprint: str
    """SHA256:..., as ssh-keygen prints it."""
    public_key: str
    added: UtcInstant
    last_used: UtcInstant | None
    """When it was last used. Null: never."""


class SshKeyList(NextPage):
    """The caller's public keys."""

    ssh_keys: list[SshKeyAnswer]


class SshKeyRemoved(TypedDict):
    """The key that was removed."""

    id: int
    removed: bool


@router.get("/ssh-keys")
def ssh_key_list(
    request: HttpRequest,
    response: HttpResponse,
    limit: int = Query(ssh_keys.MOST_KEYS, ge=1, le=ssh_keys.MOST_KEYS),
    cursor: str = CURSOR,
) -> SshKeyList:
    """The caller's ssh public keys, newest first."""
    rows = SshKey.objects.filter(user=signed_in(request))
    page, following = cursor_page(rows, by="added_at", cursor=cursor, limit=limit)
    link_next(request, response, following)
    return {"ssh_keys": [_facts(key) for key in page], "next": following}


@router.post("/ssh-keys", response={201: dict[str, Any]})
def ssh_key_add(request: HttpRequest, body: SshKeyIn) -> Status[SshKeyAnswer]:
    """Store an ssh public key. Certificates are made for stored keys only."""
    user = signed_in(request)
    if "Authorization" not in request.headers:
        # A token was made with the second factor.
        check_proof(request)
    now = count_request(user, writes=True)
    key = ssh_keys.add_key(user=user, text=body.public_key, name=body.name, now=now)
    return Status(201, _facts(key))


@router.delete("/ssh-keys/{int:key_id}")
def ssh_key_remove(request: HttpRequest, key_id: int) -> SshKeyRemoved:
    """Remove one of the caller's keys. Its certificates open nothing afterwards."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    if not ssh_keys.remove_key(key_id=key_id, user=user, now=now):
        raise NotFound(what=sentence("ssh key #{pk} of yours", pk=key_id))
    return {"id": key_id, "removed": True}


def _facts(key: SshKey) -> SshKeyAnswer:
    return {
        "id": key.pk,
        "name": key.name,
        "kind": key.kind,
        "fingerprint": key.fingerprint,
        "public_key": key.public_key,
        "added": iso(key.added_at),
        "last_used": iso(key.last_used_at) if key.last_used_at else None,
    }
