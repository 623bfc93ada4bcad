"""Exit with status 0 while the portal's socket answers ``/healthz`` with 200."""

import http.client
import os
import socket
import sys

SOCKET = os.environ.get("GPUPORTAL_SOCKET", "/run/gpuportal/web.sock")


def main() -> int:
    """Ask once, as the proxy would."""
    link = http.client.HTTPConnection("127.0.0.1", timeout=5)
    link.sock = socket.socket(socket.AF_UNIX)
    link.sock.settimeout(5)
    link.sock.connect(SOCKET)
    link.request("GET", "/healthz", headers={"X-Forwarded-Proto": "https"})
    return 0 if link.getresponse().status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
