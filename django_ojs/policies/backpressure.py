"""How full a queue may get, as its configuration says (jobs 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from django_ojs.jsontext import is_integer

STRATEGIES = ("reject", "block", "drop_oldest")
WARNING_THRESHOLD = 0.8


class Bound(NamedTuple):
    """The bounds of a queue. Jobs count until they end; None: no bound of this kind."""

    max_depth: int | None = None
    max_bytes: int | None = None
    strategy: str = "reject"
    warning: float = WARNING_THRESHOLD

    def pressure(self, depth: int, size: int) -> float:
        """How full the queue is, from 0 to 1, by the bound that is nearer."""
        shares = [depth / self.max_depth] if self.max_depth else []
        shares += [size / self.max_bytes] if self.max_bytes else []
        return min(max(shares, default=0.0), 1.0)


def bound_of(config: object) -> Bound | None:
    """The bound in a queue's configuration, None where there is none; `backpressure` beats `max_size`.

    What makes no sense is no bound: `config` was checked where it was set.
    """
    if not isinstance(config, Mapping):
        return None
    own = config.get("backpressure")
    own = own if isinstance(own, Mapping) else {}
    depth = _count(own.get("max_depth")) or _count(config.get("max_size"))
    size = _count(own.get("max_size_bytes")) or _count(config.get("max_size_bytes"))
    if depth is None and size is None:
        return None
    strategy = own.get("strategy") or config.get("overflow_policy")
    warning = own.get("warning_threshold")
    return Bound(
        depth,
        size,
        strategy if strategy in STRATEGIES else "reject",
        _share(warning),
    )


def _count(value: Any) -> int | None:
    return int(value) if is_integer(value) and value > 0 else None


def _share(value: Any) -> float:
    sensible = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    return float(value) if sensible else WARNING_THRESHOLD
