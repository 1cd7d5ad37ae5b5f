"""Every value of every HTTP operation is a hostile one in its turn: no 5xx, an error that names the member, no half of
a change.

The operations and their places come from what the package says of itself (`places`), the values from `values`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from django_ojs import keys
from django_ojs.http import openapi
from tests.hostile.answers import Answer, check
from tests.hostile.calls import V1, Call
from tests.hostile.places import Asked, Operation, Place, opaque, operations
from tests.hostile.test_in_process import Handler, Unmade
from tests.hostile.values import ODD, REPEATED, WORDS
from tests.hostile.walking import FULL, Writes, report, some
from tests.rights import calls as rights
from tests.rights.conftest import closed, world
from tests.rights.world import World

pytest.importorskip("drf_spectacular")
__all__ = ["closed", "world"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.sqlite_too,
    pytest.mark.django_db,
    pytest.mark.usefixtures("frozen_clock"),
]  # no worker falls silent meanwhile
#: So many tests share the operations.
PARTS = 6
#: Values of a place of an operation, and headers of one, where little time is to be spent, and where much.
FEW, MANY = (1, 2), (32, 100) if FULL else (2, 6)
#: What an error may name in the place of a member: these bodies are a member themselves.
BODIES = {"/config": ("config",), "/rate-limit": ("rate_limit", "config")}


class Site:
    """The site with its rows, and a caller who may do everything."""

    def __init__(self, world: World) -> None:
        self.side = world.own
        self.handler = Handler(keys.create("everything", ["admin"])[1])
        self.writes = Writes()

    def send(self, call: Call) -> tuple[Answer, bool]:
        """The answer, and whether rows have changed though it is an error; what was done is undone."""
        return self.writes.during(lambda: self.handler(call), failed)


def failed(answer: Answer) -> bool:
    """Whether nothing is to be done; a bulk call tells of each job by itself, and its event stands."""
    return answer.status >= 400 and b'"items":' not in answer.body


def values_of(place: Place) -> list[Any]:
    if place.kind == "body":
        return ODD
    if place.kind == "query":
        return [*WORDS, *REPEATED]
    return [word for word in WORDS if word] if place.kind == "path" else WORDS


def survey(site: Site, operation: Operation) -> list[Place]:
    """All places of an operation, those included that only its view knows."""
    with Asked() as asked:
        answer, _ = site.send(operation.request(site.side))
    assert operation.call is None or operation.call.success(answer.status), (operation, answer)
    return list(dict.fromkeys((*operation.places, *sorted(asked.places, key=str))))


def faults(site: Site, operation: Operation, place: Place, value: Any) -> Iterator[str]:
    call, label = operation.request(site.side, place, value), f"{operation} {place} {value!r:.60}"
    try:
        answer, changed = site.send(call)
        told = check(call, answer)
    except Unmade:
        return
    except AssertionError as error:
        yield f"{label}: {error}"
        return
    except Exception as error:
        raise AssertionError(f"{label}: {error!r}") from error
    if changed:
        yield f"{label}: an error, and half of a change"
    if answer.status in (400, 422) and "error" in told and not names(told["error"], operation, place):
        yield f"{label}: the error does not name it: {json.dumps(told['error'])}"


def names(error: dict[str, Any], operation: Operation, place: Place) -> bool:
    """Whether an error says which value is wrong."""
    details, text = error["details"], json.dumps([error["message"], error["details"]]).lower()
    match place.kind:
        case "path":
            return bool(details.keys() & {"field", "resource_type"})
        case "header":
            (name,) = place.names  # the body is cut where its length is wrong
            return name == "Content-Length" or any(part in text for part in name.lower().split("-"))
        case "body":
            if details.get("field") == "body":  # no member of what is no JSON has a name
                return True
            also = next((names for end, names in BODIES.items() if operation.path.endswith(end)), ())
            return any(name.lower() in text for name in (*place.names, *also))
    return any(name.lower() in text for name in place.names)


def walk(world: World, part: int, count: int, headers: int) -> list[str]:
    site = Site(world)
    wrong: list[str] = []
    for operation in operations()[part::PARTS]:
        places = survey(site, operation)
        of_headers = [place for place in places if place.kind == "header"]
        for place in [place for place in places if place.kind != "header"]:
            for value in some(values_of(place), count, operation, place):
                wrong += faults(site, operation, place, value)
        for place in some(of_headers, headers, operation):
            for value in some(WORDS, 1, operation, place):
                wrong += faults(site, operation, place, value)
    return wrong


@pytest.mark.parametrize("part", range(PARTS))
def test_no_value_breaks_an_operation(part: int, world: World) -> None:
    wrong = walk(world, part, *FEW)
    assert not wrong, report(wrong)


@pytest.mark.wide
@pytest.mark.parametrize("part", range(PARTS))
def test_none_of_many_values_breaks_an_operation(part: int, world: World) -> None:
    wrong = walk(world, part, *MANY)
    assert not wrong, report(wrong)


def test_the_walk_knows_every_operation_and_what_a_view_asks_for_beside_the_document(world: World) -> None:
    """That it finds something is what the other tests rely on."""
    known = {str(operation): operation for operation in operations()}
    jobs = known["GET /ojs/v1/jobs"]
    assert {"state", "sort", "order", "since", "cursor"} <= {place.names[0] for place in jobs.places}
    assert Place("header", ("Ojs-Block-Timeout",)) in jobs.places
    push = known["POST /ojs/v1/jobs"]
    assert Place("body", ("retry", "max_attempts")) in push.places
    purge = known["POST /ojs/v1/queues/{name}/purge"]
    assert Place("body", ("states",)) in purge.places
    assert Place("query", ("type",)) in survey(Site(world), known["GET /ojs/v1/events"])  # an alias of `types`


def test_every_body_of_which_the_document_says_nothing_has_its_members_here() -> None:
    bare = {"type": "object"}
    document = openapi.document("1", "")
    for path, item in document["paths"].items():
        for method, said in item.items():
            schemas = [content["schema"] for content in said.get("requestBody", {}).get("content", {}).values()]
            key = f"{method.upper()} " + re.sub(r"{(\w+)}", r"<\1>", path.removeprefix(V1))
            if bare in schemas and rights.BODIES.get(key):
                assert opaque(path), key
