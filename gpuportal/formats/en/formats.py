"""English dates as in the United Kingdom: 25 Oct 2006."""

from django.conf.locale.en_GB.formats import *  # noqa: F403
