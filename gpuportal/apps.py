"""Django's configuration of the site: pages that join all apps, health, supervisor."""

from django.apps import AppConfig


class PortalConfig(AppConfig):
    """The site's pages, which join all apps."""

    name = "gpuportal"
    verbose_name = "GPU Portal"

    def ready(self) -> None:
        """Register the checks of the settings, and a quick ``{% translate %}``."""
        from gpuportal import checks, i18n_tags  # noqa: F401

        i18n_tags.install()
