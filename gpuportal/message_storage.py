"""Messages between two pages, in the language of the reader who caused them."""

from django.contrib.messages.storage.fallback import FallbackStorage

from telemetry.web.translation import translated


class TranslatedStorage(FallbackStorage):
    """Keeps messages as Django does, with sentences of the domain translated.

    A message is stored as text until the next page, where a Sentence would no longer
    know what it was made of.
    """

    def add(self, level: int, message: str, extra_tags: str | None = "") -> None:
        """Keep a message for the next page."""
        super().add(level, translated(message), extra_tags)
