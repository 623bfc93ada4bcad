"""English dates as in the United Kingdom: 25 Oct 2006."""

from django.conf.locale.en_GB.formats import *  # noqa: F403

# As the tag {% when %} writes a time: Tue 12 Jan 2027, 14:00.
WHEN_FORMAT = "D j M Y, H:i"
DAY_AND_TIME_FORMAT = "D j M H:i"
