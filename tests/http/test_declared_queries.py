"""What an operation reads from its query is what the OpenAPI document declares for it, in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from django.http import QueryDict

from django_ojs.http.base import OJSView
from django_ojs.http.query import OJSFilterBackend
from django_ojs.jobs.filterfields import OPERATOR
from django_ojs.jobs.selection import names_in
from django_ojs.spellings import EVENT_QUERY, STREAM_QUERY
from tests.http.conftest import Api, undone
from tests.http.described import described
from tests.http.test_openapi import ANSWERED, called

pytest.importorskip("drf_spectacular")
pytestmark = [pytest.mark.django_db, pytest.mark.once, pytest.mark.slow]

#: What clients may write instead of a name that is declared: the reference has these words, the document has not.
OTHER_WORDS = EVENT_QUERY.words.keys() | STREAM_QUERY.words.keys()
#: What the same path reads where a stream is asked for.
OF_STREAMS = {("/ojs/v1/events", "get"): {"channel", "last_event_id"}}
#: They lay their body over the whole query: a proxy may drop the body of a DELETE.
TAKE_ALL = {
    ("/ojs/v1/admin/dead-letter", "delete"), ("/ojs/v1/admin/dead-letter/purge", "post"),
    ("/ojs/v1/admin/queues/{name}/jobs", "delete"), ("/ojs/v1/dead-letter", "delete"),
    ("/ojs/v1/dead-letter/purge", "post"), ("/ojs/v1/queues/{name}", "delete"),
    ("/ojs/v1/queues/{name}/purge", "post"),
}  # fmt: skip


class NotedQuery(QueryDict):
    """A query that notes for which names it is asked; `taken`: all of it was."""

    asked: ClassVar[set[str]]
    taken: ClassVar[list[bool]]

    def __getitem__(self, key: Any) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: Any) -> bool:
        self.asked.add(key)
        return super().__contains__(key)

    def getlist(self, key: Any, default: Any = None) -> Any:
        self.asked.add(key)
        return super().getlist(key, default)

    def items(self) -> Any:
        self.taken.append(True)
        return super().items()

    def dict(self) -> Any:
        self.taken.append(True)
        return super().dict()


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The views that have answered, whose requests have noted queries."""
    found: list[Any] = []
    initialize, filterset = OJSView.initialize_request, OJSFilterBackend.get_filterset

    def noted(view: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(view)
        request.GET = NotedQuery(request.META.get("QUERY_STRING", ""))
        return initialize(view, request, *args, **kwargs)

    def noted_filters(*args: Any) -> Any:  # a form asks a query only if there is something in it
        filters = filterset(*args)
        NotedQuery.asked.update(filters.filters if filters is not None else ())
        return filters

    monkeypatch.setattr(OJSView, "initialize_request", noted)
    monkeypatch.setattr(OJSFilterBackend, "get_filterset", noted_filters)
    return found


def declared(path: str, method: str) -> set[str]:
    parameters = described().document["paths"][path][method].get("parameters", ())
    return {one["name"] for one in parameters if one["in"] == "query"}


def differences(api: Api, views: list[Any], path: str, method: str) -> Iterator[str]:
    NotedQuery.asked, NotedQuery.taken = set(), []
    with undone():
        called(api, path, method)
    said, read = declared(path, method), NotedQuery.asked | OF_STREAMS.get((path, method), set())
    takes_all = (path, method) in TAKE_ALL
    if bool(NotedQuery.taken) != takes_all:
        yield f"{method} {path} takes the whole query" if NotedQuery.taken else f"{method} {path} takes only names"
    if takes_all:
        read |= said & (names_in(OPERATOR).keys() | views[-1].get_body_serializer_class()().fields.keys())
    yield from (f"{method} {path} reads {name}, undeclared" for name in sorted(read - said - OTHER_WORDS))
    yield from (f"{method} {path} declares {name}, unread" for name in sorted(said - read))


def test_each_parameter_that_is_declared_is_read_and_no_other(api: Api, views: list[Any]) -> None:
    found = [one for path, method in ANSWERED for one in differences(api, views, path, method)]
    assert not found, "\n".join(found)
