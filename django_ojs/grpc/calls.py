"""Carries a unary call through the view of the HTTP binding that does the same (grpc 2).

`OPERATIONS` says which view that is. A call becomes the request that HTTP would have received, without a socket and
without the site's middleware, and the view's answer becomes the response message, or an `errors.RpcError`. So
authentication, validation, limits, audit and idempotency are those of HTTP: no rule stands here a second time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from django.conf import settings
from django.db import close_old_connections, connections, reset_queries, router
from django.db.models import Min, Q
from django.http import HttpRequest, QueryDict
from django.urls import NoReverseMatch, ResolverMatch, get_resolver, get_script_prefix, reverse, set_script_prefix
from google.protobuf.message import DecodeError, Message
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import errors, jsontext
from django_ojs.errors import InvalidPayload, InvalidRequest, OJSError
from django_ojs.faults import passes
from django_ojs.groupcommit import serves_others
from django_ojs.grpc import definition, messages, metadata
from django_ojs.grpc.errors import Code, RpcError, logger, refusal
from django_ojs.grpc.metadata import Metadata
from django_ojs.grpc.shapes import Document
from django_ojs.http import fields, permissions, workers
from django_ojs.http.base import OJSView, using
from django_ojs.http.operation import operation
from django_ojs.jobs.finish import requeue
from django_ojs.messages import jobs
from django_ojs.models import Job, Worker
from django_ojs.rules import envelope
from django_ojs.rules.durations import format_instant
from django_ojs.rules.ids import parse_id
from django_ojs.states import State
from django_ojs.workerregistry import heartbeat as beats
from django_ojs.workerregistry.registration import effective_state

#: Bytes of an answer: clients receive 4 MiB unless they ask for more (LIM-4).
MAX_ANSWER = 4_000_000
#: The largest page that every list of the HTTP binding has.
PAGE = 200
REFUSED = -1  #: instead of a limit that is none
#: The query of a request: the values of each parameter.
Query: TypeAlias = Mapping[str, Sequence[str]]


@dataclasses.dataclass(frozen=True)
class RpcOperation:
    """An RPC as a call of the HTTP binding.

    Attributes:
        rpc: its name.
        level: the conformance level that asks for it.
        method: the HTTP method.
        path: below `/ojs/v1`, with the name of the value that stands in it: `jobs/{job_id}`.
        target: the field of the request that is this value.
        most, default: of a list: the largest limit, and that of a request without one (None: all).
        items: of a list: the member of the answer that holds its items.
        idempotent: whether it takes an idempotency key.
        public: whether it needs no credentials, and answers whatever the status is.
    """

    rpc: str
    level: int
    method: str
    path: str
    target: str = ""
    most: int = 0
    default: int | None = None
    items: str = ""
    idempotent: bool = False
    public: bool = False


OPERATIONS: Mapping[str, RpcOperation] = {operation.rpc: operation for operation in (
    RpcOperation("Manifest", 0, "GET", "../manifest", public=True),
    RpcOperation("Health", 0, "GET", "health", public=True),
    RpcOperation("Enqueue", 0, "POST", "jobs", idempotent=True),
    RpcOperation("Fetch", 0, "POST", "workers/fetch"),
    RpcOperation("Ack", 0, "POST", "jobs/{job_id}/ack", "job_id"),
    RpcOperation("Nack", 0, "POST", "jobs/{job_id}/nack", "job_id"),
    RpcOperation("ListQueues", 0, "GET", "queues", most=1000, default=100, items="queues"),
    RpcOperation("GetJob", 1, "GET", "jobs/{job_id}", "job_id"),
    RpcOperation("CancelJob", 1, "POST", "jobs/{job_id}/cancel", "job_id"),
    RpcOperation("ActivateJob", 1, "POST", "jobs/{job_id}/activate", "job_id"),
    RpcOperation("Heartbeat", 1, "POST", "workers/heartbeat"),
    RpcOperation("ListDeadLetter", 1, "GET", "dead-letter", most=1000, default=50, items="jobs"),
    RpcOperation("RetryDeadLetter", 1, "POST", "dead-letter/{job_id}/retry", "job_id"),
    RpcOperation("DeleteDeadLetter", 1, "DELETE", "dead-letter/{job_id}", "job_id"),
    RpcOperation("RegisterCron", 2, "POST", "cron"),
    RpcOperation("UnregisterCron", 2, "DELETE", "cron/{name}", "name"),
    RpcOperation("ListCron", 2, "GET", "cron", most=1_000_000, items="crons"),
    RpcOperation("CreateWorkflow", 3, "POST", "workflows", idempotent=True),
    RpcOperation("GetWorkflow", 3, "GET", "workflows/{workflow_id}", "workflow_id"),
    RpcOperation("CancelWorkflow", 3, "POST", "workflows/{workflow_id}/cancel", "workflow_id"),
    RpcOperation("EnqueueBatch", 4, "POST", "jobs/batch", idempotent=True),
    RpcOperation("QueueStats", 4, "GET", "queues/{name}/stats", "queue"),
    RpcOperation("PauseQueue", 4, "POST", "queues/{name}/pause", "queue"),
    RpcOperation("ResumeQueue", 4, "POST", "queues/{name}/resume", "queue"),
)}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RpcReply:
    """What is sent to the client. `jobs` are the ids and attempts of those that a Fetch hands out."""

    body: bytes
    request_id: str
    trailers: metadata.Pairs
    jobs: Mapping[uuid.UUID, int] = dataclasses.field(default_factory=dict)


class _Deadline:
    """The end of the time that the caller gives, which no statement of the call begins after.

    The first statement behind it is refused, so that the transaction is undone; those that undo it are not. A batch
    that holds calls of others goes on.

    Attributes:
        passed: the refusal; None as long as there was none.
    """

    def __init__(self, instant: float | None) -> None:
        self._instant = instant
        self.passed: OJSError | None = None

    def kept(self) -> contextlib.AbstractContextManager[None]:
        """Look at the time before each statement of this thread."""
        return contextlib.nullcontext() if self._instant is None else connections[using()].execute_wrapper(self)

    def __call__(self, execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        late = self._instant is not None and time.monotonic() >= self._instant
        if late and self.passed is None and not serves_others():
            self.passed = errors.WaitTimeout("The deadline of the call has passed.")
            raise self.passed
        return execute(sql, params, many, context)


class UnaryCall:
    """One unary call: made on the event loop, carried out on a thread (`run`).

    A caller may leave at any time. Before `run` begins, nothing is done; afterwards what was done stays, but the jobs
    of a Fetch go back to their queues at once. When the deadline passes meanwhile, any other call begins no further
    statement, and what it has not committed is undone (LIM-5).
    """

    def __init__(
        self, operation: RpcOperation, raw: bytes, given: Metadata, seconds: float | None = None
    ) -> None:  # fmt: skip
        self.operation, self.raw, self.metadata = operation, raw, given
        self.deadline = None if seconds is None else time.monotonic() + seconds
        self._lock = threading.Lock()
        self._left = False
        self._reply: RpcReply | None = None

    def leave(self) -> bool:
        """Note that the caller has gone. Whether something is left to do for that: call `undo` on a thread."""
        with self._lock:
            self._left = True
            return self._reply is not None and bool(self._reply.jobs)

    def undo(self, answer: Callable[[None], None] | None = None) -> None:
        """Hand back what a Fetch has claimed for a caller who has not got it."""
        reply = self._reply
        if reply is not None and reply.jobs:
            _hand_back(reply.jobs)
        if answer is not None:
            answer(None)

    def run(self, answer: Callable[[RpcReply], None]) -> None:
        """Carry the call out, and give the reply to `answer`. Raises Refused. For a thread."""
        if self._left or (self.deadline is not None and time.monotonic() >= self.deadline):
            return
        close_old_connections()
        shown = envelope.with_policy.set(True)
        # A Fetch that fails behind its claim would keep the jobs from every worker, so it runs to its end.
        limit = _Deadline(None if self.operation.rpc == "Fetch" else self.deadline)
        try:
            with limit.kept():
                reply = self._perform(limit)
            with self._lock:
                self._reply, left = reply, self._left
            if left:
                self.undo()
            answer(reply)
        finally:
            envelope.with_policy.reset(shown)
            reset_queries()
            close_old_connections()

    def _perform(self, limit: _Deadline) -> RpcReply:
        try:
            return self._answer()
        except Exception as exc:
            if limit.passed is not None:
                raise RpcError.of(limit.passed, self.metadata.answered_id(), Code.DEADLINE_EXCEEDED) from exc
            raise refusal(exc, self.operation.rpc, self.metadata.answered_id()) from exc

    def _answer(self) -> RpcReply:
        method = definition.METHODS[self.operation.rpc]
        message, broken = method.request(), None
        try:
            message.ParseFromString(self.raw)
        except DecodeError:
            message, broken = method.request(), unreadable(self.raw, self.operation.rpc)
        exchange = _Exchange(self.operation, message, broken, self.metadata)
        return exchange.reply()


def unreadable(raw: bytes, rpc: str) -> InvalidPayload:
    """The error for bytes that are no message of ours."""
    json = raw.lstrip()[:1] == b"{"
    hint = "Send a Protobuf message: this server takes no JSON as the body of a gRPC call." if json else ""
    request = definition.METHODS[rpc].request.DESCRIPTOR.full_name
    return InvalidPayload(f"The body of the call is not a valid {request}.", details={"field": "body"}, hint=hint)


class CallRequest(HttpRequest):
    """A call as the request that HTTP would have received.

    `binding` keeps its idempotency keys apart from those of HTTP, whose answers are other documents.
    """

    binding = "grpc"

    def __init__(self, method: str, path: str, meta: dict[str, str], query: Query) -> None:
        super().__init__()
        self.method, self.path, self.path_info = method, path, path
        self.META = {"REQUEST_METHOD": method, "PATH_INFO": path, "CONTENT_TYPE": "application/json", **meta}
        self.content_type = "application/json"
        self.GET: Any = _query(query)
        self._body = b""
        self._prepare: Callable[[Request], Document | None] = lambda caller: None
        self._sorted = "HTTP_IDEMPOTENCY_KEY" in meta

    def prepare(self, caller: Request) -> None:
        """Read what the call carries: `OJSView.initial` calls this once the caller is known."""
        document = self._prepare(caller)
        if document is not None:
            # The entries of a map come in any order, and an idempotency key compares the bytes.
            self._body = jsontext.dumps(_ordered(document) if self._sorted else document).encode()


class _Exchange:
    """The HTTP requests of one call, and what becomes of their answers."""

    def __init__(self, operation: RpcOperation, message: Message, broken: OJSError | None, given: Metadata) -> None:
        self.operation, self.message, self.broken, self.metadata = operation, message, broken, given
        self.headers: dict[str, str] = {}
        self.request_id = ""

    def reply(self) -> RpcReply:
        operation = self.operation
        if operation.public and self.broken is not None:
            raise self.broken
        document = self._listed() if operation.items else self._called({})
        more: metadata.Pairs = ()
        jobs: dict[uuid.UUID, int] = {}
        if operation.rpc == "Fetch":
            document, jobs = _fitting(document)
        elif operation.rpc == "Heartbeat":
            document = _with_deadline(document)
        response = messages.to_message(f"{operation.rpc}Response", document)
        body = response.SerializeToString()
        if operation.rpc == "EnqueueBatch" and len(body) > MAX_ANSWER:
            body, more = _trimmed(response), (("x-ojs-trimmed", "args,meta"),)
        return RpcReply(body, self.request_id, metadata.trailers(self.request_id, self.headers) + more, jobs)

    def _called(self, query: Query) -> Document:
        """The answer of the view as a document. Raises Refused."""
        operation = self.operation
        value = str(getattr(self.message, operation.target)) if operation.target else ""
        view, match, path = _route(operation, value)
        meta = self.metadata.environ(idempotent=operation.idempotent)
        if operation.rpc == "Manifest":
            meta.pop("HTTP_OJS_VERSION")  # so that the extensions have their versions
        request = CallRequest(operation.method, path, meta, query)
        request.resolver_match = match
        request._prepare = self._document
        if operation.rpc == "Heartbeat" and _of_job_alone(self.message):
            view = _job_beat
        response = view(request, *match.args, **match.kwargs)
        return self._read(response)

    def _read(self, response: Response) -> Document:
        headers = dict(response.items())
        self.request_id = headers.get("X-Request-Id", "")
        found = jsontext.loads(response.content) if response.content else {}
        if response.status_code >= 400 and not self.operation.public:
            raise RpcError(self._located(found["error"]), response.status_code, headers)
        self.headers = headers
        if self.operation.rpc == "RegisterCron":
            found["created"] = response.status_code == 201  # HTTP says it by the status
        return found if isinstance(found, dict) else {}

    def _located(self, error: Document) -> Document:
        """The `error` object; of a batch it names the field with the job that it is in."""
        details = error["details"]
        field, index = details.get("field"), details.get("index")
        if self.operation.rpc == "EnqueueBatch" and index is not None and field and not field.startswith("jobs"):
            error = {**error, "details": {**details, "field": f"jobs[{index}].{field}"}}
        return error

    def _document(self, caller: Request) -> Document | None:
        """The body of the HTTP request; None where it has none. Raises OJSError."""
        if self.broken is not None:
            raise self.broken
        document = messages.read_request(self.message)
        match self.operation.rpc:
            case "Ack" | "Nack":
                self._take(document, "worker_id", "x-ojs-worker-id")
                requeued = self.metadata.flag("x-ojs-requeue")
                if self.operation.rpc == "Nack" and requeued is not None:
                    document.setdefault("requeue", requeued)
            case "Fetch":
                if not document.get("queues"):
                    raise _missing("queues", "Name at least one queue to fetch from.")
                given = self.metadata.number(metadata.VISIBILITY)
                if given is not None and "visibility_timeout_ms" not in document:
                    document["visibility_timeout_ms"] = given
            case "Heartbeat":
                document = _beat(self.message, document, permissions.visible(caller))
        return None if self.operation.method in ("GET", "DELETE") else document

    def _take(self, document: Document, member: str, key: str) -> None:
        if (given := self.metadata.get(key)) and not document.get(member):
            document[member] = given

    # Lists

    def _listed(self) -> Document:
        """As many pages of the list as the request asks for and one answer can hold."""
        operation, asked = self.operation, self._asked()
        if (limit := _limit(asked.get("limit"))) == REFUSED:
            self._called(asked)  # which says what is wrong, or takes it: it is beyond what a number here holds
            limit = operation.most
        limit = limit or operation.default or operation.most
        left = min(limit, operation.most)
        query = {name: words for name, words in asked.items() if name not in ("limit", "cursor")}
        cursor, size = (asked.get("cursor") or [""])[-1], 0
        items: list[Any] = []
        while True:
            count = min(left, PAGE)
            page, count = self._page(query, cursor, count, MAX_ANSWER - size, first=not items)
            if page is None:
                break
            found = page[operation.items]
            items += found
            left -= len(found)
            size += _size(operation, found)
            whole, cursor = page, page["pagination"].get("next_cursor", "")
            if not cursor or left < 1 or not found:
                break
        pagination = {**whole["pagination"], "has_more": bool(cursor)}
        pagination.pop("next_cursor", None)
        return {**whole, operation.items: items} | ({"next_cursor": cursor} if cursor else {})

    def _asked(self) -> Query:
        """What the request asks for, as the query of HTTP has it. What cannot be read is refused once the caller is
        known."""
        try:
            asked = {} if self.broken is not None else messages.read_request(self.message)
        except OJSError as error:
            self.broken, asked = error, {}
        return {name: words for name, value in asked.items() if (words := _words(value))}

    def _page(
        self, query: Query, cursor: str, count: int, room: int, *, first: bool
    ) -> tuple[Document | None, int]:  # fmt: skip
        """The next page of `count` items or fewer, such that they fit into `room` bytes; None where none does."""
        while True:
            asked = {**query, "limit": [str(count)]} | ({"cursor": [cursor]} if cursor else {})
            page = self._called(asked)
            size = _size(self.operation, page[self.operation.items])
            if size <= room or not size or (first and count == 1):
                return page, count
            if count == 1:
                return None, 0
            count = max(1, min(count - 1, count * room // size))


# Which view


def _route(operation: RpcOperation, value: str) -> tuple[Any, ResolverMatch, str]:
    """The view of an operation, how it was found, and the path of the request. `value` stands in that path."""
    prefix, match = _resolved(operation.path, settings.ROOT_URLCONF)
    path = prefix + operation.path
    if not operation.target:
        return match.func, match, path
    (name,) = match.kwargs
    apps: Any = match.app_names
    spaces: Any = match.namespaces
    found = ResolverMatch(match.func, (), {name: value}, match.url_name, apps, spaces, match.route)
    return match.func, found, path.replace(f"{{{name}}}", quote(value, safe=""))


@lru_cache(maxsize=128)
def _resolved(path: str, urlconf: Any) -> tuple[str, ResolverMatch]:
    """The site's own route below its prefix, so that the ViewSets count that it has put in the place of ours; where the
    site has not included our URLs, ours."""
    before = get_script_prefix()
    set_script_prefix("/")
    try:
        prefix, resolver = unquote(reverse("ojs:manifest")).removesuffix("manifest") + "v1/", get_resolver(urlconf)
    except NoReverseMatch:
        prefix, resolver = "/ojs/v1/", get_resolver("django_ojs.urls")
    finally:
        set_script_prefix(before)
    if path.startswith("../"):
        prefix, path = prefix.removesuffix("v1/"), path.removeprefix("../")
    return prefix, resolver.resolve(prefix + path)


def _query(values: Query) -> QueryDict:
    query = QueryDict(mutable=True)
    for name, words in values.items():
        query.setlist(name, list(words))
    query._mutable = False
    return query


def _words(value: Any) -> list[str]:
    """A value of JSON as the values of a parameter: none for null, several for a list."""
    if value is None:
        return []
    if isinstance(value, list):
        return [word for item in value for word in _words(item)]
    return [value if isinstance(value, str) else jsontext.dumps(value)]


def _limit(words: Sequence[str] | None) -> int:
    """How many items are asked for; 0 where nothing is said, `REFUSED` where it can be no number of items."""
    if not words or not words[-1]:
        return 0
    return jsontext.digits(words[-1]) or REFUSED


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _ordered(value[name]) for name in sorted(value)}
    return [_ordered(item) for item in value] if isinstance(value, list) else value


def _missing(field: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, details={"field": field})


# Fetch


def _fitting(document: Document) -> tuple[Document, dict[uuid.UUID, int]]:
    """The jobs that one answer can hold, at least one; the others go back at once."""
    jobs = document.get("jobs", [])
    kept: list[Any] = []
    size = 0
    for job in jobs:
        size += messages.to_message("Job", job).ByteSize() + 8
        if kept and size > MAX_ANSWER:
            break
        kept.append(job)
    if len(kept) < len(jobs):
        _hand_back(_claims(jobs[len(kept) :]))
    return {"jobs": kept}, _claims(kept)


def _claims(jobs: list[Any]) -> dict[uuid.UUID, int]:
    return {uuid.UUID(job["id"]): job["attempt"] for job in jobs}


def _hand_back(claims: Mapping[uuid.UUID, int]) -> None:
    """No handler has run them: the attempt does not count. What cannot go back now does when its reservation ends."""
    try:
        requeue(list(claims), attempts=claims, unrun=claims)
    except BaseException as error:  # noqa: BLE001 - the client that would be told of it has gone
        logger.error(
            "%s that no client received could not be handed back: %s",
            jobs(len(claims)), str(error) or type(error).__name__, exc_info=not passes(error),
        )  # fmt: skip


# Heartbeat


def _of_job_alone(message: Any) -> bool:
    """Whether a heartbeat is for one job of a worker that it does not name."""
    said = message.attributes.get("worker_id")
    kind = None if said is None else said.WhichOneof("kind")
    named = message.worker_id or kind not in (None, "null_value", "string_value") or (kind and said.string_value)
    return bool(parse_id(message.id.lower()) and not named)


def _beat(message: Any, document: Document, reached: Q) -> Document:
    """The body of the heartbeat that is meant: for one job, or for a worker (OPS-4) and those of its jobs that are
    `reached`: a refusal would tell of the others."""
    given, worker_id = message.id, message.worker_id or fields.text(document, "worker_id") or ""
    if not given and not worker_id:
        raise _missing("id", "Say in id which job the heartbeat is for, or in worker_id which worker lives.")
    if parse_id(given.lower()) and given != worker_id:
        return document | {"active_job_ids": [given.lower()]}
    if given and worker_id and given != worker_id:
        raise _missing("id", "The id is neither that of a job nor the worker_id.")
    document["worker_id"] = name = fields.check_worker_id(worker_id or given)
    if "active_job_ids" not in document and message.HasField("extend_by"):
        held = Job.objects.using(router.db_for_write(Job)).filter(reached, worker_id=name, state=State.ACTIVE)
        # Of more than a heartbeat may name those that end first: the next one renews the others.
        first = held.order_by("visible_until", "id").values_list("id", flat=True)[: workers.MAX_JOBS]
        document["active_job_ids"] = [str(job_id) for job_id in first]
    return document


def _with_deadline(document: Document) -> Document:
    """The answer with the end of the first of the reservations that were renewed."""
    renewed = document.get("jobs_extended")
    if not renewed:
        return document
    jobs = Job.objects.using(router.db_for_write(Job)).filter(pk__in=renewed, state=State.ACTIVE)
    end = jobs.aggregate(end=Min("visible_until"))["end"]
    return document | ({"new_deadline": format_instant(end)} if end is not None else {})


class JobBeat(OJSView):
    """The heartbeat for a job by a client that does not say which worker holds it: only gRPC has that."""

    schema = None

    @operation(scope="work")
    def post(self, request: Request) -> Response:
        """Renew the reservation of the job for the worker that holds it, of whose row nothing is changed: it is only
        told what its worker is to do."""
        body = self.payload()
        (text,) = body["active_job_ids"]
        job_id, worker_id = uuid.UUID(text), fields.claimant(body)
        permissions.check_worker(request, worker_id)
        permissions.check_jobs(request, [job_id])
        length = fields.duration_ms(body, "visibility_timeout_ms")
        using = router.db_for_write(Job)
        row = Job.objects.using(using).filter(pk=job_id).values("worker_id", "state").first()
        held = row is not None and row["state"] == State.ACTIVE and worker_id in ("", row["worker_id"])
        holder = row["worker_id"] if row is not None and held else ""
        done = held and beats.extend(job_id, holder, visibility_ms=length)
        renewed, gone = [job_id] if done else [], [job_id] if done is False else []
        cancelled = gone if row is not None and row["state"] == State.CANCELLED else []
        worker = Worker.objects.using(using).filter(pk=holder).first() if holder else None
        state = "running" if worker is None else effective_state(worker)
        return Response(_told(state, renewed, cancelled, [] if cancelled else gone))


def _told(state: str, extended: list[uuid.UUID], cancelled: list[uuid.UUID], lost: list[uuid.UUID]) -> Document:
    found = {"jobs_extended": extended, "cancelled_jobs": cancelled, "jobs_lost": lost}
    return {"state": state, **{name: [str(job_id) for job_id in ids] for name, ids in found.items()}}


_job_beat = JobBeat.as_view()


# Sizes


def _size(operation: RpcOperation, items: list[Any]) -> int:
    """Bytes that these items of a list take in the answer."""
    return int(messages.to_message(f"{operation.rpc}Response", {operation.items: items}).ByteSize())


def _trimmed(response: Any) -> bytes:
    """The answer of a batch without what makes it large; an error after the commit would be repeated."""
    for job in response.jobs:
        job.ClearField("args")
        job.ClearField("meta")
        with contextlib.suppress(KeyError):
            del job.attributes["meta"]
    found: bytes = response.SerializeToString()
    return found
