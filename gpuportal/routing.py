"""All websocket addresses of the site."""

from channels.security.websocket import WebsocketDenier
from django.urls import URLPattern, path, re_path

from gpuportal.alerts.consumers import AlertsConsumer
from gpuportal.board.consumers import BoardConsumer
from gpuportal.board.wall_consumer import WallConsumer
from gpuportal.http.ssh_door import ssh_door
from gpuportal.http.terminal_door import terminal_door
from placement.routing import websocket_urlpatterns as placement_urls
from reservations.routing import websocket_urlpatterns as reservations_urls

websocket_urlpatterns: list[URLPattern] = [
    path("ws/board/", BoardConsumer.as_asgi()),  # type: ignore[arg-type]
    path("ws/wall/<str:token>/", WallConsumer.as_asgi()),  # type: ignore[arg-type]
    path("ws/alerts/", AlertsConsumer.as_asgi()),
    path("ws/ssh/<int:pk>/", ssh_door),  # type: ignore[arg-type]
    path("ws/terminal/<int:pk>/", terminal_door),  # type: ignore[arg-type]
    *reservations_urls,
    *placement_urls,
    # Without this an unknown address is a crash in the log.
    re_path("", WebsocketDenier.as_asgi()),  # type: ignore[arg-type]
]
