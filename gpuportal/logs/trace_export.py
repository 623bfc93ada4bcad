"""OpenTelemetry traces of requests and tasks, where an exporter is configured.

Without ``OTEL_EXPORTER_OTLP_ENDPOINT`` nothing is imported and nothing is traced. The
packages are in requirements-otel.txt. Each span has the id of its request
(telemetry/request_id.py), and each JSON log line has the id of its trace.
"""

import logging
import os
import sys
from typing import Any

from telemetry import paths, request_id

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
REQUEST_ATTRIBUTE = "gpuportal.request_id"

logger = logging.getLogger(__name__)


def is_wanted() -> bool:
    """Return whether the environment names a collector."""
    return any(os.environ.get(name) for name in ENDPOINTS)


def missing_package() -> str:
    """Return which package of requirements-otel.txt is missing; "": none is."""
    try:
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.instrumentation.asgi
        import opentelemetry.instrumentation.celery
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError as error:
        return error.name or str(error)
    return ""


def start_export(service: str) -> bool:
    """Export the spans of this process, and trace its tasks. Return whether it does.

    Args:
        service: the name of the process, such as ``web``. ``OTEL_SERVICE_NAME``
            replaces it.
    """
    if not is_wanted():
        return False
    if missing := missing_package():
        logger.error("no traces: %s is missing (requirements-otel.txt)", missing)
        return False
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = {"service.version": paths.release()}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        named["service.name"] = f"gpuportal-{service}"
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()
    # After the receiver that begins the span of a task.
    from celery.signals import task_prerun

    task_prerun.connect(_note_request, weak=False)
    return True


def trace_id() -> str:
    """Return the id of the current trace, 32 hexadecimal digits; "": no trace."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return ""
    context = trace.get_current_span().get_span_context()
    return format(context.trace_id, "032x") if context.is_valid else ""


def _note_request(**_kwargs: object) -> None:
    from opentelemetry import trace

    note_on(trace.get_current_span())


def note_on(span: Any) -> None:
    """Write the id of the present request on a span."""
    if span is not None and span.is_recording():
        span.set_attribute(REQUEST_ATTRIBUTE, request_id.current())
