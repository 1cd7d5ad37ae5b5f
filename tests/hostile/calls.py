"""A hostile client: requests made from a seed, over every route of the binding and what is not one.

A third of the calls are what a good client sends, so that jobs, workers and queues are really there to be
damaged; the others are bent in one or more of the ways below. Equal seeds and equal answers give equal
calls: job ids that the server made are chosen by their place, not by their text.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from django_ojs import urls
from tests.hostile import words
from tests.hostile.values import ODD, Pairs, nested, write

V1 = "/ojs/v1/"
#: Where most of the parsing is.
_FAVOURITES = ("jobs", "jobs/batch", "workers/fetch", "workers/ack", "workers/nack", "workers/heartbeat", "dead-letter",
               "events", "queues", "dead-letter/<str:job_id>/retry", "workflows", "cron")  # fmt: skip
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW", "PROPFIND")
_SETTLES = re.compile(r".*/(ack|nack|fail|heartbeat|beat)").fullmatch


@dataclass(frozen=True)
class Route:
    """One path below `/ojs/v1/` with its parameters in angle brackets, and what its view takes."""

    pattern: str
    methods: tuple[str, ...]


def routes() -> list[Route]:
    """The binding's own URLs, so that a new endpoint is attacked without a word here."""
    found = [Route(str(item.pattern), tuple(m for m in METHODS[:5] if m.lower() in taken(item.callback)))
             for item in urls.v1]  # fmt: skip
    return [route for route in found if route.pattern != "admin/reset"]


def taken(callback: Any) -> set[str]:
    """The methods of a view; those of a ViewSet at a path are in its `actions`."""
    return {name for name in callback.cls.http_method_names if hasattr(callback.cls, name)} | {
        *getattr(callback, "actions", ())
    }


@dataclass
class Call:
    """One request, before any server has seen it. `target` is as on the wire; names and values are latin-1."""

    method: str
    target: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def __str__(self) -> str:
        return f"{self.method} {self.target[:300]!r} {self.headers!r:.600} {self.body[:600]!r}"


@dataclass
class Known:
    """What the client has learnt from answers: it attacks what is there rather than what is not."""

    jobs: list[str] = field(default_factory=list)
    active: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    flows: list[str] = field(default_factory=list)
    cursors: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


