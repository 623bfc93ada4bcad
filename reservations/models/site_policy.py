"""The site's rules, edited in the admin, with history."""

from typing import Any

from django.db import models
from django.utils.translation import gettext, gettext_lazy
from simple_history.models import HistoricalRecords

from reservations.rules.policy import Policy
from telemetry.models.policy_row import PolicyColumns, PolicyRow
from telemetry.protocol.sentences import sentence


class SitePolicy(PolicyRow):
    """One row with a column for each rule of ``Policy``."""

    declared = PolicyColumns(Policy)
    version = models.PositiveIntegerField(
        default=1,
        editable=False,
        help_text=sentence("Counts the changes; stored with every decision."),
    )

    history = HistoricalRecords()

    class Meta:
        verbose_name = gettext_lazy("site policy")
        verbose_name_plural = gettext_lazy("site policy")

    def __str__(self) -> str:
        return gettext("Site policy")

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Store a valid policy as the next version.

        Raises:
            ValidationError: on the invalid field. Nothing is stored.
        """
        # If two requests create the first row, the database refuses one, and `current`
        # reads the other's row.
        self.full_clean(validate_unique=not kwargs.get("force_insert", False))
        newest = type(self).objects.filter(pk=self.pk).values_list("version").first()
        if newest is not None:
            self.version = newest[0] + 1
            if kwargs.get("update_fields") is not None:
                kwargs["update_fields"] = {*kwargs["update_fields"], "version"}
        super().save(*args, **kwargs)

    def to_policy(self) -> Policy:
        """Return the rules as the frozen value that decisions use.

        Raises:
            PolicyInvalid: the row contradicts itself.
        """
        return self.value_of(Policy, version=self.version)

    @classmethod
    def of_version(cls, version: int) -> Policy | None:
        """Return the rules of a version. None: unknown."""
        row = cls.history.filter(version=version).order_by("-history_id").first()
        return row.instance.to_policy() if row is not None else None
