"""A turn in the broker ends for its holder only."""

import uuid

from telemetry.live.broker_turn import turn


def test_one_process_at_a_time_has_the_turn(redis_client):
    name = f"test.turn.{uuid.uuid4().hex}"
    with turn(name, seconds=30, client=redis_client) as first:
        with turn(name, seconds=30, client=redis_client) as second:
            assert first and not second
        assert redis_client.exists(name)
    assert not redis_client.exists(name)


def test_a_slow_run_leaves_the_turn_of_the_next_one(redis_client):
    name = f"test.turn.{uuid.uuid4().hex}"
    with turn(name, seconds=30, client=redis_client):
        # Its time is over, and another process has begun.
        redis_client.delete(name)
        with turn(name, seconds=30, rests=10**6, client=redis_client) as next_one:
            assert next_one
        held = redis_client.get(name)
    assert redis_client.get(name) == held is not None
    redis_client.delete(name)
