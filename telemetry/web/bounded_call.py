"""One HTTP request to an address that was checked, with a limit of time and size.

The connection goes to the checked address and not to the name, which may change
meanwhile. The certificate must be the name's. Redirects are not followed.
"""

import http.client
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

_webhook_lookups = ThreadPoolExecutor(max_workers=4, thread_name_prefix="resolve")
"""Any person can name the host of a webhook. A slow lookup delays only other ones."""


@dataclass(frozen=True, slots=True)
class HostPort:
    """The parts of an address that a connection needs."""

    secure: bool
    host: str
    port: int


class AnswerTooLong(OSError):
    """The answer has more bytes than the caller takes."""


def resolved(
    endpoint: HostPort, *, seconds: float, pool: Executor = _webhook_lookups
) -> list[str]:
    """Return the IP addresses of a host.

    Args:
        endpoint: names the host.
        seconds: the longest wait.
        pool: runs the lookup.

    Raises:
        OSError, UnicodeError, TimeoutError: it has none, or the lookup took too long.
    """
    asked = pool.submit(
        socket.getaddrinfo, endpoint.host, endpoint.port, type=socket.SOCK_STREAM
    )
    try:
        return [str(row[4][0]) for row in asked.result(timeout=seconds)]
    except TimeoutError:
        # One that waits for a thread is not begun any more.
        asked.cancel()
        raise


class PinnedConnection(http.client.HTTPConnection):
    """A connection to the first checked address that answers."""

    def __init__(
        self, endpoint: HostPort, addresses: Sequence[str], *, seconds: float
    ) -> None:
        super().__init__(endpoint.host, endpoint.port, timeout=seconds)
        self.addresses = addresses
        self.secure = endpoint.secure
        self._ended = False

    def connect(self) -> None:
        """Connect to an address; the certificate must be the name's."""
        plain = self._plain()
        if self.secure:
            context = ssl.create_default_context()
            # Stored before the handshake, which `hang_up` must be able to end.
            self.sock = context.wrap_socket(
                plain, server_hostname=self.host, do_handshake_on_connect=False
            )
            self.sock.do_handshake()
        else:
            self.sock = plain

    def _plain(self) -> socket.socket:
        failure: OSError = OSError("the host has no address")
        for address in self.addresses:
            try:
                found = socket.create_connection((address, self.port), self.timeout)
            except OSError as error:
                failure = error
            else:
                if not self._ended:
                    return found
                found.close()
            if self._ended:
                break
        raise failure

    def hang_up(self) -> None:
        """End the connection from another thread."""
        self._ended = True
        sock = self.sock
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                sock.close()


def call(
    connection: PinnedConnection,
    method: str,
    path: str,
    *,
    data: bytes | None = None,
    headers: Mapping[str, str],
    seconds: float,
    most_bytes: int,
) -> tuple[int, bytes]:
    """Send a request once. Return the status and the body of the answer.

    Args:
        seconds: neither one socket operation nor all together may last longer. A server
            that answers byte by byte is disconnected.
        most_bytes: 0: the body is not read.

    Raises:
        AnswerTooLong: the body has more bytes.
        OSError, http.client.HTTPException: no whole answer within the time.
    """
    late = threading.Event()

    def end() -> None:
        late.set()
        connection.hang_up()

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        connection.request(method, path, data, dict(headers))
        answer = connection.getresponse()
        body = answer.read(most_bytes + 1) if most_bytes else b""
        if len(body) > most_bytes:
            raise AnswerTooLong(f"the answer is longer than {most_bytes} bytes")
        if late.is_set():
            # A body without its length seems whole when the connection ends.
            raise TimeoutError(f"no whole answer within {seconds:g} s")
        return answer.status, body
    except (OSError, http.client.HTTPException) as error:
        if late.is_set():
            raise TimeoutError(f"no whole answer within {seconds:g} s") from error
        raise
    finally:
        timer.cancel()
        connection.close()


def error_text(error: Exception) -> str:
    """Return a short text of an error of a call, without its number."""
    text = getattr(error, "strerror", None) or str(error)
    return (text or type(error).__name__)[:120]
