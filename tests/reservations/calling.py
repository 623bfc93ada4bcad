"""One person's browser, or one token, calling the JSON API."""

import json
from datetime import timedelta

from django.test import Client

BASE = "/api/v1"


class Caller:
    """One person's browser, or one token."""

    def __init__(self, user=None, token: str = "") -> None:
        self.client = Client(
            headers={"authorization": f"Bearer {token}"} if token else None
        )
        if user is not None:
            self.client.force_login(user)

    def __call__(self, method: str, path: str, body: object = None):
        data = {}
        if body is not None:
            data = {"data": json.dumps(body), "content_type": "application/json"}
        answer = self.client.generic(method, f"{BASE}{path}", **data)
        answer.body = json.loads(answer.content) if answer.content else None
        return answer


def wish(gpus, hour, hours=2, **more):
    return {
        "gpu_ids": [gpu.pk for gpu in gpus],
        "start": hour.isoformat(),
        "end": (hour + timedelta(hours=hours)).isoformat(),
        **more,
    }


def iso(at):
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
