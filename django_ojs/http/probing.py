"""Asking the job store for a sign of life, for a bounded time.

A database behind a broken network answers nothing, not even an error, for minutes. So a thread of its own asks, on a
connection of its own, and whoever wants to know waits for it a moment. While it hangs nobody starts another.
"""

from __future__ import annotations

import threading
import time

from django.db import OperationalError, connections

#: Seconds after which a store that has not answered counts as away.
PATIENCE = 2.0

_lock = threading.Lock()
_asking: dict[str, _Question] = {}


class _Question:
    def __init__(self) -> None:
        self.began = time.monotonic()
        self.answered = threading.Event()
        self.seconds = 0.0
        self.error: Exception | None = None


def ask(using: str) -> float:
    """The seconds that the store took to answer. Raises a `django.db.Error` if it cannot, or does not in time."""
    with _lock:
        question = _asking.get(using)
        if question is None:
            question = _asking[using] = _Question()
            threading.Thread(target=_ask, args=(using, question), name="ojs-probe", daemon=True).start()
    left = PATIENCE - (time.monotonic() - question.began)
    if not question.answered.wait(max(left, 0.0)):
        raise OperationalError(f"The database has not answered for {time.monotonic() - question.began:.1f} s.")
    if question.error is not None:
        raise question.error
    return question.seconds


def _ask(using: str, question: _Question) -> None:
    try:
        with connections[using].cursor() as cursor:
            began = time.perf_counter()
            cursor.execute("SELECT 1")
            cursor.fetchone()
            question.seconds = time.perf_counter() - began
    except Exception as error:  # noqa: BLE001 - raised again by `ask`
        question.error = error
    finally:
        with _lock:
            del _asking[using]
        question.answered.set()
        connections[using].close()
