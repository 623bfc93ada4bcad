"""The site's periodic tasks."""

from celery import shared_task
from django.utils import timezone

from gpuportal.http import login_limits


@shared_task(name="gpuportal.tasks.clear_logins")
def clear_logins() -> dict[str, int]:
    """Delete ended sessions and old logins (see ``login_limits``)."""
    return login_limits.clear_logins(timezone.now())
