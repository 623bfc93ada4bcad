"""How many calls of one door Django checks at once, and how many may wait."""

import asyncio
import json

from django.http import HttpResponse

from gpuportal.http.serve_door import ADMITTED_AT_ONCE, MOST_WAITING, CallAdmission


class SlowDjango:
    """Checks requests when it is told to."""

    def __init__(self):
        self.now, self.most, self.go_on = 0, 0, asyncio.Event()

    def create_request(self, scope, body):
        return scope, None

    async def get_response_async(self, request):
        self.now += 1
        self.most = max(self.most, self.now)
        await self.go_on.wait()
        self.now -= 1
        return HttpResponse(status=202)


async def test_more_calls_than_django_can_check_are_refused_at_once():
    django = SlowDjango()
    door = CallAdmission(django)
    checks = [
        asyncio.create_task(door.check({"headers": []}))
        for _ in range(ADMITTED_AT_ONCE + MOST_WAITING)
    ]
    await asyncio.sleep(0)
    refused = await door.check({"headers": []})
    assert (refused.status_code, refused["Retry-After"]) == (503, "1")
    assert "too many open requests" in json.loads(refused.content)["detail"]
    left = checks.pop()
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    checks.append(asyncio.create_task(door.check({"headers": []})))
    django.go_on.set()
    answers = await asyncio.gather(*checks)
    assert {one.status_code for one in answers} == {202}, "a place became free"
    assert django.most == ADMITTED_AT_ONCE, "pages have the other threads"
