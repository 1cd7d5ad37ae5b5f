"""The snippets of docs/webhooks.md do what the page says, with what we really send."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from django_ojs.conf import FIELDS
from django_ojs.webhooks import deliveries, subscriptions
from tests.webhooks.conftest import SECRET, subscribe
from tests.webhooks.receiver import Got, Receiver

pytestmark = pytest.mark.django_db
PAGE = (django_settings.BASE_DIR / "docs/webhooks.md").read_text()


def snippet(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


@pytest.fixture
def got(receiver: Receiver) -> Got:
    """A request that both secrets of a rotation have signed."""
    subscription = subscribe(receiver.url())
    subscriptions.rotate(subscription.pk, "the-new-one")
    deliveries.send_test(subscription.pk)
    return receiver.got[0]


def variants(got: Got) -> list[tuple[bytes, dict[str, str], str, bool]]:
    headers = {name.lower(): value for name, value in got.headers.items()}
    old = headers | {"x-ojs-timestamp": str(int(headers["x-ojs-timestamp"]) - 301)}
    return [
        (got.body, headers, "the-new-one", True),
        (got.body, headers, SECRET, True),
        (got.body, headers, "another", False),
        (got.body + b" ", headers, SECRET, False),
        (got.body, old, SECRET, False),
        (got.body, {}, SECRET, False),
        (got.body, headers | {"x-ojs-signature-timestamped": "sha256=ü"}, SECRET, False),
        (got.body, headers | {"x-ojs-timestamp": "now"}, SECRET, False),
    ]


def test_the_python_snippet(got: Got) -> None:
    names: dict[str, Any] = {}
    exec(snippet("python"), names)
    for body, headers, secret, genuine in variants(got):
        assert names["is_genuine"](body, headers, secret) is genuine, (headers, secret)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_javascript_snippet(got: Got, tmp_path: Path) -> None:
    cases = [[body.hex(), headers, secret, genuine] for body, headers, secret, genuine in variants(got)]
    program = tmp_path / "check.mjs"
    program.write_text(
        snippet("javascript")
        + f"for (const [body, headers, secret, genuine] of {json.dumps(cases)})\n"
        + "  console.log(isGenuine(Buffer.from(body, 'hex'), headers, secret) === genuine);\n"
    )
    done = subprocess.run(["node", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["true"] * len(cases), done.stderr


def test_settings_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`(?:OJS\[\")?(WEBHOOK_[A-Z_]+)", PAGE))
    assert named
    assert named <= set(FIELDS)
