"""One Job of Alice on node ``red``, whose queue the tests read."""

from tests.placement.stage_fixtures import (  # noqa: F401  (fixtures, by name)
    cards,
    job,
    node,
    orders,
    reservation,
    rules,
    running,
    slow,
    text_bodies,
    watched,
)
