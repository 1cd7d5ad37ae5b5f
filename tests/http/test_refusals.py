"""What a refused verb says: the states from which it could be done, and the verb as the caller knows it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.conftest import Api, error_of

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "verb,sources", [("run", "retryable, scheduled"), ("retry", "discarded, retryable"), ("activate", "pending")]
)
def test_a_refusal_says_from_which_states_it_would_be_done(api: Api, verb: str, sources: str) -> None:
    job = api.push()["id"]
    error = error_of(api.post(f"/admin/jobs/{job}/{verb}"), 409, "invalid_state_transition")
    start = f"Cannot {verb} job '{job}': it is available, and {verb} leads to available from "
    assert error["message"].startswith(start)
    told = error["message"].removeprefix(start).removesuffix(" only.").split(", ")
    assert sorted(told) == sources.split(", ")
    expected = error["details"]["expected_state"]
    assert expected == (told if len(told) > 1 else told[0])


@pytest.mark.parametrize("door", ["/jobs/bulk", "/admin/jobs/bulk"])
def test_so_does_one_of_a_bulk_call(api: Api, door: str) -> None:
    job = api.push()["id"]

    def refused(act: str) -> dict[str, Any]:
        answer = api.post(f"{door}/{act}", {"job_ids": [job], "confirm": True}).json()
        return dict((answer.get("errors") or answer["items"])[0]["error"])

    ended = ["completed", "cancelled", "discarded"]
    error = refused("delete")
    assert error["details"]["expected_state"] == ended
    assert error["message"].endswith(f"it is available, and delete leads to deleted from {', '.join(ended)} only.")
    assert refused("retry")["details"]["expected_state"] == ["discarded", "retryable"]


def test_a_number_that_is_too_long_is_told_in_digits(api: Api) -> None:
    body = b'{"type": "a.b", "args": [' + b"9" * 5000 + b"]}"
    message = error_of(api.raw("/jobs", body), 400, "invalid_payload")["message"]
    assert message.endswith("A number in the JSON text is too long: it has more than 4,300 digits.")
