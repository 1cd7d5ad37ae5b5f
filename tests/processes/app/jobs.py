"""Handlers that leave a line for each run in the file OJS_TEST_LEDGER. A line is one write in append mode,
so none is lost however many processes write."""

import os
import time
from pathlib import Path

from django_ojs import job

LEDGER = Path(os.environ["OJS_TEST_LEDGER"])
_file = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(*words: object) -> None:
    os.write(_file, (" ".join(map(str, words)) + "\n").encode())


@job("load.note")
def note_run(number: int) -> int:
    note("ran", number, os.getpid())
    return number


@job("load.hold")
def hold(number: int) -> int:
    """Runs until the file `go` appears beside the ledger."""
    note("began", number, os.getpid())
    while not LEDGER.with_name("go").exists():
        time.sleep(0.01)
    note("ended", number, os.getpid())
    return number
