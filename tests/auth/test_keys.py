"""Keys: made once, found by their text alone, useless when revoked, and cheap to use."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_ojs import clock, keys
from django_ojs.models import APIKey

ZEROS = "ojs_" + "0" * 64

pytestmark = pytest.mark.django_db


def test_the_text_of_a_key_is_nowhere_in_the_database() -> None:
    key, text = keys.create("billing", ["push"])
    row = APIKey.objects.filter(pk=key.pk).values().get()
    assert text.startswith("ojs_")
    assert len(text.removeprefix("ojs_")) * 4 == 256
    assert not any(text in str(value) for value in row.values())
    assert row["digest"] == keys.digest(text)
    assert text.startswith(row["prefix"])


def test_two_keys_differ() -> None:
    assert keys.create("a", ["push"])[1] != keys.create("b", ["push"])[1]


def test_a_key_is_found_with_one_read_by_its_text() -> None:
    key, text = keys.create("billing", ["push"])
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert keys.find(text) == key
    assert len(queries) == 1


@pytest.mark.parametrize("text", ["", "ojs_", ZEROS, ZEROS + "\n", ZEROS.upper(), "x" * 100_000, "ojs_é", "\ud800"])
def test_what_is_no_key_is_not_found(text: str) -> None:
    keys.create("billing", ["push"])
    assert keys.find(text) is None


def test_malformed_text_never_reaches_the_database(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert keys.find("not-a-key") is None


def test_the_digests_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = keys.create("billing", ["push"])
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(keys.hmac, "compare_digest", lambda a, b: bool(seen.append((a, b))))
    assert keys.find(text) is None
    assert seen == [(keys.digest(text), keys.digest(text))]


def test_a_name_is_taken_only_once_even_by_a_revoked_key() -> None:
    key, _ = keys.create("billing", ["push"])
    keys.revoke(key)
    with pytest.raises(ValidationError, match="choose another name"):
        keys.create("billing", ["read"])


@pytest.mark.parametrize(
    "field, given",
    [
        ("name", {"name": ""}),
        ("name", {"name": "line\nbreak"}),
        ("name", {"name": "x" * 101}),
        ("scopes", {"scopes": []}),
        ("scopes", {"scopes": ["pusj"]}),
        ("queues", {"queues": ["Mail"]}),
        ("queues", {"queues": ["mail\n"]}),
        ("job_types", {"job_types": ["*"]}),
        ("job_types", {"job_types": ["mail.*.x"]}),
        ("job_types", {"job_types": ["mail-x.*"]}),
        ("queues", {"queues": [f"q{n}" for n in range(501)]}),
        ("job_types", {"job_types": [f"t{n}.*" for n in range(501)]}),
        ("expires_at", {"expires_at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}),
        ("expires_at", {"expires_at": dt.datetime(9999, 12, 31, 23, tzinfo=dt.timezone(dt.timedelta(hours=-8)))}),
    ],
)
def test_an_impossible_key_is_refused_and_the_field_named(field: str, given: dict[str, Any]) -> None:
    values: dict[str, Any] = {"name": "billing", "scopes": ["push"], **given}
    with pytest.raises(ValidationError) as caught:
        keys.validate(**values)
    assert list(caught.value.message_dict) == [field]


def test_hyphens_in_job_types_follow_the_dialect(settings: Any) -> None:
    settings.OJS = {"DIALECT": "published"}
    keys.validate("billing", ["push"], None, ["mail-x.*"])


def test_empty_limits_are_no_limits() -> None:
    key, _ = keys.create(" billing ", ["push", "push"], [], ["", "mail.*"])
    key.refresh_from_db()
    assert (key.name, key.scopes, key.queues, key.job_types) == ("billing", ["push"], None, ["mail.*"])


def test_revoking_twice_keeps_the_first_time(frozen_clock: Any) -> None:
    key, _ = keys.create("billing", ["push"])
    assert keys.revoke(key)
    first = key.revoked_at
    frozen_clock.advance(hours=1)
    assert not keys.revoke(key)
    assert key.revoked_at == first
    assert keys.status(key) == "revoked"


def test_a_key_expires_at_its_instant(frozen_clock: Any) -> None:
    key, _ = keys.create("billing", ["push"], expires_at=clock.now() + dt.timedelta(seconds=10))
    frozen_clock.advance(seconds=9.999)
    assert keys.status(key) == "active"
    frozen_clock.advance(seconds=0.001)
    assert keys.status(key) == "expired"


# Last used


@pytest.mark.django_db(transaction=True)
def test_use_is_noted_at_most_once_a_minute(frozen_clock: Any) -> None:
    _key, text = keys.create("billing", ["push"])
    start = frozen_clock.now
    for _ in range(10):
        keys.touch(_fresh(text))
        frozen_clock.advance(seconds=1)
    assert _fresh(text).last_used_at == start
    frozen_clock.advance(seconds=60)
    keys.touch(_fresh(text))
    assert _fresh(text).last_used_at == frozen_clock.now


@pytest.mark.django_db(transaction=True)
def test_the_second_use_in_a_minute_costs_no_statement(django_assert_num_queries: Any) -> None:
    key, _ = keys.create("billing", ["push"])
    keys.touch(key)
    with django_assert_num_queries(0):
        keys.touch(key)


@pytest.mark.django_db(transaction=True)
def test_use_is_noted_after_the_transaction_and_not_if_it_rolls_back() -> None:
    key, text = keys.create("billing", ["push"])
    with transaction.atomic():
        keys.touch(key)
        assert _fresh(text).last_used_at is None
    assert _fresh(text).last_used_at is not None


@pytest.mark.django_db(transaction=True)
def test_a_database_that_refuses_the_note_fails_no_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key, text = keys.create("billing", ["push"])

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise DatabaseError("attempt to write a readonly database")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "django_ojs.keys"):
        patch.setattr("django.db.models.query.QuerySet.update", refuse)
        keys.touch(key)
        keys.touch(key)
    assert len(caplog.records) == 1
    assert text not in caplog.text
    assert keys.find(text) == key


@pytest.mark.django_db(transaction=True)
def test_a_lock_on_the_key_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    key, text = keys.create("billing", ["push"])
    other = connection.copy()
    other.set_autocommit(False)
    sqlite = connection.vendor == "sqlite"
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN IMMEDIATE" if sqlite else "SELECT id FROM django_ojs_apikey FOR UPDATE")
        keys.touch(key)  # else it would wait until `other` is closed, which it never would be
    finally:
        other.close()
    assert _fresh(text).last_used_at is None
    assert ("locked" in caplog.text) == sqlite


@pytest.mark.sqlite
@pytest.mark.django_db(transaction=True)
def test_the_patience_of_the_connection_is_restored() -> None:
    keys.touch(keys.create("billing", ["push"])[0])
    with connection.cursor() as cursor:
        assert cursor.execute("PRAGMA busy_timeout").fetchone()[0] == 20_000


def _fresh(text: str) -> APIKey:
    return APIKey.objects.get(digest=keys.digest(text))
