"""Jobs and their moves for the operator, read-only, and the policy of rebalancing."""

from django.contrib import admin
from django.http import HttpRequest
from simple_history.admin import SimpleHistoryAdmin

from placement.models import (
    Job,
    JobEvent,
    MoveDecision,
    PlacementPolicy,
    RegisteredModel,
    StoredPlan,
)
from reservations.admin import AuditedAdmin


class LookOnly(admin.ModelAdmin):
    """Rows that only services write."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody adds rows here."""
        return False

    def has_change_permission(
        self, request: HttpRequest, obj: object | None = None
    ) -> bool:
        """Nobody changes rows here."""
        return False

    def has_delete_permission(
        self, request: HttpRequest, obj: object | None = None
    ) -> bool:
        """Nobody deletes rows here."""
        return False


class EventInline(admin.TabularInline):
    """The history of a Job."""

    model = JobEvent
    extra = 0
    can_delete = False
    readonly_fields = ("at", "old", "new", "actor", "reason")

    def has_add_permission(self, request: HttpRequest, obj: object | None) -> bool:  # type: ignore[override]
        """Nobody adds events here."""
        return False


@admin.register(Job)
class JobAdmin(LookOnly):
    """Jobs, newest first."""

    list_display = ("id", "name", "owner", "node", "state", "created_at", "ended_at")
    list_filter = ("state", "kind", "node")
    search_fields = ("name", "owner__username", "request_id")
    readonly_fields = ("request_id",)
    list_select_related = ("owner", "node")
    inlines = (EventInline,)


@admin.register(RegisteredModel)
class RegisteredModelAdmin(LookOnly):
    """Models that people registered."""

    list_display = ("name", "owner", "source", "created_at")
    list_select_related = ("owner",)


@admin.register(StoredPlan)
class StoredPlanAdmin(LookOnly):
    """Plans that people saved."""

    list_display = ("title", "owner", "created_at")
    list_select_related = ("owner",)


@admin.register(PlacementPolicy)
class PlacementPolicyAdmin(SimpleHistoryAdmin, AuditedAdmin):  # type: ignore[misc]
    """The policy of rebalancing: review interval and action. With history."""

    list_display = ("__str__", "look_again_seconds", "when_faster", "when_in_trouble")

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Only if there is none yet."""
        return not PlacementPolicy.objects.exists()

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Nobody: its defaults would come back at once."""
        return False


@admin.register(MoveDecision)
class MoveDecisionAdmin(LookOnly):
    """Every decision to stay or to move, with its prediction and its outcome."""

    list_display = (
        "at",
        "job",
        "cause",
        "state",
        "gain_seconds",
        "cost_seconds",
        "realised_gain_seconds",
        "realised_cost_seconds",
        "automatic",
    )
    list_filter = ("state", "cause", "automatic")
    list_select_related = ("job",)
    search_fields = ("reason", "job__name", "job__owner__username")
