"""Whether SIGTERM has come."""

import signal


class StopFlag:
    """Records a SIGTERM instead of ending the process."""

    def __init__(self) -> None:
        self.to_stop = False
        signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, *_: object) -> None:
        self.to_stop = True
