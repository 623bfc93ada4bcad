"""Addresses and claims of the provider in ``allauth_site``."""

import json
from typing import Any

from allauth.idp.oidc.adapter import DefaultOIDCAdapter
from django.conf import settings
from django.urls import include, path


class Adapter(DefaultOIDCAdapter):
    """Adds the groups, and leaves the profile to the UserInfo endpoint."""

    def get_claims(
        self, purpose: str, user: Any, client: Any, scopes: Any, **more: Any
    ) -> dict[str, Any]:
        """Return the claims of a person."""
        found = super().get_claims(purpose, user, client, scopes, **more)
        if purpose == "id_token":
            return {"sub": found["sub"]}
        file = settings.GROUPS_FILE
        groups = json.loads(file.read_text()) if file.exists() else {}
        if user.username in groups:
            found["groups"] = groups[user.username]
        return found


urlpatterns = [
    path("", include("allauth.idp.urls")),
    path("accounts/", include("allauth.account.urls")),
]
