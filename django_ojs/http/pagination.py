"""Pages of a list, by opaque cursor, by page or by offset (binding 1.7): the same object for every list.

The cursor holds the sort key of the last row, so rows that come or go in between shift nothing, and a mark of the
list and its order: in any other one it would leave rows out without a word.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import uuid
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from django.db.models import Model, Q, QuerySet
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs.errors import InvalidRequest
from django_ojs.http import parameters, query
from django_ojs.http.serializers import CappedPageSerializer, CountedPageSerializer, shared
from django_ojs.rules.faults import query_fault
from django_ojs.spellings import LIST_QUERY

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
#: The sizes of an operator's pages.
MAX_PAGE, PAGE = 100, 20
_MAX_CURSOR = 2048
#: How far `capped` counts, and how far a page of such a list may begin: an offset reads all rows before it.
CAP, MAX_OFFSET = 10_000, 100_000


class ListPage(NamedTuple):
    """Rows and what the answer says about where they stand."""

    rows: list[Any]
    pagination: dict[str, Any]

    def listed(self, rows: Any, *names: str, **more: Any) -> dict[str, Any]:
        """The answer of a list: what is shown of the rows under each of these names, `more`, and where they stand."""
        standing = shared(CappedPageSerializer).to_representation({**self.pagination, "pagination": self.pagination})
        return {**dict.fromkeys(names, rows), **more, **standing}


class SortKey(NamedTuple):
    """One column of the sort order, and how its value is written into a cursor and read back."""

    column: str
    descending: bool
    parse: Callable[[str], Any]


class PageWindow(NamedTuple):
    """What the request asks for: `after` is the key of the row before the page, `offset` its place.

    `named` is the parameter that says where the page begins, `mark` what its cursors have of the list.
    """

    limit: int
    offset: int
    after: list[Any] | None
    named: str
    mark: str

    def cursor(self, place: int, values: Iterable[Any]) -> str:
        """The cursor behind the row with these values of the order's columns, which is the `place`th of the list."""
        texts = [value.isoformat() if isinstance(value, dt.datetime) else str(value) for value in values]
        return base64.urlsafe_b64encode(json.dumps([place, self.mark, *texts]).encode()).decode().rstrip("=")


class OJSPagination(BasePagination):
    """The pages of a ViewSet's list, in its `ordering`, under its `list_names`. A subclass may set other sizes."""

    max_limit, default_limit = MAX_LIMIT, DEFAULT_LIMIT
    operator_max_limit, operator_default_limit = MAX_PAGE, PAGE
    #: For the OpenAPI document: what an answer has beside the items.
    answer: type[CountedPageSerializer] = CountedPageSerializer

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        self.names: Sequence[str] = (view.operator and view.operator_list_names) or view.list_names
        self.page = self.get_page(queryset, request, view)
        return self.page.rows

    def get_page(self, queryset: QuerySet[Any], request: Request, view: Any) -> ListPage:
        maximum, default = self.sizes(view)
        return paginate(queryset, request, view.ordering, maximum=maximum, default=default)

    def sizes(self, view: Any) -> tuple[int, int]:
        """The most rows of a page, and those of one that says nothing."""
        if view.operator:
            return self.operator_max_limit, self.operator_default_limit
        return self.max_limit, self.default_limit

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """The parameters that choose a page, for the OpenAPI document."""
        return parameters.described("limit", "offset", "page", "per_page", "cursor")

    def get_paginated_response(self, data: Any, **more: Any) -> Response:
        """The answer; `more` stands beside the items."""
        return Response(self.page.listed(data, *self.names, **more))


class SamePagination(OJSPagination):
    """Pages that have the same sizes for operators."""

    operator_max_limit, operator_default_limit = MAX_LIMIT, DEFAULT_LIMIT


class CappedPagination(OJSPagination):
    """Pages of a table that may be large: its rows are counted up to a bound only."""

    answer = CappedPageSerializer

    def get_page(self, queryset: QuerySet[Any], request: Request, view: Any) -> ListPage:
        maximum, default = self.sizes(view)
        return paginate(queryset, request, view.ordering, maximum=maximum, default=default, count=capped)


def paginate(
    queryset: QuerySet[Any],
    request: Request,
    order: Sequence[SortKey],
    *,
    rows: Callable[[QuerySet[Any]], list[Any]] = list,
    maximum: int = MAX_LIMIT,
    default: int = DEFAULT_LIMIT,
    count: Callable[[QuerySet[Any]], tuple[int, bool]] | None = None,
    bounded: bool = True,
) -> ListPage:
    """The page of `queryset`, sorted by `order`, that the request's query asks for. InvalidRequest for a bad one.

    `count` gives the number of rows, and whether there may be more than that; without it they are all counted.
    With it a page must not begin beyond `MAX_OFFSET`, unless the list is not `bounded`.
    """
    window = read(request, order, maximum, default)
    if bounded and count is not None:
        check_offset(window)
    total, more = count(queryset) if count is not None else (queryset.count(), False)
    found: list[Any] = []
    if window.after is not None or more or window.offset < total:
        ordered = queryset.order_by(*(f"-{key.column}" if key.descending else key.column for key in order))
        if window.after is not None:
            ordered = ordered.filter(beyond(order, window.after))
            found = rows(ordered[: window.limit + 1])
        else:
            found = rows(ordered[window.offset : window.offset + window.limit + 1])
    page = _page(found, window, total, order)
    if more:
        page.pagination["total_is_minimum"] = True
    return page


