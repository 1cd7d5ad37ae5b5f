"""The nine standard handlers (conformance spec 5.4), described. `handlers` has functions for them."""

from __future__ import annotations

from typing import Final

STANDARD_HANDLERS: Final[dict[str, str]] = {
    "test.echo": "returns its arguments as the result",
    "test.fail_once": "fails on the first attempt, succeeds on the second",
    "test.fail_twice": "fails on the first two attempts, succeeds on the third",
    "test.fail_always": "always fails with a retryable error",
    "test.slow": "sleeps for a configurable duration, then succeeds",
    "test.timeout": "runs longer than any configured timeout",
    "test.panic": "crashes the handler, as a dying worker would",
    "test.produce": "returns a configurable result value",
    "test.noop": "succeeds immediately with no result",
}
