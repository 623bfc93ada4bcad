"""What every page knows of the site."""

from django.conf import settings
from django.http import HttpRequest


def site(request: HttpRequest) -> dict[str, object]:
    """Return the banner facts and the site's time zone."""
    return {"site_time_zone": settings.TIME_ZONE}
