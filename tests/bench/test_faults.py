"""`python -m benchmarks.faults`: every kind of fault is lived through by processes, on each database."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from django.conf import settings

from benchmarks.faults.__main__ import CLASSES, table
from benchmarks.faults.injection import CLOSED
from django_ojs.faults import CODES, DatabaseFault


@pytest.mark.parametrize("vendor", sorted(CODES))
def test_every_kind_of_fault_that_a_database_has_is_tried(vendor: str) -> None:
    tried = list(table(vendor))
    assert {fault.name for fault in tried} >= {fault.name for fault in CODES[vendor]}
    assert {fault.name for fault in tried} <= set(DatabaseFault.__members__)
    if vendor == "postgresql":
        assert not {fault.code for fault in tried} & set(CLASSES), "a class is no code"
    else:
        assert {fault.code for fault in tried} - {CLOSED} <= set(" ".join(CODES[vendor].values()).split())


@pytest.mark.wide  # minutes of real processes
@pytest.mark.django_db
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_each_kind_of_fault_costs_nothing_but_time() -> None:
    command = [sys.executable, "-m", "benchmarks.faults", "--seconds", "3", "--one-of-each"]
    command += ["--database", url] if (url := os.environ.get("OJS_TEST_DATABASE_URL")) else []
    done = subprocess.run(command, capture_output=True, text=True, cwd=settings.BASE_DIR, check=False, timeout=850)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
