"""Django's admin for people, accounts, quotas, the policy and the logs.

Quotas are edited in credits. Every act requires a reason and goes into the audit log.
Quotas and the policy also keep their history. The ledger and the audit log are
read-only: the database refuses every change.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.contrib.admin.widgets import AutocompleteSelect
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.forms import UserChangeForm
from django.db import models, transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext, gettext_lazy
from simple_history.admin import SimpleHistoryAdmin

from reservations.accounts import tasks
from reservations.accounts.api_tokens import revoke_token
from reservations.accounts.people import is_last_operator
from reservations.accounts.second_factors.sign_in import proof_needed, to_proof
from reservations.accounts.tree import admin_changes
from reservations.accounts.tree.login_form import LoginFormMixin
from reservations.accounts.tree.service import lock_tree
from reservations.booking.release import cancel, release
from reservations.models import (
    Account,
    Allocation,
    ApiToken,
    AuditEntry,
    Closure,
    LateReturn,
    LedgerEntry,
    Membership,
    Notice,
    Reservation,
    SitePolicy,
    User,
    Voucher,
)
from reservations.rules.errors import NotAllowed
from reservations.rules.figures import hours_text
from reservations.rules.lifecycle import State
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import joined, sentence
from telemetry.web.bytes_field import BytesField
from telemetry.web.plain_forms import PlainErrors, PlainModelForm

HOUR_SECONDS = 3600
REASON_LENGTH = 100


class GpuHoursField(forms.FloatField):
    """Credits on the page, whole weighted GPU-seconds in the database."""

    def prepare_value(self, value: Any) -> Any:
        """Convert the stored seconds into hours. Typed text stays as it is."""
        return value / HOUR_SECONDS if isinstance(value, int) else value

    def clean(self, value: Any) -> int | None:
        """Return seconds. None: the field is empty."""
        hours = super().clean(value)
        return None if hours is None else round(hours * HOUR_SECONDS)

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Compare in the stored unit, so that saving an unchanged form changes
        nothing.
        """
        try:
            return bool(self.clean(data) != initial)
        except forms.ValidationError:
            return True


class ReasonAdminForm(PlainModelForm):
    """Requires a reason, which goes into the history and the audit log."""

    reason = forms.CharField(
        max_length=REASON_LENGTH,
        help_text=gettext_lazy("Why: it is kept in the audit log."),
    )


class AuditedActs(admin.ModelAdmin):  # type: ignore[type-arg]
    """Writes an AuditEntry for every act in Django's admin."""

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Audit a new row."""
        _audit(request, obj, "added", message)
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """Audit a changed row."""
        _audit(request, obj, "changed", message)
        return super().log_change(request, obj, message)

    def log_deletions(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        """Audit deleted rows."""
        for obj in queryset:
            _audit(request, obj, "deleted", "")
        return super().log_deletions(request, queryset)


class AuditedAdmin(AuditedActs):
    """Also requires a reason, and edits quotas in hours."""

    form: Any = ReasonAdminForm

    def formfield_for_dbfield(
        self, db_field: models.Field[Any, Any], request: HttpRequest, **kw: Any
    ) -> Any:
        """Edit quotas in hours, and sizes as "100 GiB"."""
        if db_field.name.endswith("_bytes"):
            return BytesField(
                label=capfirst(db_field.verbose_name),
                required=not db_field.blank,
                help_text=db_field.help_text,
            )
        if db_field.name == "quota_gpu_seconds":
            return GpuHoursField(
                label=gettext_lazy("Quota, credits"),
                min_value=0,
                max_value=10**9,
                required=not db_field.blank,
                help_text=joined(
                    [
                        sentence("In any rolling 7 days."),
                        sentence("Empty: see the site's policy.")
                        if db_field.blank
                        else "",
                    ]
                ),
            )
        return super().formfield_for_dbfield(db_field, request, **kw)

    def save_model(
        self, request: HttpRequest, obj: Any, form: Any, change: bool
    ) -> None:
        """Store the reason in the row's history."""
        obj._change_reason = form.cleaned_data.get("reason", "")
        request._audit_reason = obj._change_reason  # type: ignore[attr-defined]
        super().save_model(request, obj, form, change)


