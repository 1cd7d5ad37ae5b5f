"""`python -m benchmarks.galera`: what is promised of one database holds on a cluster all of whose nodes are written."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from django.conf import settings

from benchmarks import galera


@pytest.mark.wide
@pytest.mark.once
@pytest.mark.skipif(not any(map(os.path.exists, galera.LIBRARIES)), reason="MariaDB's library of Galera is missing")
def test_nothing_is_wrong_on_three_nodes() -> None:
    command = [sys.executable, "-m", "benchmarks.galera", "--count", "30"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=settings.BASE_DIR, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("\n") == len(galera.MEASURES)
    assert "WRONG" not in done.stdout
