"""A workflow scheduler of thirty lines that knows no database and works everything out anew each time.

A tree is `("job", id)`, `("chain", [trees])`, `("group", [trees])`, `("batch", [trees], {key: id})` or
`("graph", {id: [needs]})`. `done` maps jobs to how they ended: "c" for completed, anything else for not.
"""

from __future__ import annotations

from typing import Any

OPEN, NEVER, SKIPPED = "open", "never", "skipped"
CALLBACKS = ("on_complete", "on_success", "on_failure")


def outcome(tree: Any, done: dict[str, str], begun: set[str]) -> str:
    """ "c", "f" or `OPEN`; adds every job that must have been enqueued by now to `begun`."""
    match tree:
        case "job", name:
            begun.add(name)
            return done.get(name, OPEN)
        case "chain", parts:
            for part in parts:
                if (end := outcome(part, done, begun)) != "c":
                    return OPEN if end == OPEN else "f"
            return "c"
        case "group", parts:
            return joined([outcome(part, done, begun) for part in parts])
        case "batch", parts, callbacks:
            ends = [outcome(part, done, begun) for part in parts]
            if OPEN in ends:
                return OPEN
            failed = set(ends) != {"c"}
            fired = [
                outcome(("job", callbacks[key]), done, begun) for key in CALLBACKS if fires(key, callbacks, failed)
            ]
            return joined(fired if {"on_complete", "on_failure"} & callbacks.keys() else [*ends, *fired])
        case "graph", needs:
            return graph(needs, done, begun)
    raise AssertionError(tree)


def graph(needs: dict[str, list[str]], done: dict[str, str], begun: set[str]) -> str:
    ends: dict[str, str] = {}
    while len(ends) < len(needs):
        name = next(step for step in needs if step not in ends and all(need in ends for need in needs[step]))
        before = [ends[need] for need in needs[name]]
        if name in CALLBACKS and before:
            failed = any(end not in ("c", SKIPPED) for end in before)
            wanted = {"on_complete": True, "on_success": not failed, "on_failure": failed}[name]
            ends[name] = OPEN if OPEN in before else outcome(("job", name), done, begun) if wanted else SKIPPED
        elif any(end not in ("c", OPEN, SKIPPED) for end in before):
            ends[name] = NEVER
        elif SKIPPED in before:
            ends[name] = SKIPPED
        else:
            ends[name] = OPEN if OPEN in before else outcome(("job", name), done, begun)
    if OPEN in ends.values():
        return OPEN
    callbacks = [name for name in needs if name in CALLBACKS and needs[name]]
    handled = {name for name in callbacks if name != "on_success" and ends[name] != SKIPPED}
    while more := {need for name in handled for need in needs[name]} - handled:
        handled |= more
    unhandled = [name for name in needs if name in callbacks or name not in handled]
    return joined([ends[name] for name in unhandled if ends[name] not in (SKIPPED, NEVER)])


def fires(key: str, callbacks: dict[str, str], failed: bool) -> bool:
    return key in callbacks and (key == "on_complete" or failed == (key == "on_failure"))


def joined(ends: list[str]) -> str:
    return OPEN if OPEN in ends else "c" if all(end == "c" for end in ends) else "f"
