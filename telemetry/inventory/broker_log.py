"""The broker's log of refusals."""

import logging

import redis
from django.conf import settings
from redis.exceptions import NoPermissionError

from telemetry.rules.broker_refusals import BrokerRefusal, recent

BROKER_TIMEOUT_SECONDS = 2.0

logger = logging.getLogger(__name__)


def refused_nodes() -> dict[str, BrokerRefusal]:
    """Return, by name, the newest refusal of each node in the last minutes.

    Returns nothing, and logs it, if the broker is away or does not let the portal read
    its log.
    """
    try:
        with redis.Redis.from_url(
            settings.REDIS_URL, socket_timeout=BROKER_TIMEOUT_SECONDS
        ) as client:
            return recent(client.acl_log())
    except NoPermissionError:
        logger.warning(
            "the broker does not let the portal read ACL LOG: its user is older than "
            "deploy/acl.sh. Print it again, or give it +acl|log"
        )
    except redis.RedisError as error:
        logger.warning("the broker does not tell whom it refused: %s", error)
    return {}
