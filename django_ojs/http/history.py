"""The execution history over HTTP (extensions 7, experimental): a job's events, lineage and attempts, and the events of
all jobs.

Where the site has switched it off (`OJS["EXECUTION_HISTORY"]`), there is nothing at these paths.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock, jsontext
from django_ojs.conf import ojs_settings
from django_ojs.errors import NotFound, SearchUnavailable
from django_ojs.events import history, log
from django_ojs.events.filters import MEANT, Filter
from django_ojs.events.history import HistoryQuery
from django_ojs.http import fields, links, pagination, permissions, query
from django_ojs.http.base import OJSViewSet, using
from django_ojs.http.events import (
    DEFAULT_EVENTS,
    MAX_EVENTS,
    OF_JOB,
    EventSerializer,
    JobHistorySerializer,
    read_log,
    wanted_by,
)
from django_ojs.http.jobserializers import FailureField
from django_ojs.http.operation import operation
from django_ojs.http.pagination import SortKey
from django_ojs.http.permissions import queue_limit, type_limit
from django_ojs.http.serializers import AnswerSerializer, InstantField, PaginationSerializer
from django_ojs.jobs import attempts, bulk, lineage
from django_ojs.jobs import history as erasing
from django_ojs.jobs.attempts import Attempt, AttemptPage, Number
from django_ojs.jobs.read import info
from django_ojs.models.fields import RawJSON
from django_ojs.models.job import JobRow
from django_ojs.rules import redaction
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import fault, query_fault, shorten
from django_ojs.spellings import EVENT_QUERY, as_named, as_written
from django_ojs.statistics import happenings

#: How many events a page of the whole history has, and how far the default of its statistics looks back.
PER_PAGE, STATISTICS_FOR = 50, dt.timedelta(days=1)
#: Of a limit that was above `MAX_EVENTS`.
CLAMPED = "X-OJS-Limit-Clamped"
_ACTORS = ("worker", "client", "system", "user")
_FILTER = "event_types queues job_types sources job_id workflow_id"
_SEARCH = f"start end {_FILTER}"
_NEWEST_FIRST = (SortKey("round", True, int), SortKey("attempt", True, int))


class ActorSerializer(AnswerSerializer):
    """Who did it: a `worker`, a `client`, a `user`, or the `system`."""

    type = serializers.CharField()
    id = serializers.CharField()


class HistoryEventSerializer(EventSerializer):
    """An event in the words of the execution history, beside its own."""

    event_type = serializers.CharField()
    actor = ActorSerializer()


class ExecutionHistorySerializer(JobHistorySerializer):
    """What the history says beside the events."""

    total = serializers.IntegerField()
    next_cursor = serializers.CharField(allow_null=True)


class HistoryErasedSerializer(AnswerSerializer):
    deleted = serializers.BooleanField()
    events_deleted = serializers.IntegerField()


class WholeHistorySerializer(AnswerSerializer):
    """What a page of the whole history says beside the events. An empty page with `has_more` is one of many."""

    total_estimate = serializers.IntegerField()
    query_time_ms = serializers.IntegerField()
    has_more = serializers.BooleanField()
    next_cursor = serializers.CharField(allow_null=True)


class HistoryPurgedSerializer(AnswerSerializer):
    """What was erased. Where `purged` is false, a bulk action erases it: `status_url` says how far it is."""

    purged = serializers.BooleanField()
    events_purged = serializers.IntegerField()
    asynchronous = serializers.BooleanField()
    estimated_events = serializers.IntegerField()
    status_url = serializers.CharField(required=False)

    def get_fields(self) -> dict[str, Any]:
        """`async`, which is no name in Python."""
        fields = super().get_fields()
        return {("async" if name == "asynchronous" else name): field for name, field in fields.items()}


class EventBucketSerializer(AnswerSerializer):
    """One period: its events by type, and how long the attempts took that ended in it."""

    timestamp = InstantField()
    events = serializers.DictField(child=serializers.IntegerField())
    avg_duration_ms = serializers.FloatField(allow_null=True)
    p95_duration_ms = serializers.IntegerField(allow_null=True)


class HistoryStatisticsSerializer(AnswerSerializer):
    """The periods in which something happened, the earliest first; `truncated` says that earlier ones were left out."""

    group_by = serializers.ChoiceField(choices=tuple(happenings.PERIODS))
    start = InstantField()
    end = InstantField()
    buckets = EventBucketSerializer(many=True)
    truncated = serializers.BooleanField()


class DescendantSerializer(serializers.Serializer[Any]):
    """A job that was enqueued by another one."""

    job_id = serializers.CharField()
    children = serializers.ListField(child=serializers.DictField())


class LineageSerializer(AnswerSerializer):
    """Which job enqueued this one, the first of that line, and what this one enqueued."""

    job_id = serializers.CharField()
    parent_id = serializers.CharField(allow_null=True)
    workflow_id = serializers.CharField(allow_null=True)
    root_id = serializers.CharField()
    children = serializers.ListField(child=DescendantSerializer())
    truncated = serializers.BooleanField()


class JobAttemptSerializer(AnswerSerializer):
    """One attempt of a job. Attempts count from 1 in each round; each retry of a dead letter begins another round."""

    round = serializers.IntegerField()
    attempt = serializers.IntegerField()
    outcome = serializers.ChoiceField(choices=attempts.OUTCOMES)
    worker_id = serializers.CharField()
    release = serializers.CharField()
    started_at = InstantField()
    ended_at = InstantField(allow_null=True)
    duration_ms = serializers.IntegerField(allow_null=True)
    error = FailureField(required=False)


class AttemptsSerializer(AnswerSerializer):
    """The attempts of a job, newest first."""

    job_id = serializers.CharField()
    state = serializers.CharField()
    attempts = JobAttemptSerializer(many=True)
    items = JobAttemptSerializer(many=True, source="attempts")
    total = serializers.IntegerField()
    next_cursor = serializers.CharField(allow_null=True)
    pagination = PaginationSerializer()


class _SwitchedViewSet(OJSViewSet):
    """What a site may switch off."""

    serializer_class = HistoryEventSerializer
    pagination_class = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if not ojs_settings.EXECUTION_HISTORY:
            raise NotFound(
                "There is nothing at this path.",
                details={"resource_type": "route", "resource_id": shorten(request.path)},
                hint="The site has switched the execution history off (OJS['EXECUTION_HISTORY']).",
            )
        super().initial(request, *args, **kwargs)


class HistoryViewSet(_SwitchedViewSet):
    """`/jobs/{id}/history`, `/lineage` and `/attempts`."""

    model_name = "job"

    def get_object(self) -> Any:
        """The row of the job in the path, if the caller may touch it."""
        row = info(fields.path_id(self.kwargs["job_id"]))
        permissions.check_row(self.request, row)
        self.check_object_permissions(self.request, row)
        return row

    @operation(
        scope="read",
        query=f"cursor {OF_JOB} limit",
        lists=("events", "items", "history"),
        beside=ExecutionHistorySerializer,
    )
    def history(self, request: Request, job_id: str) -> Response:
        """What happened to a job.

        Oldest first, while it is known, also after the job itself was deleted.
        """
        identifier = fields.path_id(job_id)
        limit = min(query.integer(request, "limit", minimum=1) or DEFAULT_EVENTS, MAX_EVENTS)
        query.refuse_others(request, MEANT, OF_JOB, EVENT_QUERY, job_id=job_id)
        wanted = Filter(
            types=tuple(query.texts(request, "types", EVENT_QUERY)) or history.EVERY_TYPE, job_ids=(identifier,),
            only_queues=queue_limit(request), only_types=type_limit(request),
        )  # fmt: skip
        row: JobRow | None = None
        try:
            row = self.get_object()
        except NotFound:  # pruned, perhaps before its events
            if not log.read(wanted=dataclasses.replace(wanted, types=history.EVERY_TYPE), limit=1).events:
                raise
        page = read_log(request, wanted, limit, query.cursor(request))
        size = None if row is None else _args_size(row)
        events = [history.entry(event, size) for event in page.events]
        shown = RawJSON(jsontext.dumps(self.get_serializer(many=True).to_representation(events)))
        total, following = log.count(wanted), page.cursor if page.has_more else None
        standing = {"total": total, "limit": limit, "per_page": limit, "has_more": page.has_more}
        beside = {
            "job_id": identifier, "cursor": page.cursor, "has_more": page.has_more, "gap": page.gap or None,
            "total": total, "next_cursor": following,
        }  # fmt: skip
        job = {} if row is None else {"state": row["state"], "attempt": row["attempt"]}
        return self.whole_list(shown, standing | ({"next_cursor": following} if following else {}), job | beside)

    @operation(
        scope="admin.purge", right="delete_job", answer=HistoryErasedSerializer, audit="job.purge_history",
        audits_itself=True, errors=(400,),
    )  # fmt: skip
    def erase(self, request: Request, job_id: str) -> Response:
        """Erase what happened to a job.

        The job stays as it is, its attempts and its errors too.
        """
        _check_narrowing(request, self.payload(required=False))
        row = self.get_object()
        number = erasing.erase(row, self.act, using(), permissions.limits(request))
        return Response(self.represent({"deleted": True, "events_deleted": number}))

    @operation(scope="read", answer=LineageSerializer)
    def lineage(self, request: Request, job_id: str) -> Response:
        """Which job enqueued which.

        Five generations of descendants, and a thousand of them, at most; `truncated` says that there are more.
        """
        row = self.get_object()
        return Response(self.represent(lineage.of_job(row, limits=permissions.limits(request), using=using())))

    @operation(scope="read", answer=AttemptsSerializer, query="limit offset page per_page cursor")
    def attempts(self, request: Request, job_id: str) -> Response:
        """The attempts of a job.

        Newest first: who ran it, with which release, when, and what came of it.
        """
        row = self.get_object()
        window = pagination.read(request, _NEWEST_FIRST)
        before, offset = (None, window.offset) if window.after is None else (Number(*window.after), 0)
        page = attempts.of_job(row, before=before, offset=offset, limit=window.limit, using=using())
        return Response(self.represent(_attempts(row, page, window)))


class WholeHistoryViewSet(_SwitchedViewSet):
    """`/history`: the history of all jobs that the caller reaches, by what happened and when."""

    model_name = "event"

    @operation(
        scope="read",
        query=f"query actor_type=worker|client|system|user limit cursor {_SEARCH}",
        lists=("events", "items"),
        beside=WholeHistorySerializer,
        errors=(501,),
        headers=CLAMPED,
    )
    def list(self, request: Request) -> Response:
        """What happened to jobs, newest first.

        `event_types` are names of the history or of the event log. One call looks through a part of a long log: where
        `has_more` is true, the next page may have more, also if this one is empty.
        """
        began = time.monotonic()
        query.refuse_others(request, MEANT - {"cursor"}, _SEARCH, EVENT_QUERY)
        if query.text(request, "query"):
            raise SearchUnavailable("This server does not search the history for words.")
        asked = query.integer(request, "limit", minimum=1) or PER_PAGE
        limit, wanted = min(asked, MAX_EVENTS), _asked(request, actor_type=_one_of(request, "actor_type", _ACTORS))
        since, until = query.instant(request, "start"), query.instant(request, "end")
        with as_written(as_named({"after": "cursor"})):
            page = log.earlier(
                wanted.events, before=query.text(request, "cursor") or None, since=since, until=until,
                accepts=wanted.accepts, limit=limit,
            )  # fmt: skip
        entries = [history.entry(event) for event in page.events]
        shown = RawJSON(jsontext.dumps(self.get_serializer(many=True).to_representation(entries)))
        standing: dict[str, Any] = {"limit": limit, "per_page": limit, "has_more": page.has_more}
        standing |= {"next_cursor": page.cursor} if page.has_more else {}
        beside = {
            "total_estimate": log.count(wanted.events, since=since, until=until), "has_more": page.has_more,
            "next_cursor": page.cursor if page.has_more else None,
            "query_time_ms": round((time.monotonic() - began) * 1000),
        }  # fmt: skip
        answer = self.whole_list(shown, standing, beside)
        if asked > limit:
            answer[CLAMPED] = "true"
        return answer

    @operation(
        scope="admin.purge", right="delete_job", answer=HistoryPurgedSerializer, audit="history.purge",
        query=f"before {_FILTER}", audits_itself=True,
    )  # fmt: skip
    def clear(self, request: Request) -> Response:
        """Erase what happened to jobs before an instant.

        More than a hundred thousand events are left to a bulk action: `status_url` says how far it is. The jobs stay as
        they are.
        """
        _check_narrowing(request, self.payload(required=False), "before", *_FILTER.split())
        before = query.instant(request, "before")
        if before is None:
            raise query_fault("before", "is required: the instant before which events are erased", "")
        self.act.detail["before"] = format_instant(before)
        asked = {name: query.texts(request, _canonical(name), EVENT_QUERY) for name in _FILTER.split()}
        self.act.detail |= {name: given for name, given in asked.items() if given}
        done = bulk.purge_history(before, _asked(request), self.act, using=using())
        if isinstance(done, int):
            return Response(self.represent(_purged(done)))
        address = links.to(request, "admin-bulk-action", done.pk)
        return Response(self.represent(_purged(0, left=done.expected) | {"status_url": address}))

    @operation(scope="read", answer=HistoryStatisticsSerializer, query=f"group_by=minute|hour|day {_SEARCH}")
    def stats(self, request: Request) -> Response:
        """How many events of each type there were in each period.

        Of the last day, by the hour, where nothing else is asked for. It counts the newest hundred thousand events.
        """
        query.refuse_others(request, MEANT, _SEARCH, EVENT_QUERY)
        group_by = _one_of(request, "group_by", tuple(happenings.PERIODS)) or "hour"
        until = query.instant(request, "end") or clock.now(using()) + dt.timedelta(milliseconds=1)
        since = query.instant(request, "start") or until - STATISTICS_FOR
        found, truncated = happenings.buckets(_asked(request), happenings.PERIODS[group_by], since, until, using())
        told = {"group_by": group_by, "start": since, "end": until, "buckets": found, "truncated": truncated}
        return Response(self.represent(told))


def _asked(request: Request, actor_type: str = "") -> HistoryQuery:
    """What the query string asks for, within the limits of the caller's key."""
    names = tuple(query.texts(request, "types", EVENT_QUERY))
    events = dataclasses.replace(wanted_by(request), types=history.stored_types(names))
    return HistoryQuery(events, names, actor_type)


