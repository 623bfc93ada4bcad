"""The page on which an admin says what the groups of an identity provider give."""

from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from reservations.accounts.identities import service
from reservations.accounts.identities.forms import mapping_rows
from reservations.accounts.identities.identity_source import IdentitySource
from reservations.accounts.identities.queries import (
    identities_at,
    identity_sources,
    mapping_preview,
    mappings_of,
    seen_values,
)
from reservations.accounts.second_factors.sign_in import proof_needed
from reservations.store.access import operator_required
from reservations.web.review_page import Review, ReviewPage
from telemetry.protocol.sentences import sentence

VALUES_SHOWN = 200


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@operator_required
def show(request: HttpRequest) -> HttpResponseBase:
    """Show and change the mappings of one provider."""
    found = identity_sources()
    if not found:
        page = {"tab": "people"}
        return render(request, "reservations/accounts/identities/mapping.html", page)
    wanted = request.GET.get("provider", "")
    chosen = next((one for one in found if one.key == wanted), found[0])
    return MappingPage(request, chosen).answer()


class MappingPage(ReviewPage):
    """The mappings of one provider."""

    template = "reservations/accounts/identities/mapping.html"
    tab = "people"
    before_hint = gettext_lazy("Preview who would join or leave. Then save.")

    def __init__(self, request: HttpRequest, provider: IdentitySource) -> None:
        super().__init__(request)
        self.provider = provider

    def answer(self) -> HttpResponseBase:
        """Save nothing without a fresh proof: a mapping may make operators."""
        post = self.request.POST
        if "save" in post and proof_needed(self.request):
            return self.page(self.form_of(post), status=403)
        return super().answer()

    def form_of(self, data: Any) -> Any:
        """Return the table."""
        stored = mappings_of(self.provider.issuer)
        return mapping_rows(data, stored, folds_case=self.provider.folds_case)

    def review(self, form: Any) -> Review:
        """Return who would join or leave, by the groups seen last."""
        found = mapping_preview(self.provider.issuer, form.mappings())
        nobody = sentence("No person seen so far would join or leave a group.")
        return Review(
            mark=found.mark,
            title=gettext("Effects")
            if found.changes or found.effects
            else gettext("Nothing was changed."),
            effects=found.effects or ([nobody] if found.changes else []),
            changes=found.changes or bool(found.effects),
        )

    def save(self, form: Any, *, mark: str, reason: str) -> str:
        """Store the mappings, and apply them."""
        service.save_mappings(
            issuer=self.provider.issuer,
            mappings=form.mappings(),
            mark=mark,
            actor=self.actor,
            now=self.now,
        )
        return gettext("Saved. The audit log has every change.")

    def done(self) -> HttpResponseBase:
        """Return to the same provider."""
        return redirect(f"{reverse('manage-logins')}?provider={self.provider.key}")

    def context(self, form: Any, review: Review | None) -> dict[str, Any]:
        """Return the providers and the values seen as well."""
        seen = identities_at(self.provider.issuer)
        return {
            "proof_needed": proof_needed(self.request),
            "provider": self.provider,
            "providers": identity_sources(),
            "people": len(seen),
            "values": seen_values(seen)[:VALUES_SHOWN],
        }