class Attacker:
    """`call()` makes the next request."""

    def __init__(self, seed: int, known: Known) -> None:
        self.random = random.Random(seed)
        self.known = known
        self.routes = routes()
        self.routes += 3 * [route for route in self.routes if route.pattern in _FAVOURITES]

    def call(self) -> Call:
        r = self.random
        route = r.choice(self.routes)
        method = r.choice(route.methods or METHODS) if r.random() < 0.93 else r.choice(METHODS)
        bends = r.choices((0, 1, 2, 4), (35, 40, 20, 5))[0]
        call = Call(method, self._target(route))
        if method in ("POST", "PUT", "PATCH") or r.random() < 0.1:
            document = self._document(route.pattern)
            call.body = write(document).encode()
            call.headers["Content-Type"] = "application/openjobspec+json"
            call.headers["Content-Length"] = str(len(call.body))
        if method in ("GET", "HEAD") and r.random() < 0.7:
            call.target += "?" + self._query()
        for _ in range(bends):
            r.choice(_BENDS)(self, call, route)
        if self.known.keys and r.random() < 0.97:
            call.headers.setdefault("Authorization", f"Bearer {r.choice(self.known.keys)}")
        if method == "POST" and r.random() < 0.1:
            call.headers["Idempotency-Key"] = r.choice(words.HEADERS["Idempotency-Key"])
        return call

    # Good parts

    def job_id(self, pattern: str = "") -> str:
        """One of the jobs that are there, and often one in the state that this path is about."""
        r = self.random
        fitting = self.known.dead if pattern.startswith("dead") else self.known.active if _SETTLES(pattern) else []
        if fitting and r.random() < 0.7:
            return r.choice(fitting[-10:])
        if not self.known.jobs or r.random() < 0.05:
            return self.new_id()
        return r.choice(self.known.jobs[-40:] if r.random() < 0.5 else self.known.jobs)

    def new_id(self) -> str:
        number = self.random.getrandbits(128) & ~(0xF << 76 | 0x3 << 62) | 7 << 76 | 2 << 62
        return str(uuid.UUID(int=number))

    def _named(self) -> str:
        """What else has an id of its own: a workflow that is there, or whatever comes."""
        return self.random.choice([*self.known.flows[-20:], *words.CRONS, self.job_id()])

    def _target(self, route: Route) -> str:
        r = self.random
        values: dict[str, Callable[[], str]] = {
            "job_id": lambda: self.job_id(route.pattern),
            "worker_id": lambda: r.choice(words.WORKERS),
            "name": lambda: r.choice(words.QUEUES),
        }
        parts = []
        if route.pattern.startswith("cron"):
            values["name"] = lambda: r.choice(words.CRONS)
        for part in route.pattern.split("/"):
            name = part.strip("<>").rpartition(":")[2] if part.startswith("<") else ""
            parts.append(quote(values.get(name, self._named)(), safe="") if name else part)
        return V1 + "/".join(parts)

    def _query(self) -> str:
        r = self.random
        names = r.sample(words.PARAMETERS, r.randint(1, 4))
        return "&".join(f"{name}={quote(self._parameter(name), safe=':*,+')}" for name in names)

    def _parameter(self, name: str) -> str:
        r = self.random
        if r.random() < 0.3:
            return r.choice(words.ODD_TEXTS)
        if name in ("cursor", "after"):
            return r.choice(self.known.cursors) if self.known.cursors and r.random() < 0.5 else self._forged_cursor()
        match name:
            case "limit" | "per_page" | "page" | "offset" | "timeout":
                return r.choice(["0", "1", "2", "-1", "999999", "9" * 30, "+3", "1.5", "1e3", "0x10", "٣"])
            case "state" | "states" | "sort" | "order":
                return r.choice(
                    ["available", "AAA", "available,,AAA", "running", "priority", "created_at", "asc", "id"]
                )
            case "since" | "until" | "older_than":
                return r.choice(words.ODD_TIMES)
            case "job_id" | "workflow_id":
                return self.job_id()
            case "sources":
                return r.choice(words.SOURCES)
        return r.choice([*words.QUEUES, *words.TYPES, "job.*", "*", "mail.*", "a,b,,c", "worker.heartbeat"])

    def _forged_cursor(self) -> str:
        r = self.random
        key: list[Any] = [r.choice([0, -1, 5, 2**53, 1e9, True, "0", None])]
        key += r.choices([*words.ODD_TIMES, *words.ODD_TEXTS, self.job_id(), "default", 5, None], k=r.randint(0, 3))
        shaped = [[0, r.choice(words.ODD_TIMES), self.job_id()], [0, r.choice(words.ODD_TEXTS)]]
        text = json.dumps(r.choice([key, *shaped, *shaped, {"0": key}, 5, "x", nested(5000)]))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=" * r.randint(0, 1))

    def _document(self, pattern: str) -> dict[str, Any]:
        r = self.random
        match pattern:
            case "jobs":
                return self._envelope()
            case "jobs/batch":
                return {"jobs": [self._envelope() for _ in range(r.randint(1, 4))]}
            case "workers/fetch" | "jobs/fetch":
                return {
                    "queues": r.sample(words.QUEUES, r.randint(1, 4)),
                    "worker_id": r.choice(words.WORKERS),
                } | self._some(words.FETCH)
        if pattern.endswith("/ack"):
            return {"job_id": self.job_id(pattern)} | self._some(words.ACK)
        if pattern.endswith(("/nack", "/fail")):
            error = {"message": "broken", "type": r.choice(["Boom", "shutdown", "x"])} | self._some(words.ERROR)
            return {"job_id": self.job_id(pattern), "error": error} | self._some(words.NACK)
        if pattern.endswith(("/heartbeat", "/beat")):
            return {"worker_id": r.choice(words.WORKERS), "active_jobs": [self.job_id(pattern)]} | self._some(
                words.BEAT
            )
        if pattern.startswith("workers"):
            return {"worker_id": r.choice(words.WORKERS)} | self._some(words.BEAT)
        if pattern in ("cron", "crons", "cron/<str:name>", "crons/<str:name>"):
            named = {} if "<" in pattern else {"name": r.choice(words.CRONS)}
            return named | {"expression": "@every 1s", "type": "a.b", "args": []} | self._some(words.CRON)
        if pattern.startswith("workflows"):
            return self._workflow()
        if pattern.startswith("dead-letter"):
            return {"override": self._some(words.OVERRIDE)} if r.random() < 0.5 else {}
        if pattern.endswith("maintenance"):  # never on: nothing would be fetched any more
            return {"enabled": False} | self._some(words.MAINTENANCE)
        return self._some({"reason": ["enough"]})

    def _envelope(self) -> dict[str, Any]:
        r = self.random
        document = {"type": r.choice(words.TYPES), "args": [r.choice(["é", 1, None, {"a": [1.5]}])]}
        if r.random() < 0.1:
            document["id"] = self.new_id() if r.random() < 0.7 else self.job_id()
        return document | self._some(words.ENVELOPE, most=4)

    def _workflow(self, depth: int = 0) -> dict[str, Any]:
        r = self.random
        steps = [
            self._envelope() if depth > 2 or r.random() < 0.8 else self._workflow(depth + 1)
            for _ in range(r.randint(1, 3))
        ]
        for number, step in enumerate(steps):
            if r.random() < 0.4:
                step["id"] = f"s{r.randint(0, 2) if r.random() < 0.1 else number}"
            if r.random() < 0.2:
                step["depends_on"] = [f"s{r.randint(0, 2)}"]
        return {r.choice(["steps", "jobs"]): steps} | self._some(words.WORKFLOW)

    def _some(self, choices: dict[str, list[Any]], most: int = 3) -> dict[str, Any]:
        r = self.random
        names = r.sample(sorted(choices), r.randint(0, min(most, len(choices))))
        return {name: r.choice(choices[name]) for name in names}

    # Bends

    def bend_value(self, call: Call, route: Route) -> None:
        """A value somewhere in the document becomes an odd one."""
        document = self._document(route.pattern)
        holder, key = self._somewhere(document)
        holder[key] = self.random.choice(ODD)
        self._replace(call, write(document))

    def bend_names(self, call: Call, route: Route) -> None:
        """Names that the server does not know, that it keeps for itself, or twice the same."""
        r = self.random
        pairs = Pairs(self._document(route.pattern).items())
        for _ in range(r.randint(1, 3)):
            name = r.choice([*words.ENVELOPE, *words.SYSTEM, *(pair[0] for pair in pairs)])
            pairs.insert(r.randint(0, len(pairs)), (name, r.choice(ODD)))
        if r.random() < 0.2:
            pairs = Pairs(r.sample(pairs, r.randint(0, len(pairs))))
        self._replace(call, write(pairs))

    def bend_text(self, call: Call, route: Route) -> None:
        """The JSON is cut off, garbled, in another encoding, or no object."""
        r = self.random
        body = call.body or write(self._document(route.pattern)).encode()
        place = r.randrange(len(body) + 1)
        call.body = r.choice(
            [
                lambda: body[:place],
                lambda: body[:place] + r.randbytes(r.randint(1, 8)) + body[place:],
                lambda: body[:place] + r.choice(words.BAD_BYTES) + body[place:],
                lambda: body + b"\n" + body,
                lambda: b"\xef\xbb\xbf" + body,
                lambda: body.decode("utf-8", "replace").encode(
                    r.choice(["utf-16", "utf-32", "utf-7", "cp037"]), "replace"
                ),
                lambda: write(r.choice(ODD)).encode(),
                lambda: b"[" * r.choice([201, 100_000]),
                lambda: b'{"a":' * 5000 + b"1" + b"}" * 5000,
                lambda: b" " * r.choice([1, 9000]) + body,
                lambda: b"",
                lambda: r.randbytes(r.randint(1, 200)),
            ]
        )()
        call.headers["Content-Length"] = str(len(call.body))

    def bend_size(self, call: Call, route: Route) -> None:
        """More of it than anybody needs."""
        r = self.random
        document = self._document(route.pattern)
        much = r.choice(
            [["x" * 2000] * 5, [0] * 10_001, "y" * 70_000, {str(i): i for i in range(6000)}, [[]] * 3000, "é" * 3000]
        )
        holder, key = self._somewhere(document)
        holder[key] = much
        if r.random() < 0.2 and isinstance(document.get("jobs"), list):
            document["jobs"] = document["jobs"] * r.choice([10, 300])
        self._replace(call, write(document))

    def bend_coding(self, call: Call, route: Route) -> None:
        """Content-Encoding: gzip, a bomb, half a gzip, none of it."""
        r = self.random
        body = call.body or write(self._document(route.pattern)).encode()
        packed = gzip.compress(body, 1, mtime=0)
        call.body = r.choice(
            [
                lambda: packed,
                lambda: words.BOMB,
                lambda: packed[: r.randrange(len(packed))],
                lambda: packed + packed,
                lambda: packed + b"junk",
                lambda: packed[:-4] + r.randbytes(4),
                lambda: body,
                lambda: b"\x1f\x8b",
                lambda: gzip.compress(packed, 1, mtime=0),
                lambda: b"",
            ]
        )()
        call.headers["Content-Encoding"] = r.choice(["gzip", "gzip", "GZIP", "x-gzip", "br", "gzip, gzip", "identity"])
        call.headers["Content-Length"] = str(len(call.body))

    def bend_path(self, call: Call, route: Route) -> None:
        """Another segment, one too many, or one that is not text."""
        r = self.random
        path, mark, query = call.target.partition("?")
        parts = path.removeprefix(V1).split("/")
        parts[r.randrange(len(parts))] = r.choice(words.ODD_SEGMENTS)
        if r.random() < 0.3:
            parts.insert(r.randint(0, len(parts)), r.choice(words.ODD_SEGMENTS))
        call.target = r.choice([V1, V1, V1, "/ojs/", "/ojs//v1/"]) + "/".join(parts) + mark + query

    def bend_query(self, call: Call, route: Route) -> None:
        r = self.random
        extra = r.choice(["%FF=%FF", "limit=%00", "=&=&&", "a" * 3000, "limit", "limit[]=1", "%", "cursor=%ED%A0%80",
                          "&".join(f"a{i}" for i in range(1100)), "format=html", "\xff\xfe", "after=evt_",
                          self._query(), "sources=" + quote(r.choice(words.SOURCES))])  # fmt: skip
        call.target += ("&" if "?" in call.target else "?") + extra

    def bend_header(self, call: Call, route: Route) -> None:
        r = self.random
        name = r.choice(sorted(words.HEADERS))
        call.headers[name] = r.choice(words.HEADERS[name]) if r.random() < 0.7 else r.choice(words.ODD_HEADERS)

    def bend_length(self, call: Call, route: Route) -> None:
        """A Content-Length that does not fit, or is no number."""
        r = self.random
        call.headers["Content-Length"] = r.choice(
            [
                "0",
                "1",
                str(len(call.body) + 50),
                "-1",
                "abc",
                "",
                "9" * 30,
                "1e3",
                "٣".encode().decode("latin-1"),
                "5, 5",
            ]
        )

    def bend_method(self, call: Call, route: Route) -> None:
        call.method = self.random.choice(METHODS)

    def _somewhere(self, document: dict[str, Any]) -> tuple[Any, Any]:
        """A place in the document that can be assigned to: mostly near the top."""
        holder: Any = document
        key: Any = self.random.choice([*document, *words.ENVELOPE]) if document else "type"
        while self.random.random() < 0.5 and isinstance(holder.get(key), dict | list) and holder[key]:
            inner = holder[key]
            if isinstance(inner, list):
                inner_key: Any = self.random.randrange(len(inner))
                if not isinstance(inner[inner_key], dict):
                    return inner, inner_key
                holder, key = inner[inner_key], self.random.choice([*inner[inner_key], "type"])
            else:
                holder, key = inner, self.random.choice(list(inner))
        return holder, key

    def _replace(self, call: Call, text: str) -> None:
        call.body = text.encode("utf-8", "surrogatepass")
        call.headers.setdefault("Content-Type", "application/json")
        call.headers["Content-Length"] = str(len(call.body))


_BENDS: list[Callable[[Attacker, Call, Route], None]] = [
    *[Attacker.bend_value] * 5, *[Attacker.bend_names] * 3, Attacker.bend_text, Attacker.bend_text, Attacker.bend_size,
    Attacker.bend_coding, Attacker.bend_path, Attacker.bend_query, Attacker.bend_query, *[Attacker.bend_header] * 4,
    Attacker.bend_length, Attacker.bend_method,
]  # fmt: skip
