"""The operator's thresholds, changed as a whole: checked by field, then kept."""

from collections.abc import Mapping

from telemetry.models import TelemetryPolicy


def set_policy(*, values: Mapping[str, object]) -> TelemetryPolicy:
    """Keep thresholds that hold together; inside the caller's transaction.

    Raises:
        ValidationError: by field; nothing is kept.
    """
    TelemetryPolicy.current()
    row = TelemetryPolicy.objects.select_for_update().get(pk=1)
    for name, value in values.items():
        setattr(row, name, value)
    row.full_clean()
    row.save()
    return row
