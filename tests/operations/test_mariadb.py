"""MariaDB finds the jobs that it changes by their ids."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack
from django_ojs.jobs.push import push
from django_ojs.models import Job

pytestmark = [pytest.mark.mariadb, pytest.mark.django_db]


def test_a_change_of_jobs_fits_no_index_but_that_of_their_ids() -> None:
    """By an index of states it would wait for jobs that others have locked, which a claim has skipped."""
    plans: list[dict[str, Any]] = []

    def explained(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith(f"UPDATE `{Job._meta.db_table}`"):
            with connection.cursor() as cursor:
                cursor.cursor.execute(f"EXPLAIN {sql}", params)
                names = [column[0] for column in cursor.description]
                plans.extend(dict(zip(names, row, strict=True)) for row in cursor.fetchall())
        return execute(sql, params, many, context)

    push([{"type": "a.b", "args": [i]} for i in range(10)])
    with connection.execute_wrapper(explained):
        rows = fetch(Fetch(["default"], count=5))
        ack([Ack(row["id"]) for row in rows])
    assert len(rows) == 5
    assert len(plans) == 2
    assert {plan["possible_keys"] for plan in plans} == {"PRIMARY"}
    assert Job.objects.filter(state="completed").count() == 5
