"""All websocket addresses of the site."""

from django.urls import URLPattern, path

from gpuportal.consumers import BoardConsumer
from placement.routing import websocket_urlpatterns as placement_urls
from reservations.routing import websocket_urlpatterns as reservations_urls

websocket_urlpatterns: list[URLPattern] = [
    path("ws/board/", BoardConsumer.as_asgi()),  # type: ignore[arg-type]
    *reservations_urls,
    *placement_urls,
]
