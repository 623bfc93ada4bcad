"""The caller's API tokens: /api/v1/tokens. They are listed and revoked.

A token is made on the page *Settings* only. A program that has a token cannot make
another one, which would still work after the first is revoked.
"""

from typing import TypedDict

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router

from reservations.accounts.api_tokens import revoke_token
from reservations.models import ApiToken
from reservations.rules.errors import NotAllowed, NotFound
from reservations.store.calendar_queries import iso
from reservations.web.api_parts import count_request, signed_in, token_of
from telemetry.protocol.sentences import sentence
from telemetry.web.answer_types import UtcInstant
from telemetry.web.cursor_page import CURSOR, NextPage, cursor_page, link_next

MOST = 200
router = Router(tags=["people"])


class TokenAnswer(TypedDict):
    """A token, without its text."""

    id: int
    label: str
    scopes: list[str]
    created: UtcInstant
    expires: UtcInstant
    last_used: UtcInstant | None
    """When it was last used, to five minutes. Null: never."""
    current: bool
    """Whether this request was sent with it."""


class TokenList(NextPage):
    """The caller's tokens."""

    tokens: list[TokenAnswer]


class TokenRevoked(TypedDict):
    """The token that was revoked."""

    id: int
    revoked: bool


@router.get("/tokens")
def token_list(
    request: HttpRequest,
    response: HttpResponse,
    limit: int = Query(MOST, ge=1, le=MOST),
    cursor: str = CURSOR,
) -> TokenList:
    """The caller's tokens that are not revoked, newest first. Their text is not here.

    A token is made on the page Settings.
    """
    used = token_of(request)
    rows = ApiToken.objects.filter(user=signed_in(request), revoked_at=None)
    page, following = cursor_page(rows, by="created_at", cursor=cursor, limit=limit)
    link_next(request, response, following)
    return {"tokens": [_facts(row, used) for row in page], "next": following}


@router.delete("/tokens/{int:token_id}")
def token_revoke(request: HttpRequest, token_id: int) -> TokenRevoked:
    """Revoke one of the caller's tokens. It stops working at once.

    A token revokes itself, and tokens that have none but its own scopes.
    """
    user, used = signed_in(request), token_of(request)
    now = count_request(user, writes=True)
    found = ApiToken.objects.filter(pk=token_id, user=user, revoked_at=None).first()
    if found is None:
        raise NotFound(what=sentence("token #{pk} of yours", pk=token_id))
    if used is not None and not set(found.scopes) <= set(used.scopes):
        raise NotAllowed(
            act=sentence("revoke a token that has permissions which yours lacks")
        )
    revoke_token(token_id=token_id, user=user, now=now)
    return {"id": token_id, "revoked": True}


def _facts(row: ApiToken, used: ApiToken | None) -> TokenAnswer:
    return {
        "id": row.pk,
        "label": row.label,
        "scopes": row.scopes,
        "created": iso(row.created_at),
        "expires": iso(row.expires_at),
        "last_used": iso(row.last_used_at) if row.last_used_at else None,
        "current": used is not None and row.pk == used.pk,
    }
