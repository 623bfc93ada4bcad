"""Types in the annotations of answers. No web framework of the API is loaded here."""

from typing import Annotated, Generic, NamedTuple, TypeVar

from django.http import HttpResponse
from msgspec import Meta

Content = TypeVar("Content")
UtcInstant = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""ISO 8601 in UTC, with Z."""
LocalDay = Annotated[str, Meta(extra_json_schema={"format": "date"})]
"""ISO 8601, in the portal's time zone."""


class MediaType(NamedTuple):
    """The media type of an answer that is not JSON."""

    name: str


CsvAnswer = Annotated[HttpResponse, MediaType("text/csv")]
ZipAnswer = Annotated[HttpResponse, MediaType("application/zip")]


class EncodedAnswer(HttpResponse, Generic[Content]):
    """An answer whose content is JSON already."""
