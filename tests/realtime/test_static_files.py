"""The asgi.py of the documentation and of the example project serve the admin's static files while DEBUG is on."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator

PAGE = Path(__file__).parents[2] / "docs" / "events.md"


def of_the_docs() -> Any:
    code = re.findall(r"```python run\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(code, names)
    return names["application"]


def of_the_example() -> Any:
    return importlib.reload(importlib.import_module("example_project.asgi")).application


@pytest.mark.parametrize("make", [of_the_docs, of_the_example])
async def test_static_files_are_served_under_debug(make: Any, settings: Any) -> None:
    settings.DEBUG = True
    settings.STATIC_URL = "/static/"
    scope = {
        "type": "http", "method": "GET", "path": "/static/admin/css/base.css", "query_string": b"", "headers": [],
    }  # fmt: skip
    client = ApplicationCommunicator(make(), scope)
    await client.send_input({"type": "http.request", "body": b""})
    assert (await client.receive_output(10))["status"] == 200
    await client.wait()
