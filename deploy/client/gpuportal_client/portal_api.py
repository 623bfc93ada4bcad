"""The portal's JSON API, with one person's token."""

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

from gpuportal_client.instants import span

TIMEOUT_SECONDS = 30
JSON = "application/json"
SAFE = ("https://", "http://127.", "http://localhost", "http://[::1]")

LOST = "lost"
"""Code of a request of which it is not known whether the portal handled it."""
PAUSES_SECONDS = (1, 2, 4)
"""Before a request whose answer is lost is sent again."""


class Refused(Exception):
    """The command failed: 1 the portal refuses, 2 wrong use, 3 it is not reachable."""

    def __init__(self, words, status=1, code="", problem=None):
        super().__init__(words)
        self.status = status
        self.code = code
        self.problem = problem or {}


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, so that only the portal gets the token."""

    def redirect_request(self, *_args):
        return None


class Portal:
    """The portal's JSON API, with one person's token."""

    offered = ""
    """Version of the client that the last portal offers, as it said."""

    def __init__(self, url, token):
        if not url.startswith(SAFE):
            raise Refused("the address must begin with https://", 2)
        self.url, self.token, self.known = url.rstrip("/"), token, None
        self.opener = urllib.request.build_opener(NoRedirect())

    def ask(self, method, path, body=None, *, key=None, **query):
        """Return the answer's JSON."""
        with self.open(method, path, body, key=key, **query) as answer:
            try:
                return json.loads(answer.read() or b"null")
            except ValueError:
                raise Refused(f"{self.url} is not a GPU Portal", 2) from None
            except (OSError, http.client.HTTPException) as error:
                words = f"the answer is incomplete: {error!r}"
                raise Refused(words, 3, LOST) from None

    def whole(self, path, rows, **query):
        """Return the answer with the rows of all its pages, from first to last."""
        answer = page = self.ask("GET", path, **query)
        while cursor := "next" in page and page["next"]:
            page = self.ask("GET", path, **{**query, "cursor": cursor})
            answer[rows] += page[rows]
        return {**answer, "next": None} if "next" in answer else answer

    def create(self, path, body):
        """Return the answer's JSON. Send the request again if the answer is lost.

        The portal does the request once, because it has the same key each time.
        """
        key = str(uuid.uuid4())
        for pause_seconds in PAUSES_SECONDS:
            try:
                return self.ask("POST", path, body, key=key)
            except Refused as error:
                if error.code not in (LOST, "request-running"):
                    raise
            time.sleep(pause_seconds)
        return self.ask("POST", path, body, key=key)

    def numbers(self):
        """Return the number of each GPU by the name that people know: node-a:0."""
        if self.known is None:
            rows = self.whole("/gpus", "gpus")["gpus"]
            self.known = {row["id"]: f"{row['node']}:{row['index']}" for row in rows}
        return {name: number for number, name in self.known.items()}

    def gpus(self, names):
        """Return the numbers of GPUs such as node-a:0."""
        known = self.numbers()
        if unknown := [name for name in names if name not in known]:
            raise Refused(f"there is no GPU {unknown[0]}; list them with: gp gpus", 2)
        return [known[name] for name in names]

    def cards(self, numbers):
        """Return GPUs as people know them: node-a:0, node-a:1."""
        known = {number: name for name, number in self.numbers().items()}
        return ", ".join(known.get(number, f"#{number}") for number in numbers)

    def open(self, method, path, body=None, *, key=None, **query):
        """Return the open answer. Raise Refused for an error."""
        known = {name: value for name, value in query.items() if value is not None}
        address = f"{self.url}/api/v1{path}"
        if known:
            address += "?" + urllib.parse.urlencode(known)
        request = urllib.request.Request(
            address,
            data=json.dumps(body).encode() if isinstance(body, dict) else body,
            method=method,
            headers={
                "Authorization": f"Bearer {self.token}",
                "Accept": JSON,
                **_headers_of(body),
                **({} if key is None else {"Idempotency-Key": f'"{key}"'}),
            },
        )
        try:
            answer = self.opener.open(request, timeout=TIMEOUT_SECONDS)
            type(self).offered = (answer.headers or {}).get("GPUPortal-Client", "")
            return answer
        except urllib.error.HTTPError as error:
            said = problem_of(error)
            words, code = words_of(said, error, self), str(said.get("code"))
            if error.code in (429, 500, 502, 503, 504):
                code = LOST if error.code > 500 else code
                words = f"the portal answers {error.code}: {words}"
                raise Refused(words, 3, code) from None
            wrong = error.code in (400, 413, 415, 422) or 300 <= error.code < 400
            raise Refused(words, 2 if wrong else 1, code, said) from None
        except urllib.error.URLError as error:
            words = f"the portal cannot be reached: {error.reason}"
            raise Refused(words, 3, LOST) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            words = f"the portal cannot be reached: {error}"
            raise Refused(words, 3, LOST) from None


def _headers_of(body):
    """Return the headers that describe a body: none, JSON, or files (FileUpload)."""
    if body is None:
        return {}
    if isinstance(body, dict):
        return {"Content-Type": JSON}
    return {"Content-Type": body.kind, "Content-Length": str(body.size)}


def problem_of(error):
    """Return the fields of a refusal's problem+json; {} for another body."""
    try:
        said = json.loads(error.read(2**16))
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    return said if isinstance(said, dict) else {}


def words_of(said, error, to):
    """Return a refusal as text: its sentence, its fields, the next slot."""
    if not said:
        return f"{error.code} {error.reason}"
    lines = [str(said.get("detail") or said.get("title") or error.code)]
    fields = (said.get("fields") or {}).items()
    lines += [f"  {name}: {why}" for name, why in fields if why not in lines[0]]
    slot = said.get("next_slot")
    if slot:
        lines.append(f"  free: {span(slot)}, {to.cards(slot['gpu_ids'])}")
    fewer = said.get("works_instead")
    if fewer:
        count = len(fewer["gpu_ids"])
        cards = to.cards(fewer["gpu_ids"])
        lines.append(f"  {count} would work: {span(fewer)}, {cards}")
    return "\n".join(lines)
