"""The handlers of the jobs that have to survive: they note that they ran, outside of the database."""

from __future__ import annotations

import asyncio
import os
import time

from django_ojs import job

PAUSE = 0.01


@job("faults.sync")
def in_a_thread(number: int) -> None:
    time.sleep(PAUSE)
    _note(number)


@job("faults.async")
async def in_a_coroutine(number: int) -> None:
    await asyncio.sleep(PAUSE)
    _note(number)


def _note(number: int) -> None:
    file = os.open(os.environ["OJS_FAULTS_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{number}\n".encode())
    finally:
        os.close(file)
