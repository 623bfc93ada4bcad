"""Websocket addresses of Jobs."""

from django.urls import URLPattern, path

from placement.consumers import JobConsumer

websocket_urlpatterns: list[URLPattern] = [
    path("ws/jobs/<int:pk>/", JobConsumer.as_asgi()),  # type: ignore[arg-type]
]