def check_offset(window: PageWindow) -> None:
    """Raise InvalidRequest for a page that begins too far behind the first row of a large table."""
    if window.after is None and window.offset > MAX_OFFSET:
        message = f"must not begin beyond the first {MAX_OFFSET} rows: follow next_cursor, or narrow the filter"
        raise query_fault(window.named, message, str(window.offset))


def capped(queryset: QuerySet[Any]) -> tuple[int, bool]:
    """The number of rows, counted no further than `CAP`."""
    found = queryset.order_by()[: CAP + 1].count()
    return min(found, CAP), found > CAP


def read(
    request: Request, order: Sequence[SortKey], maximum: int = MAX_LIMIT, default: int = DEFAULT_LIMIT
) -> PageWindow:
    """`cursor` beats `page` beats `offset`; a limit beyond `maximum` is cut."""
    sizes = (query.integer(request, name, minimum=1) for name in LIST_QUERY.names("limit"))
    limit = min(next(filter(None, sizes), default), maximum)
    page = query.integer(request, "page", minimum=1)
    offset = query.integer(request, "offset", minimum=0)
    cursor, mark = query.given(request, "cursor"), mark_of(request, order)
    if cursor:
        place, after = _decode(cursor, order, mark)
        return PageWindow(limit, place, after, "cursor", mark)
    if page is not None:
        return PageWindow(limit, (page - 1) * limit, None, "page", mark)
    return PageWindow(limit, offset or 0, None, "offset", mark)


def mark_of(request: Request, order: Sequence[SortKey]) -> str:
    """A checksum of the request's list and its order, which is another one for any other list or order."""
    view = request.parser_context["view"]
    columns = [f"-{key.column}" if key.descending else key.column for key in order]
    said = (type(view).__name__, getattr(view, "action", ""), *map(str, view.kwargs.values()), *columns)
    return f"{zlib.crc32(' '.join(said).lower().encode(errors='replace')):08x}"


def standing(total: int, limit: int, offset: int = 0, *, has_more: bool = False) -> dict[str, Any]:
    """What an answer says about where the rows of a page stand."""
    return {
        "total": total,
        "limit": limit,
        "offset": offset,
        "page": offset // limit + 1,
        "per_page": limit,
        "has_more": has_more,
    }


def _page(found: list[Any], window: PageWindow, total: int, order: Sequence[SortKey]) -> ListPage:
    shown = found[: window.limit]
    pagination = standing(total, window.limit, window.offset, has_more=len(found) > window.limit)
    if pagination["has_more"]:
        last = [_value(shown[-1], key.column) for key in order]
        pagination["next_cursor"] = window.cursor(window.offset + window.limit, last)
    return ListPage(shown, pagination)


def beyond(order: Sequence[SortKey], after: list[Any]) -> Q:
    """Rows behind `after`: beyond it in the first column, or equal there and beyond it in the next."""
    condition, equal = Q(), Q()
    for key, value in zip(order, after, strict=True):
        condition |= equal & Q(**{f"{key.column}__{'lt' if key.descending else 'gt'}": value})
        equal &= Q(**{key.column: value})
    # Said again for the first column alone: an index is entered by that, and not by the alternatives.
    return Q(**{f"{order[0].column}__{'lte' if order[0].descending else 'gte'}": after[0]}) & condition


def _value(row: Any, column: str) -> Any:
    return getattr(row, column) if isinstance(row, Model) else row[column]


def _decode(cursor: str, order: Sequence[SortKey], mark: str) -> tuple[int, list[Any]]:
    try:
        if len(cursor) > _MAX_CURSOR:
            raise ValueError("too long")
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        place, given, *values = json.loads(text)
        if type(place) is not int or not 0 <= place < 2**53 or not all(isinstance(value, str) for value in values):
            raise ValueError("not of ours")
        if given != mark:
            raise ValueError("of another list, or another order")
        return place, [key.parse(value) for key, value in zip(order, values, strict=True)]
    except (ValueError, TypeError, OverflowError, RecursionError, binascii.Error) as error:
        raise InvalidRequest(
            "The query parameter cursor is none that this list gave out in this order.",
            details={"field": "cursor"},
            hint="Pass next_cursor exactly as it was returned, or leave cursor out to begin anew.",
        ) from error


def parse_time(value: str) -> dt.datetime:
    instant = dt.datetime.fromisoformat(value)
    if instant.tzinfo is None:
        raise ValueError("no zone")
    return instant.astimezone(dt.UTC)


def parse_uuid(value: str) -> uuid.UUID:
    return uuid.UUID(value)


def parse_name(value: str) -> str:
    if not value.isprintable():
        raise ValueError("not printable")
    return value
