"""Messages for the next page, in the language of their reader."""

from django.contrib.messages.storage.fallback import FallbackStorage

from telemetry.web.translation import translated


class TranslatedStorage(FallbackStorage):
    """Keeps messages as Django does, with sentences of the domain translated.

    A message is stored as text until the next page, so a Sentence would lose its
    template.
    """

    def add(self, level: int, message: str, extra_tags: str | None = "") -> None:
        """Keep a message for the next page."""
        super().add(level, translated(message), extra_tags)
