"""A span of each request and websocket, for OpenTelemetry."""

from typing import Any

from django.urls import Resolver404, resolve

from gpuportal.logs import trace_export

LEFT_OUT = "healthz,readyz,metrics"
"""Paths that monitoring asks for every few seconds."""


def traced(application: Any) -> Any:
    """Return an ASGI application that makes a span of each request and websocket."""
    from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
    from opentelemetry.util.http import parse_excluded_urls

    return OpenTelemetryMiddleware(
        application,
        excluded_urls=parse_excluded_urls(LEFT_OUT),
        default_span_details=_span_of,
        server_request_hook=lambda span, _scope: trace_export.note_on(span),
        exclude_spans=["receive", "send"],
    )


def _span_of(scope: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return name and attributes of a span: the route, and no number of a row."""
    method = str(scope.get("method", "websocket"))
    try:
        route = resolve(scope.get("path", "")).route
    except Resolver404:
        return method, {}
    return f"{method} /{route}", {"http.route": f"/{route}"}
