"""Step ids and the dependencies between them: unique, known, without a cycle (orchestration 1.2 and 1.3)."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from django_ojs.policies.faults import shorten
from django_ojs.policies.faults import workflow_fault as fault
from django_ojs.policies.workflowgraph import CALLBACKS

MAX_LENGTH = 255


def ids(items: Sequence[dict[str, Any]], word: str) -> list[str]:
    """The id of each item: its own, else its name where that is free, else `word-{index}`; '' for a faulty one."""
    own = [item.get("id") for item in items]
    taken = {value for value in own if isinstance(value, str)}
    found: list[str] = []
    for index, item in enumerate(items):
        value = own[index]
        if value is None:
            names = (item.get("name"), f"{word}-{index}", f"{word}-{index}.{len(items)}")
            value = next(name for name in names if _is_id(name) and name not in taken)
        found.append(str(value) if _is_id(value) else "")
        taken.add(found[-1])
    return found


def needs(
    items: Sequence[dict[str, Any]], names: Sequence[str], path: str, *, named: bool = False
) -> list[tuple[int, ...]]:
    """The items that each item depends on, by index; `path` is that of the array, for errors.

    Raises InvalidWorkflow for a faulty or repeated id and a dependency on nothing, on itself or in a circle;
    with `named` also for a step without an id where steps depend on each other.
    """
    places: dict[str, int] = {}
    depends = any(item.get("depends_on") for item in items)
    for index, name in enumerate(names):
        if not name:
            message = f"must be a printable text of 1 to {MAX_LENGTH} characters"
            raise fault(f"{path}[{index}].id", message, received=shorten(items[index].get("id")))
        if named and depends and items[index].get("id") is None and items[index].get("name") is None:
            raise fault(f"{path}[{index}].id", "is needed where steps depend on each other")
        if name in places:
            raise fault(f"{path}[{index}].id", f"repeats the id {shorten(name)}")
        places[name] = index
    found = [_needs_of(item.get("depends_on"), i, places, f"{path}[{i}].depends_on") for i, item in enumerate(items)]
    if depends:
        sorted_by_needs(found, path)
    return found


def sorted_by_needs(needs: Sequence[tuple[int, ...]], path: str) -> list[int]:
    """Indexes in an order in which each comes after what it needs. Raises InvalidWorkflow for a cycle."""
    sorter = TopologicalSorter(dict(enumerate(needs)))
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = list(error.args[1])
        steps = " → ".join(str(index) for index in reversed(cycle))
        raise fault(f"{path}[{cycle[0]}].depends_on", f"closes a circle of steps ({steps})", cycle=cycle) from None
    order: list[int] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        order += ready
        sorter.done(*ready)
    return order


def trigger(item: dict[str, Any], name: str, needs: tuple[int, ...]) -> str:
    """Which callback a step of the free form is, by its marker or its id; '' for an ordinary step."""
    if not needs:
        return ""
    options = item.get("options")
    marker = options.get("callback_type") if isinstance(options, dict) else None
    for word in (marker, name):
        if isinstance(word, str) and word.replace("-", "_") in CALLBACKS:
            return word.replace("-", "_")
    return ""


def inferred_type(needs: Sequence[tuple[int, ...]], triggers: Sequence[str]) -> str:
    """What a workflow of the free form is called."""
    if any(triggers):
        plain = all(not need for need, trigger in zip(needs, triggers, strict=True) if not trigger)
        return "batch" if plain else "dag"
    if len(needs) == 1 or all(need == ((i - 1,) if i else ()) for i, need in enumerate(needs)):
        return "chain"
    return "group" if not any(needs) else "dag"


def _needs_of(given: Any, index: int, places: dict[str, int], path: str) -> tuple[int, ...]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise fault(path, "must be an array of step ids", received=shorten(given))
    for number, name in enumerate(given):
        if not isinstance(name, str) or name not in places:
            raise fault(f"{path}[{number}]", f"names the unknown step {shorten(name)}", received=shorten(name))
        if places[name] == index:
            raise fault(f"{path}[{number}]", "names its own step")
    return tuple(dict.fromkeys(places[name] for name in given))


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_LENGTH and value.isprintable()
