"""A span of each request and websocket, for OpenTelemetry.

Some paths and queries are secrets: those of invitations, calendars and sign-ins. So the
instrumentation never sees them. It sees the route in place of the path, no query and no
address of the client.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from django.urls import Resolver404, resolve

from gpuportal.logs import trace_export

LEFT_OUT = "healthz,readyz,metrics"
"""Paths that monitoring asks for every few seconds."""
_REAL = "gpuportal.scope"


def traced(application: Callable[..., Awaitable[None]]) -> Callable[..., Any]:
    """Return an ASGI application that makes a span of each request and websocket."""
    from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
    from opentelemetry.util.http import parse_excluded_urls

    async def with_real_scope(scope: dict[str, Any], *channels: Any) -> None:
        await application(scope.get(_REAL, scope), *channels)

    spans = OpenTelemetryMiddleware(
        with_real_scope,
        excluded_urls=parse_excluded_urls(LEFT_OUT),
        default_span_details=_span_of,
        server_request_hook=lambda span, _scope: trace_export.note_on(span),
        exclude_spans=["receive", "send"],
    )

    async def without_secrets(scope: dict[str, Any], *channels: Any) -> None:
        if scope["type"] in ("http", "websocket"):
            shown = {"path": _route(scope.get("path", "")), "query_string": b""}
            hidden = {"raw_path": b"", "client": None, _REAL: scope}
            scope = {**scope, **shown, **hidden}
        await spans(scope, *channels)

    return without_secrets


def _route(path: str) -> str:
    """Return the route of a path, such as ``/jobs/<int:pk>``; "": it has none."""
    try:
        return f"/{resolve(path).route}"
    except Resolver404:
        return ""


def _span_of(scope: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return name and attributes of a span: the route, and no number of a row."""
    method, route = str(scope.get("method", "websocket")), scope["path"]
    return (f"{method} {route}", {"http.route": route}) if route else (method, {})