def _check_narrowing(request: Request, body: Mapping[str, Any], *members: str) -> None:
    """Refuse what would narrow an erasure down, and does not: passed over, it would let everything be erased."""
    if body:
        raise fault("body", "must have no members: what narrows an erasure stands in the query")
    known = set(map(_canonical, members))
    for name in request.query_params:
        given = query.joined(request, name)
        if _canonical(name) not in known:
            raise query_fault(name[:100], f"is unknown here: there are {', '.join(members) or 'none'}", str(given))
        if not query.texts(request, name):
            raise query_fault(name, "must not be empty: leave it out to mean all", str(given))


def _canonical(name: str) -> str:
    return EVENT_QUERY.words.get(name, name)


def _purged(events: int, left: int = 0) -> dict[str, Any]:
    return {"purged": not left, "events_purged": events, "async": bool(left), "estimated_events": left}


def _one_of(request: Request, name: str, words: Sequence[str]) -> str:
    """One of these words, '' where absent."""
    given = query.text(request, name)
    if given and given not in words:
        raise query_fault(name, f"must be one of {', '.join(words)}", given)
    return given


def _attempts(row: JobRow, page: AttemptPage, window: pagination.PageWindow) -> dict[str, Any]:
    standing = pagination.standing(page.total, window.limit, window.offset, has_more=page.has_more)
    following = None
    if page.has_more:
        following = window.cursor(window.offset + window.limit, page.attempts[-1].number)
        standing["next_cursor"] = following
    meta = jsontext.loads(row["meta"]) if redaction.site_rules() else None
    shown: list[Attempt] = [one.redacted(row["type"], meta) for one in page.attempts]
    return {
        "job_id": row["id"], "state": row["state"], "attempts": shown, "total": page.total, "next_cursor": following,
        "pagination": standing,
    }  # fmt: skip


def _args_size(row: JobRow) -> int | None:
    """The bytes of the arguments; None where a reader may not see those: it tells of them."""
    rules = redaction.site_rules()
    if rules is not None and rules.tells(frozenset({"args"}), rules.hidden(row["type"], jsontext.loads(row["meta"]))):
        return None
    return jsontext.byte_length(row["args"])