def _audit(request: HttpRequest, obj: Any, what: str, message: Any) -> None:
    name = obj._meta.model_name
    changed: list[str] = []
    for part in message if isinstance(message, list) else ():
        for act in part.values():
            changed += act.get("fields", []) if isinstance(act, dict) else []
    detail: dict[str, Any] = {"fields": changed} if changed else {}
    detail |= getattr(request, "_audit_detail", {})
    AuditEntry.objects.create(
        at=timezone.now(),
        actor=request.user if isinstance(request.user, User) else None,
        verb=f"admin.{name}.{what}",
        subject=f"{name}:{obj.pk}",
        reason=getattr(request, "_audit_reason", ""),
        detail=detail,
    )


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows that can only be read."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody."""
        return False


class UserChangeAdminForm(LoginFormMixin, PlainErrors, UserChangeForm):  # type: ignore[misc,type-arg]
    """A login, as Django edits it, with plain errors. Operators keep their own rights.

    One operator stays, as on the pages of Manage.
    """

    actor_pk: int | None = None
    """Primary key of the admin who uses the form."""

    def clean(self) -> dict[str, Any]:
        """Refuse that people end their own rights, or those of the last operator."""
        found: dict[str, Any] = super().clean()
        ended = [
            name
            for name in ("is_active", "is_staff", "is_superuser")
            if self.initial.get(name) and not found.get(name, True)
        ]
        if not ended:
            return found
        lock_tree()
        refused = None
        if self.instance.pk == self.actor_pk:
            refused = NotAllowed(act=sentence("remove your own rights"))
        elif is_last_operator(User.objects.get(pk=self.instance.pk)):
            refused = NotAllowed(act=sentence("end the rights of the last admin"))
        if refused is not None:
            for name in ended:
                self.add_error(name, refused.text())
        return found


class UserCreationAdminForm(LoginFormMixin, PlainErrors, DjangoUserAdmin.add_form):  # type: ignore[misc,name-defined]
    """A new login, with the fields that Django requires, and plain errors."""


