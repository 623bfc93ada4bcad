"""Django's configuration of the site: pages that join all apps, health, supervisor."""

import atexit
import gc

from django.apps import AppConfig


class PortalConfig(AppConfig):
    """The site's pages, which join all apps."""

    name = "gpuportal"
    verbose_name = "GPU Portal"

    def ready(self) -> None:
        """Register the checks of the settings, and a quick ``{% translate %}``.

        The end of the process is quick too.
        """
        from gpuportal import checks, i18n_tags  # noqa: F401

        i18n_tags.install()
        # Otherwise the interpreter looks at every object when it ends, which takes a
        # third of a second of CPU in each process of the site.
        atexit.register(gc.freeze)
