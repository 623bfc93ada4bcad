"""The Celery application of one GPU node: ``celery -A gpuportal.node worker``.

A node runs students' code and is not trusted. So this application has its own settings
(``node_settings.py``) and no Django, no database, no secret key. It accepts only JSON
and no remote control, consumes only its own queue, and never sends a task. Large data
go over the HTTPS channel.

Its use of the broker matches the rights of its user (deploy/acl.sh): take from
``node.<name>``, append to ``raw.<name>``, ``facts.<name>`` and ``log.<name>``, and read
``telemetry.watched.*``.
"""

import atexit
import gc
import json
import logging
import sys
from importlib.abc import MetaPathFinder
from typing import Any

# Until all imports are done. Imported objects stay alive, so collections would take a
# sixth of the start and free nothing.
gc.disable()


class _NoDjango(MetaPathFinder):
    """Keeps Django out of this process, because kombu imports it if it can."""

    def find_spec(self, fullname: str, *_: object) -> None:
        """Return nothing; raise ImportError for every module of Django."""
        if fullname.partition(".")[0] == "django":
            raise ModuleNotFoundError(f"{fullname}: a node has no Django")


# A process that has Django already is not a node but, for example, a documentation
# tool.
if "django.conf" not in sys.modules:
    sys.meta_path.insert(0, _NoDjango())

from celery import Celery  # noqa: E402
from celery.apps.worker import Worker  # noqa: E402
from celery.signals import setup_logging, worker_ready, worker_shutdown  # noqa: E402
from kombu import Exchange, Queue  # noqa: E402
from kombu.utils.objects import cached_property  # noqa: E402

import gpuportal.logs.task_request  # noqa: E402, F401  (reads the id of a request)
from gpuportal import node_queue, systemd  # noqa: E402
from gpuportal.logs import log_format  # noqa: E402
from gpuportal.node_settings import NodeSettings  # noqa: E402
from placement.agent.command_handler import OrderDesk  # noqa: E402
from placement.agent.keeper import FACTS_MAXLEN, JobKeeper, connect  # noqa: E402
from telemetry.agent.child_supervisor import SamplerSupervisor  # noqa: E402

gc.freeze()
gc.enable()
logger = logging.getLogger(__name__)
settings = NodeSettings.from_env()
node_queue.use_for_every_connection()
# Otherwise the interpreter looks at every object when it ends, which takes CPU.
atexit.register(gc.freeze)


class NodeWorker(Worker):
    """A worker that never communicates with other workers, with any options of the
    command."""

    def __init__(self, **kwargs: Any) -> None:
        quiet = {"without_gossip": True, "without_mingle": True}
        super().__init__(**{**kwargs, **quiet, "without_heartbeat": True})


class NodeApp(Celery):
    """Celery without the control side's habits."""

    @cached_property
    def Worker(self) -> type[NodeWorker]:
        """The worker class of ``celery worker``."""
        return self.subclass_with_self(NodeWorker)


# fixups: Celery would import Django if DJANGO_SETTINGS_MODULE is set.
app = NodeApp("gpuportal.node", fixups=[], set_as_current=True)
app.conf.update(
    broker_url=settings.broker_url,
    broker_connection_retry_on_startup=True,
    # One list and not four, because the node's user may read only ``node.<name>``.
    broker_transport_options={"priority_steps": [0]},
    result_backend=None,
    task_ignore_result=True,
    task_serializer="json",
    accept_content=["json"],
    task_queues=[
        Queue(
            settings.queue,
            Exchange(settings.queue, type="direct"),
            routing_key=settings.queue,
        )
    ],
    task_default_queue=settings.queue,
    task_create_missing_queues=False,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    timezone="UTC",
)


def publish_fact(fact: dict[str, Any]) -> None:
    """Append one event to the node's stream."""
    with connect(settings.redis_url) as client:
        client.xadd(
            f"facts.{settings.name}",
            {"m": json.dumps(fact, separators=(",", ":"))},
            maxlen=FACTS_MAXLEN,
            approximate=True,
        )


@app.task(name="node.order", ignore_result=True)
def order(payload: str, signature: str) -> None:
    """Handle one signed command of the web."""
    OrderDesk(settings, publish=publish_fact).take(payload, signature)


class _Threads:
    """The parts that run beside the worker in its main process."""

    def __init__(self) -> None:
        self.sampler: SamplerSupervisor | None = None
        self.keeper: JobKeeper | None = None

    def start(self) -> None:
        """Start the sampler and the keeper of Jobs."""
        self.sampler = SamplerSupervisor(settings)
        self.keeper = JobKeeper(settings)
        self.sampler.start()
        self.keeper.start()

    def stop(self) -> None:
        """Stop both. Jobs continue in their shims."""
        for part in (self.keeper, self.sampler):
            if part is not None:
                part.stop()


threads = _Threads()


@setup_logging.connect(weak=False)
def use_the_nodes_logging(loglevel: int = logging.WARNING, **_kwargs: object) -> None:
    """Write each line in the form and from the level of the node's settings."""
    handler = logging.StreamHandler()
    handler.setFormatter(log_format.formatter(settings.log_format))
    handler.addFilter(log_format.RequestIdFilter())
    logging.basicConfig(level=settings.log_level or loglevel, handlers=[handler])


@worker_ready.connect(weak=False)
def start_threads(**_kwargs: object) -> None:
    """Begin to sample and to keep Jobs once commands can be taken."""
    threads.start()
    systemd.ready()


@worker_shutdown.connect(weak=False)
def stop_threads(**_kwargs: object) -> None:
    """End all threads."""
    threads.stop()