@admin.register(User)
class UserAdmin(DjangoUserAdmin, AuditedAdmin):  # type: ignore[type-arg]
    """Logins. They have no field for reasons, because Django's own forms are used."""

    form: Any = UserChangeAdminForm
    add_form = UserCreationAdminForm
    list_display = ("username", "display_name", "unix_user", "is_active", "is_staff")
    fieldsets = (
        *DjangoUserAdmin.fieldsets,  # type: ignore[misc]
        ("GPU Portal", {"fields": ("display_name", "unix_user", "hue")}),
    )

    def get_form(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Return the form class with the admin who uses it."""
        form = super().get_form(request, *args, **kwargs)
        form.actor_pk = request.user.pk  # type: ignore[attr-defined]
        return form

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Operators who proved their second factor lately, if they have one."""
        return super().has_add_permission(request) and not proof_needed(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Operators who proved their second factor lately, if they have one."""
        allowed = super().has_change_permission(request, obj)
        return allowed and not proof_needed(request)

    def add_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Ask for the second factor before the form is shown."""
        if request.method == "GET" and proof_needed(request):
            return to_proof(request.get_full_path())
        return super().add_view(request, *args, **kwargs)

    def change_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Ask for the second factor before the form is shown."""
        if request.method == "GET" and proof_needed(request):
            return to_proof(request.get_full_path())
        return super().change_view(request, *args, **kwargs)

    def save_model(
        self, request: HttpRequest, obj: Any, form: Any, change: bool
    ) -> None:
        """Save, and tell the previous mail address that it was changed."""
        before = form.initial.get("email", "")
        super().save_model(request, obj, form, change)
        if change and before and before != obj.email:
            send = partial(
                tasks.queue_notice, tasks.mail_address_notice, obj.pk, before
            )
            transaction.on_commit(send)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody: a login is deactivated, and its ledger stays."""
        return False


class TreeAdmin(SimpleHistoryAdmin, AuditedAdmin):  # type: ignore[misc]
    """Rows of the tree. A change saved here can also be undone under /manage/."""

    def save_model(
        self, request: HttpRequest, obj: Any, form: Any, change: bool
    ) -> None:
        """Record the row before and after."""
        before = admin_changes.next_version(obj)
        super().save_model(request, obj, form, change)
        admin_changes.record(
            before=before,
            row=obj,
            actor=request.user if isinstance(request.user, User) else None,
            reason=obj._change_reason,
            now=timezone.now(),
        )


@admin.register(Account)
class AccountAdmin(TreeAdmin):
    """The tree of groups: shares and quotas, with history."""

    list_display = ("name", "title", "parent", "shares", "quota_hours")
    list_select_related = ("parent",)
    search_fields = ("name", "title")

    @admin.display(description=gettext_lazy("quota, credits"))
    def quota_hours(self, account: Account) -> str:
        """Show the quota. A dash: it is the sum of the members' quotas."""
        return _hours_or_dash(account.quota_gpu_seconds)


class CheckedAutocomplete(AutocompleteSelect):
    """A searched choice that also accepts a submitted value that is no key.

    Django asks the database for the name of every value, when it shows a form again.
    """

    def optgroups(self, name: str, value: Sequence[str], attrs: Any = None) -> Any:
        """Return the chosen rows, without values that no row can have."""
        most = models.BigIntegerField.MAX_BIGINT
        known = [one for one in map(str, value) if one.isascii() and one.isdecimal()]
        near = [one for one in known if len(one) < 20 and int(one) <= most]
        return super().optgroups(name, near, attrs)


@admin.register(Membership)
class MembershipAdmin(TreeAdmin):
    """The memberships of accounts, with history."""

    list_display = ("user", "account", "shares", "quota_hours", "is_head", "active")
    list_filter = ("account", "is_head", "active")
    list_select_related = ("user", "account")
    search_fields = ("user__username", "user__display_name", "account__name")
    autocomplete_fields = ("user", "account")

    def formfield_for_foreignkey(
        self, db_field: Any, request: HttpRequest, **kwargs: Any
    ) -> Any:
        """Search for the chosen row; see `CheckedAutocomplete`."""
        if db_field.name in self.get_autocomplete_fields(request):
            kwargs.setdefault("widget", CheckedAutocomplete(db_field, self.admin_site))
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    @admin.display(description=gettext_lazy("quota, credits"))
    def quota_hours(self, membership: Membership) -> str:
        """Show the quota. A dash: it is the site's."""
        return _hours_or_dash(membership.quota_gpu_seconds)


def _hours_or_dash(gpu_seconds: int | None) -> str:
    return "–" if gpu_seconds is None else hours_text(gpu_seconds)


@admin.register(SitePolicy)
class SitePolicyAdmin(SimpleHistoryAdmin, AuditedAdmin):  # type: ignore[misc]
    """The one row of rules, with history."""

    list_display = ("__str__", "grid_seconds", "longest_seconds", "gpus_at_once")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Only if there is none yet."""
        return not SitePolicy.objects.exists()

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody: without rules a site cannot book."""
        return False


class AllocationInline(admin.TabularInline):  # type: ignore[type-arg]
    """The Gpus of a Reservation."""

    model = Allocation
    extra = 0
    can_delete = False
    readonly_fields = ("gpu", "start", "end", "live", "weight", "peak")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody: services write Allocations."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody."""
        return False


class ReasonAction(ActionForm):
    """An action on chosen rows, with its reason."""

    reason = forms.CharField(required=False, max_length=REASON_LENGTH)


@admin.register(Reservation)
class ReservationAdmin(ReadOnlyAdmin):
    """Reservations. They can be read, and given back through the services."""

    list_display = ("pk", "user", "membership", "start", "end", "kind", "state")
    list_filter = ("state", "kind")
    list_select_related = ("user", "membership__account", "membership__user")
    search_fields = ("user__username", "purpose")
    date_hierarchy = "start"
    inlines = (AllocationInline,)
    action_form = ReasonAction
    actions = ("give_back",)

    @admin.action(
        description=gettext_lazy("Give back (cancel or release), with a reason")
    )
    def give_back(
        self, request: HttpRequest, chosen: QuerySet[Reservation]
    ) -> HttpResponse | None:
        """Cancel unstarted Reservations, release running ones."""
        reason = request.POST.get("reason", "")
        user = request.user
        assert isinstance(user, User)
        if not user.is_operator:
            self.message_user(
                request, gettext("Only the lab admin can do this."), messages.ERROR
            )
            return None
        given = 0
        for row in chosen.order_by("pk"):
            act = release if row.state == State.ACTIVE else cancel
            try:
                act(reservation_id=row.pk, user=user, now=timezone.now(), reason=reason)
                given += 1
            except CodedError as error:
                zone = timezone.get_current_timezone()
                text = joined([f"#{row.pk}:", error.text(zone)])
                self.message_user(request, text, messages.WARNING)
        self.message_user(request, sentence("{n} given back.", n=given))
        return None


@admin.register(LedgerEntry)
class LedgerEntryAdmin(ReadOnlyAdmin):
    """Every HOLD, RELEASE, CHARGE and IMPORT."""

    list_display = ("at", "membership", "reservation", "kind", "hours", "reason")
    list_filter = ("kind",)
    list_select_related = (
        "membership__user",
        "membership__account",
        "reservation__user",
    )
    search_fields = ("membership__user__username", "reason")
    show_full_result_count = False

    @admin.display(description="credits")
    def hours(self, entry: LedgerEntry) -> str:
        """Show the amount in credits."""
        return hours_text(entry.gpu_seconds)


@admin.register(LateReturn)
class LateReturnAdmin(ReadOnlyAdmin):
    """Hours that were returned too late to be free."""

    list_display = ("reservation", "gpu", "start", "end", "permille", "charged_at")
    list_select_related = ("reservation__user", "gpu__node")


@admin.register(Voucher)
class VoucherAdmin(ReadOnlyAdmin):
    """Firm bookings beyond the horizon, given after failures of the site."""

    list_display = ("given_at", "membership", "given_for", "used_for", "reason")
    list_filter = ("reason",)


@admin.register(Closure)
class ClosureAdmin(ReadOnlyAdmin):
    """Closures. They are created and ended under Manage, which shows the effects."""

    list_display = ("kind", "scope", "start", "end", "reason", "cancelled_at")
    list_filter = ("kind", "scope")


@admin.register(Notice)
class NoticeAdmin(ReadOnlyAdmin):
    """Notices, and when they were read."""

    list_display = ("told_at", "user", "kind", "reservation", "read_at")
    list_filter = ("kind",)
    list_select_related = ("user", "reservation__user")
    search_fields = ("user__username",)


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    """The author, act, time and reason of each entry."""

    list_display = ("at", "actor", "verb", "subject", "reason")
    list_filter = ("verb",)
    list_select_related = ("actor",)
    search_fields = ("subject", "reason", "actor__username")
    show_full_result_count = False


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnlyAdmin):
    """Keys of programs. They can be revoked here, never read."""

    list_display = ("label", "user", "scopes", "expires_at", "revoked_at")
    list_select_related = ("user",)
    actions = ("revoke",)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Leave the hash out."""
        return ("label", "user", "scopes", "created_at", "expires_at", "revoked_at")

    @admin.action(description=gettext_lazy("Revoke"))
    def revoke(
        self, request: HttpRequest, chosen: QuerySet[ApiToken]
    ) -> HttpResponse | None:
        """Revoke the chosen rows."""
        now = timezone.now()
        for token in chosen.filter(revoked_at=None).select_related("user"):
            revoke_token(token_id=token.pk, user=token.user, now=now)
            request._audit_reason = "revoked at the desk"  # type: ignore[attr-defined]
            _audit(request, token, "revoked", "")
        return None
