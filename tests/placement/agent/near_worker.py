"""A node worker that starts fast: the real desk and keeper, without Celery.

python -m tests.placement.agent.near_worker with a node worker's environment
"""

import base64
import json

import redis

from gpuportal.node_settings import NodeSettings
from placement.agent.command_handler import OrderDesk
from placement.agent.keeper import JobKeeper


def main() -> None:
    """Take commands from the node's queue without end."""
    settings = NodeSettings.from_env()
    keeper = JobKeeper(settings)
    keeper.start()
    # Without a time limit: on a busy machine an answer takes long.
    client = redis.Redis.from_url(settings.redis_url)

    def publish(fact: dict[str, object]) -> None:
        client.xadd(f"facts.{settings.name}", {"m": json.dumps(fact)})

    desk = OrderDesk(settings, publish=publish)
    while True:
        taken = client.blpop([settings.queue], timeout=1)
        if taken is None:
            continue
        task = json.loads(taken[1])
        body = task["body"]
        if task["properties"].get("body_encoding") == "base64":
            body = base64.b64decode(body)
        _, order, _ = json.loads(body)
        desk.take(**order)


if __name__ == "__main__":
    main()
