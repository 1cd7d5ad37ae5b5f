"""What the migration makes beside what the models say. That it makes no less, `makemigrations --check` sees."""

from __future__ import annotations

import pytest
from django.db import connection

from django_ojs.models import Job, RateLimit, RateStart

pytestmark = [pytest.mark.mariadb, pytest.mark.django_db]


def test_mariadb_has_whole_indexes_where_it_can_have_no_partial_ones() -> None:
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, Job._meta.db_table)
    columns = {name: found[name]["columns"] for name in found if name.endswith("_mariadb")}
    assert columns == {
        "ojs_job_claim_mariadb": ["state", "queue", "priority", "enqueued_at", "id"],
        "ojs_job_unique_mariadb": ["unique_key", "state"],
        "ojs_job_rate_mariadb": ["rate_key", "state"],
    }


@pytest.mark.parametrize("model,column", [(Job, "rate_key"), (RateLimit, "key"), (RateStart, "key")])
def test_keys_that_differ_in_their_case_are_two_in_mariadb(model: type, column: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT collation_name FROM information_schema.columns "
            "WHERE table_schema = DATABASE() AND table_name = %s AND column_name = %s",
            [model._meta.db_table, column],  # type: ignore[attr-defined]
        )
        assert cursor.fetchone() == ("utf8mb4_bin",)
