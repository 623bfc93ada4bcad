"""What tests of pages in a browser share."""

from playwright.sync_api import Page


def faded_in(page: Page) -> None:
    """Wait for what fades or moves: half there it has not its colours yet."""
    page.evaluate(
        """async () => {
          const ends = (one) => one.effect.getComputedTiming().endTime < Infinity;
          const moving = document.getAnimations().filter(ends);
          await Promise.allSettled(moving.map((one) => one.finished));
        }"""
    )
