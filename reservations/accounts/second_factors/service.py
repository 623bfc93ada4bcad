"""Add, check and remove second factors. Every act is in the audit log."""

import logging
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction

from reservations.accounts.second_factors import passkeys
from reservations.accounts.second_factors.queries import (
    app_of,
    has_factor,
    passkeys_of,
)
from reservations.accounts.second_factors.rules import (
    MOST_WRONG,
    RECOVERY_BYTES,
    RECOVERY_CODES,
    locked_until,
    matching_step,
    plain_code,
    recovery_code,
)
from reservations.accounts.second_factors.sealed_text import seal, unseal
from reservations.models import ApiToken, AuditEntry, RecoveryCode, SecondFactor, User
from reservations.rules.errors import NotFound
from reservations.rules.window import unix
from telemetry.protocol.sentences import Sentence, sentence

MOST_PASSKEYS = 10
log = logging.getLogger(__name__)


class ProofRefused(Exception):
    """A code or passkey proves nothing. The text is for the person."""

    def __init__(self, why: Sentence, *, locks: bool = False) -> None:
        self.why, self.locks = why, locks
        super().__init__(why)


def add_app(*, user: User, secret: bytes, code: str, name: str, now: datetime) -> None:
    """Add an authenticator app, which shows a code of the secret.

    Raises:
        ProofRefused: the code is wrong, or the person has an app.
    """
    step = matching_step(secret, plain_code(code), now_seconds=unix(now), last_step=0)
    if step is None:
        raise ProofRefused(
            sentence("This is not the code of the app. Check the clock of the device.")
        )
    with transaction.atomic(durable=True):
        _lock(user)
        if app_of(user) is not None:
            raise ProofRefused(
                sentence("You already have an authenticator app. Remove it first.")
            )
        SecondFactor.objects.create(
            user=user,
            kind=SecondFactor.Kind.TOTP,
            name=name,
            secret=seal(secret),
            counter=step,
            added_at=now,
            used_at=now,
        )
        _audit("second-factor.added", user, user, now, kind="totp")


def add_passkey(
    *,
    user: User,
    state: Any,
    answer: str,
    name: str,
    origin: passkeys.Origin,
    now: datetime,
) -> None:
    """Add a passkey, which a browser just made.

    Raises:
        ProofRefused: the browser's answer is invalid, or there are too many.
    """
    try:
        secret, counter = passkeys.registered(state, answer, origin)
    except passkeys.PasskeyRefused as refused:
        log.warning("passkey of user %s: %s", user.pk, refused)
        raise ProofRefused(
            sentence("The browser's answer is not valid. Try again.")
        ) from refused
    with transaction.atomic(durable=True):
        _lock(user)
        kind = SecondFactor.Kind.PASSKEY
        if SecondFactor.objects.filter(user=user, kind=kind).count() >= MOST_PASSKEYS:
            raise ProofRefused(
                sentence(
                    "You have {most} passkeys already. Remove one.", most=MOST_PASSKEYS
                )
            )
        SecondFactor.objects.create(
            user=user,
            kind=kind,
            name=name,
            secret=secret,
            rp_id=origin.rp_id,
            counter=counter,
            added_at=now,
            used_at=now,
        )
        _audit("second-factor.added", user, user, now, kind="passkey")


def remove(*, user: User, factor_id: int, now: datetime) -> None:
    """Remove one of a person's own factors. The last one takes the recovery codes.

    Raises:
        NotFound: the person has no such factor.
    """
    with transaction.atomic(durable=True):
        _lock(user)
        found = SecondFactor.objects.filter(pk=factor_id, user=user).first()
        if found is None:
            raise NotFound(what=sentence("such second factor of yours"))
        _audit("second-factor.removed", user, user, now, kind=found.kind)
        found.delete()
        if not has_factor(user):
            RecoveryCode.objects.filter(user=user).delete()


def reset(*, user: User, actor: User | None, now: datetime) -> int:
    """Remove all factors and recovery codes of a person who lost them.

    Args:
        actor: the operator; None: a command on the portal's machine.

    Returns:
        How many factors there were.
    """
    with transaction.atomic(durable=True):
        _lock(user)
        count = SecondFactor.objects.filter(user=user).delete()[0]
        RecoveryCode.objects.filter(user=user).delete()
        # An operator gets a new grace to set up another one.
        User.objects.filter(pk=user.pk).update(second_factor_asked_at=None)
        if count:
            _audit("second-factor.reset", user, actor, now, factors=count)
    return count


