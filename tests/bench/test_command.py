"""`ojs_bench` measures a site as it is in production."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import override_settings

from benchmarks.management.commands import ojs_bench
from benchmarks.result import Result


@pytest.mark.django_db
def test_statements_are_not_logged_for_debugging_while_it_measures() -> None:
    logged = []

    def measure(self: Any, options: dict[str, Any], database: str) -> Iterator[Result]:
        logged.append(connection.queries_logged)
        yield Result("enqueue", [1.0])

    out = io.StringIO()
    nothing = mock.patch.object(ojs_bench, "throwaway_database", return_value=contextlib.nullcontext(""))
    with override_settings(DEBUG=True), nothing, mock.patch.object(ojs_bench.Command, "_measure", measure):
        assert connection.queries_logged
        call_command("ojs_bench", "--json", stdout=out)
    assert logged == [False]
    assert json.loads(out.getvalue())["results"][0]["median"] == 1.0
