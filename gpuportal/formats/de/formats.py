"""German dates, and figures with a point (see the package)."""

from django.conf.locale.de import formats as usual
from django.conf.locale.de.formats import *  # noqa: F403

DECIMAL_SEPARATOR = "."
THOUSAND_SEPARATOR = "\N{NARROW NO-BREAK SPACE}"
# A form writes dates in the first format, which <input type="date"> reads.
DATE_INPUT_FORMATS = ["%Y-%m-%d", *usual.DATE_INPUT_FORMATS]
DATETIME_INPUT_FORMATS = ["%Y-%m-%d %H:%M:%S", *usual.DATETIME_INPUT_FORMATS]
# As the tag {% when %} writes a time: Di 12. Jan. 2027, 14:00.
WHEN_FORMAT = "D j. M Y, H:i"
DAY_AND_TIME_FORMAT = "D j. M H:i"