def make_recovery_codes(*, user: User, now: datetime) -> list[str]:
    """Replace the recovery codes of a person. Return the new ones, shown only once."""
    codes = [
        recovery_code(secrets.token_bytes(RECOVERY_BYTES))
        for _ in range(RECOVERY_CODES)
    ]
    with transaction.atomic(durable=True):
        _lock(user)
        RecoveryCode.objects.filter(user=user).delete()
        RecoveryCode.objects.bulk_create(
            RecoveryCode(user=user, code_hash=_hash(code)) for code in codes
        )
        _audit("second-factor.codes-made", user, user, now)
    return codes


def check_code(*, user: User, code: str, now: datetime) -> bool:
    """Accept a code of the app, or a recovery code, once.

    Returns:
        Whether it was a recovery code.

    Raises:
        ProofRefused: it is wrong or was used, or too many codes were wrong.
    """
    typed = plain_code(code)
    with transaction.atomic(durable=True):
        _lock(user)
        used = RecoveryCode.objects.filter(
            user=user, code_hash=_hash(typed), used_at=None
        ).update(used_at=now)
        if used:
            _audit("second-factor.code-used", user, user, now)
            return True
        refused = _check_app(user, typed, now)
    # Outside, so that the count of wrong codes is stored.
    if refused is not None:
        raise refused
    return False


def _check_app(user: User, code: str, now: datetime) -> ProofRefused | None:
    """Accept a code of the app; return why not."""
    wrong = sentence("This code is wrong or was used already. Enter the next one.")
    app = app_of(user)
    if app is None:
        return ProofRefused(wrong)
    until = locked_until(app.wrong_codes, app.wrong_at, now)
    if until is not None:
        minutes = -(-(until - now).seconds // 60)
        return ProofRefused(
            sentence(
                "Too many wrong codes. Try again in {minutes} minutes, or use a "
                "passkey or a recovery code.",
                minutes=minutes,
            )
        )
    secret = unseal(app.secret)
    if secret is None:
        return ProofRefused(
            sentence(
                "The portal's secret key was changed, so it cannot check this app. Use "
                "a passkey or a recovery code, or ask the lab admin."
            )
        )
    step = matching_step(secret, code, now_seconds=unix(now), last_step=app.counter)
    if step is not None:
        app.counter, app.wrong_codes, app.used_at = step, 0, now
        app.save(update_fields=["counter", "wrong_codes", "used_at"])
        return None
    # After the app was locked, a new series begins.
    app.wrong_codes = app.wrong_codes % MOST_WRONG + 1
    app.wrong_at = now
    app.save(update_fields=["wrong_codes", "wrong_at"])
    locks = app.wrong_codes == MOST_WRONG
    if locks:
        _audit("second-factor.locked", user, None, now)
    return ProofRefused(wrong, locks=locks)


def check_passkey(
    *,
    user: User,
    state: Any,
    answer: str,
    origin: passkeys.Origin,
    now: datetime,
) -> None:
    """Accept the signature of a passkey.

    Raises:
        ProofRefused: it is invalid.
    """
    with transaction.atomic(durable=True):
        _lock(user)
        own: Sequence[SecondFactor] = passkeys_of(user, origin.rp_id)
        try:
            factor, counter = passkeys.proved(state, own, answer, origin)
        except passkeys.PasskeyRefused as refused:
            log.warning("passkey of user %s: %s", user.pk, refused)
            raise ProofRefused(
                sentence("The passkey was not accepted. Try again.")
            ) from refused
        factor.counter, factor.used_at = counter, now
        factor.save(update_fields=["counter", "used_at"])


def _lock(user: User) -> None:
    """Let one request at a time change or use the factors of a person."""
    User.objects.select_for_update(no_key=True, of=("self",)).get(pk=user.pk)


def _hash(code: str) -> str:
    return ApiToken.hash_token(plain_code(code))


def _audit(
    verb: str, user: User, actor: User | None, now: datetime, **detail: str | int
) -> None:
    AuditEntry.objects.create(
        at=now, actor=actor, verb=verb, subject=f"user:{user.pk}", detail=detail
    )
