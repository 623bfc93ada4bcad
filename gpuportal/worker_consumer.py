"""The consumer of every worker: a broker that restarts does not end the process.

When Celery loses its connection, it forgets the broker's address and then closes the
connection. If messages were received and not yet acknowledged, kombu (5.7) wants to
give them back, asks for the address and fails with AttributeError. That would end the
worker. By then the connection is given up, as it should be, and Celery only has to
connect again.
"""

import logging

from celery.worker.consumer import Consumer

logger = logging.getLogger(__name__)


class SteadyConsumer(Consumer):  # type: ignore[misc]
    """Celery's consumer, set by `worker_consumer`."""

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Give up the lost connection. `Consumer.start` then makes a new one.

        A broker that kept the unacknowledged messages delivers them again after an hour
        (kombu's visibility timeout).
        """
        try:
            super().on_connection_error_after_connected(exc)
        except AttributeError as error:
            if self.connection is not None:
                raise
            logger.info("the lost connection could not be closed in order: %s", error)
