"""Any module of the ideas can be imported first: a command, a worker and a view begin at different ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import importlib, pkgutil, sys
import django
django.setup()
folders = ("jobs", "queues", "limits", "cron", "workflows", "workerregistry", "webhooks")
packages = [importlib.import_module(f"django_ojs.{folder}") for folder in folders]
names = [f"{package.__name__}.{m.name}" for package in packages for m in pkgutil.iter_modules(package.__path__)]
for name in names:
    for loaded in [module for module in sys.modules if module.rpartition(".")[0] in {p.__name__ for p in packages}]:
        del sys.modules[loaded]
    importlib.import_module(name)
print(len(names))
"""


@pytest.mark.slow
def test_every_operation_can_be_the_first_to_be_imported() -> None:
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        check=False,
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 20
