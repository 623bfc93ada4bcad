"""HTTP and websockets through one ASGI application."""

import gc
import os

# Until all is imported. What is imported stays, so to look for garbage would take a
# sixth of the start and find nothing.
gc.disable()

import django  # noqa: E402

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuportal.settings")
django.setup(set_prefix=False)

# Consumers import models, so this comes after Django is set up.
from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402

import gpuportal.celery  # noqa: E402, F401  (sockets send tasks)
from gpuportal import systemd, work_counters  # noqa: E402
from gpuportal.http.handler import OneHopHandler  # noqa: E402
from gpuportal.http.language_model_door import LanguageModelDoor  # noqa: E402
from gpuportal.http.message_limit import MessageLimit  # noqa: E402
from gpuportal.http.origin import SameOrigin  # noqa: E402
from gpuportal.http.serve_door import ServeDoor  # noqa: E402
from gpuportal.http.socket_language import SocketLanguage  # noqa: E402
from gpuportal.http.workspace_door import WorkspaceDoor  # noqa: E402
from gpuportal.logs import process_usage, request_spans, trace_export  # noqa: E402
from gpuportal.logs.request_scope import RequestScope  # noqa: E402
from gpuportal.routing import websocket_urlpatterns  # noqa: E402
from gpuportal.upgrade.earlier_cookies import EarlierCookies  # noqa: E402

django_handler = OneHopHandler()
doors = WorkspaceDoor(
    ProtocolTypeRouter(
        {
            "http": EarlierCookies(
                LanguageModelDoor(django_handler, ServeDoor(django_handler))
            ),
            "websocket": MessageLimit(
                SameOrigin(
                    EarlierCookies(
                        AuthMiddlewareStack(
                            SocketLanguage(URLRouter(websocket_urlpatterns))
                        )
                    )
                )
            ),
        }
    )
)
application = RequestScope(
    request_spans.traced(doors) if trace_export.start_export("web") else doors
)
work_counters.start()
process_usage.start("web")
gc.freeze()
gc.enable()
# The port is open already, and requests are accepted from here on.
systemd.ready()
