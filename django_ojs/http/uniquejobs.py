"""`GET /unique-jobs`: which unique keys are held, by which jobs, and until when."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import clock, jsontext, spellings, states
from django_ojs.http import permissions
from django_ojs.http.base import OJSViewSet, using
from django_ojs.http.joblists import searched
from django_ojs.http.operation import operation
from django_ojs.http.pagination import CappedPagination, ListPage, SortKey, parse_uuid
from django_ojs.http.serializers import AnswerSerializer, InstantField, StateField
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.rules import redaction

_COLUMNS = ("id", "type", "queue", "state", "created_at", "unique_key", "extra")
#: A job that has ended holds its key only where its policy names states.
_MAY_HOLD = Q(unique_key__gt="") & (Q(state__in=states.ordered(states.LIVE)) | Q(extra__contains='"states"'))


class _LockedUntilField(InstantField):
    def get_attribute(self, instance: JobRow) -> Any:
        return _policy(instance).until(instance["created_at"])


class UniqueJobSerializer(AnswerSerializer):
    """A key that is held, and by which job. `locked_until` is null where only the end of the job frees the key.

    A key is a plain digest of arguments and meta, so where the site hides those of such jobs, the key is hidden too.
    """

    key = serializers.SerializerMethodField()
    job_id = serializers.CharField(source="id")
    type = serializers.CharField()
    queue = serializers.CharField()
    state = StateField()
    locked_until = _LockedUntilField(allow_null=True)

    def get_key(self, row: JobRow) -> str:
        return redaction.unique_key(row["unique_key"], row["type"])


class UniqueJobPagination(CappedPagination):
    """No index has the order of this list: the search goes as far as `OJS["SEARCH_DEPTH"]`."""

    def get_page(self, queryset: QuerySet[Any], request: Request, view: Any) -> ListPage:
        maximum, default = self.sizes(view)
        return searched(
            request, queryset, queryset.filter(_MAY_HOLD), view.ordering, _rows, maximum=maximum, default=default
        )


class UniqueJobViewSet(OJSViewSet):
    """`GET /unique-jobs`, newest first."""

    serializer_class = UniqueJobSerializer
    pagination_class = UniqueJobPagination
    ordering = (SortKey("id", descending=True, parse=parse_uuid),)
    list_names = ("items", "unique_jobs")

    def get_queryset(self) -> Any:
        return Job.objects.using(using()).filter(permissions.visible(self.request))

    @operation(scope="read")
    def list(self, request: Request) -> Response:
        """The unique keys that are held.

        A job that its own policy no longer counts has none.
        """
        now = clock.now(using())
        rows = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or ()
        held = [row for row in rows if _policy(row).conflicts(row["state"], row["created_at"], now)]
        return self.page_answer([self.represent(row) for row in held])


def _rows(jobs: QuerySet[Any]) -> list[Any]:
    return jobs.rows(_COLUMNS)  # type: ignore[attr-defined, no-any-return]


def _policy(row: Any) -> Any:
    return spellings.read_unique(jsontext.loads(row["extra"]).get("unique") or {})
