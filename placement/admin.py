"""Jobs for the operator: to look at. What happened is not edited."""

from django.contrib import admin
from django.http import HttpRequest

from placement.models import Job, JobEvent, RegisteredModel, StoredPlan


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
    """What happened to a Job."""

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
    search_fields = ("name", "owner__username")
    list_select_related = ("owner", "node")
    inlines = (EventInline,)


@admin.register(RegisteredModel)
class RegisteredModelAdmin(LookOnly):
    """Models that people registered."""

    list_display = ("name", "owner", "source", "created_at")
    list_select_related = ("owner",)


@admin.register(StoredPlan)
class StoredPlanAdmin(LookOnly):
    """Plans that people kept."""

    list_display = ("title", "owner", "created_at")
    list_select_related = ("owner",)
