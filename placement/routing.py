"""Websocket addresses of Jobs and of the plan page."""

from django.urls import URLPattern, path

from placement.access.stream_relay import relay_streams
from placement.jobs.consumers import (
    JobConsumer,
    JobsConsumer,
)
from placement.plans.consumers import PlanConsumer
from placement.serving.node_tunnel import serve_tunnel

websocket_urlpatterns: list[URLPattern] = [
    path("ws/jobs/", JobsConsumer.as_asgi()),  # type: ignore[arg-type]
    path("ws/jobs/<int:pk>/", JobConsumer.as_asgi()),  # type: ignore[arg-type]
    path("ws/node/serve/", serve_tunnel),  # type: ignore[arg-type]
    path("ws/node/streams/", relay_streams),  # type: ignore[arg-type]
    path("ws/plans/", PlanConsumer.as_asgi()),  # type: ignore[arg-type]
]
