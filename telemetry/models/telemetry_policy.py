"""The operator's thresholds: one row."""

from django.utils.translation import gettext, gettext_lazy

from telemetry.models.policy_row import PolicyColumns, PolicyRow
from telemetry.rules.retention import RetentionTimes
from telemetry.rules.thresholds import JudgePolicy, RosterPolicy


class TelemetryPolicy(PolicyRow):
    """One row. The thresholds of idleness and absence are in the site policy."""

    declared = PolicyColumns(JudgePolicy, RosterPolicy, RetentionTimes)

    class Meta:
        verbose_name = gettext_lazy("telemetry policy")
        verbose_name_plural = gettext_lazy("telemetry policy")

    def __str__(self) -> str:
        return gettext("Telemetry policy")

    def to_keeping(self) -> RetentionTimes:
        """Return how long each tier is kept.

        Raises:
            PolicyInvalid: the row contradicts itself.
        """
        return self.value_of(RetentionTimes)

    def to_policy(self) -> JudgePolicy:
        """Return the thresholds as the frozen value that the judge uses.

        Raises:
            PolicyInvalid: the row contradicts itself.
        """
        return self.value_of(JudgePolicy)
