"""Services, consents and tokens, as they are now."""

from collections.abc import Sequence
from datetime import datetime

from django.conf import settings
from django.db.models import Count, Q, QuerySet

from reservations.accounts.openid_clients.rules import OpenidPerson
from reservations.models import (
    ApiToken,
    Membership,
    OpenidClient,
    OpenidConsent,
    OpenidSubject,
    OpenidToken,
    User,
)
from reservations.store.unix_logins import has_chosen_name


def client_of(client_id: str) -> OpenidClient | None:
    """Return the service with an ID, unless it is switched off."""
    return OpenidClient.objects.filter(client_id=client_id, enabled=True).first()


def clients_with_people() -> QuerySet[OpenidClient]:
    """Return all services. ``people`` of each is how many have agreed."""
    return OpenidClient.objects.annotate(people=Count("consents"))


def consent_of(user: User, client: OpenidClient) -> OpenidConsent | None:
    """Return what a person agreed to give a service; None: nothing."""
    return OpenidConsent.objects.filter(user=user, client=client).first()


def consents_of(user: User) -> QuerySet[OpenidConsent]:
    """Return all that a person agreed to."""
    return OpenidConsent.objects.filter(user=user).select_related("client")


def groups_of(user: User) -> Sequence[str]:
    """Return the names of the accounts under which a person may book."""
    rows = Membership.objects.filter(
        user=user, active=True, account__archived_at=None
    ).order_by("account__name")
    return list(rows.values_list("account__name", flat=True))


def username_for_services(user: User) -> str:
    """Return the name by which services may log a person in; "": no name is safe.

    A person may have chosen the user name at an identity provider, such as ``root`` or
    a colleague's login. It is never given away. The Unix user that an admin has set
    takes its place.
    """
    if has_chosen_name(user):
        return user.unix_user
    return user.username


def person_of(user: User) -> OpenidPerson:
    """Return what the portal may say of a person who has agreed once."""
    subject = OpenidSubject.objects.get(user=user).subject
    return OpenidPerson(
        subject=str(subject),
        username=username_for_services(user),
        name=str(user),
        mail=user.email,
        mail_verified=settings.OPENID_EMAIL_VERIFIED,
        groups=groups_of(user),
    )


def live_tokens() -> QuerySet[OpenidToken]:
    """Return the tokens whose service is on and whose person may sign in."""
    return OpenidToken.objects.filter(
        consent__client__enabled=True, consent__user__is_active=True
    ).select_related("consent__client", "consent__user")


def access_token(text: str, now: datetime) -> OpenidToken | None:
    """Return the access token of a text; None: unknown, ended or expired."""
    rows = live_tokens().filter(expires_at__gt=now)
    return rows.filter(access_hash=ApiToken.hash_token(text)).first()


def token_of_text(text: str) -> OpenidToken | None:
    """Return a token by its access or its refresh token, expired ones too."""
    text_hash = ApiToken.hash_token(text)
    rows = OpenidToken.objects.select_related("consent__client")
    return rows.filter(Q(access_hash=text_hash) | Q(refresh_hash=text_hash)).first()
