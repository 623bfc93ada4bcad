"""A small program for workspaces: it repeats what it was sent."""

import asyncio
import json
import socket
import threading
import time
from contextlib import contextmanager

import uvicorn

from placement.agent.access.ssh_service import carry

COOKIES = (
    b"_xsrf=mine; Path=/",
    b"tossed=1; Domain=localhost; Path=/",
    b"sessionid=evil; Path=/",
    b"__Host-gpuportal-workspace=evil; Secure; Path=/",
)


async def program(scope, receive, send):
    """Answer with the request's headers and the length of its body, or repeat words."""
    if scope["type"] == "websocket":
        await repeat(scope, receive, send)
        return
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    named = [(k.decode(), v.decode()) for k, v in scope["headers"]]
    body = json.dumps({"path": scope["path"], "headers": named, "size": size}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"access-control-allow-origin", b"*"),
        (b"clear-site-data", b'"cookies"'),
        *((b"set-cookie", cookie) for cookie in COOKIES),
    ]
    if scope["path"] == "/page":
        body = b"<!doctype html><html><head><title>Lab</title></head></html>"
        length = str(len(body)).encode()
        headers = [(b"content-type", b"text/html"), (b"content-length", length)]
    if scope["path"] == "/large":
        body = bytes(3 * 2**20)
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if scope["path"] == "/endless":
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            continue
        return
    await send({"type": "http.response.body", "body": body})


async def repeat(scope, receive, send):
    """Repeat every message of a websocket."""
    await receive()
    chosen = scope["subprotocols"][-1] if scope["subprotocols"] else None
    await send({"type": "websocket.accept", "subprotocol": chosen})
    while (message := await receive())["type"] == "websocket.receive":
        if message.get("text") == "close":
            await send({"type": "websocket.close", "code": 4001})
            return
        told = {k: message[k] for k in ("text", "bytes") if message.get(k) is not None}
        await send({"type": "websocket.send", **told})


@contextmanager
def program_service():
    """Run the program. Yield the service of a node that connects to it."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(program, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listener]}, daemon=True
    )
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)

    async def connect(node, order, stream):
        """Carry one connection, and remember what was ordered."""
        connect.orders.append(order)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            await carry(reader, writer, stream)
        finally:
            writer.close()

    connect.orders = []
    try:
        yield connect
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
