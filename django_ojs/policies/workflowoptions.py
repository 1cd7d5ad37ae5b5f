"""What a workflow's options mean for its jobs: item options > item members > workflow options (orchestration 1.2)."""

from __future__ import annotations

from typing import Any

from django_ojs.policies.faults import workflow_fault as fault
from django_ojs.policies.source import OTHER_TIMEOUTS

#: Spellings of one attribute: who gives one of them overrides all of them.
_ALIASES = (
    frozenset({"timeout", "timeout_ms"}),
    frozenset({"retry", "retry_policy"}),
    frozenset({"scheduled_at", "delay_until"}),
    frozenset({"visibility_timeout", "visibility_timeout_ms"}),
    *(frozenset({name, f"{name}_ms"}) for name in OTHER_TIMEOUTS),
)
_META = ("meta", "metadata")
#: Members of an item that describe its place in the workflow.
_STRUCTURE = frozenset({"id", "name", "depends_on"})


def inherit(inherited: dict[str, Any], document: dict[str, Any], path: str) -> dict[str, Any]:
    """The options that the parts of a workflow get: its own over those of the workflow around it."""
    own = document.get("options")
    if own is None:
        return inherited
    if not isinstance(own, dict):
        raise fault(f"{path}.options", "must be an object")
    return _over(inherited, own)


def leaf(item: dict[str, Any], inherited: dict[str, Any], path: str) -> dict[str, Any]:
    """The envelope of a job: what the item says, and below it what the workflow says."""
    document = {name: value for name, value in item.items() if name not in _STRUCTURE}
    own = document.pop("options", None)
    if own is not None and not isinstance(own, dict):
        raise fault(f"{path}.options", "must be an object")
    options = {name: value for name, value in (own or {}).items() if name != "callback_type"}
    given = {name for source in (document, options) for name, value in source.items() if value is not None}
    hidden = {*_META, "callback_type"}
    options |= {n: value for n, value in inherited.items() if n not in hidden and not given & _spellings(n)}
    below = _meta(inherited)
    if below:
        own_meta = document.get("meta")
        document["meta"] = below | own_meta if isinstance(own_meta, dict) else own_meta or below
    return document | {"options": options} if options else document


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    given = {name for name, value in above.items() if value is not None}
    kept = {name: value for name, value in below.items() if name not in _META and not given & _spellings(name)}
    return kept | {name: value for name, value in above.items() if name not in _META} | _merged_meta(below, above)


def _merged_meta(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    meta = _meta(below) | _meta(above)
    broken = {name: above[name] for name in _META if above.get(name) is not None and not isinstance(above[name], dict)}
    return ({"meta": meta} if meta else {}) | broken


def _meta(options: dict[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name in _META:
        if isinstance(options.get(name), dict):
            merged |= options[name]
    return merged


def _spellings(name: str) -> frozenset[str]:
    return next((group for group in _ALIASES if name in group), frozenset({name}))
