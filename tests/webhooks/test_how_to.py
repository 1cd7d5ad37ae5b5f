"""The receivers of docs/how-to/webhooks.md, with what we really send."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from django.test import RequestFactory

from django_ojs.webhooks import deliveries
from tests.howto.pages import titled
from tests.webhooks.conftest import SECRET, subscribe
from tests.webhooks.receiver import Receiver
from tests.webhooks.test_docs import snippet

pytestmark = pytest.mark.django_db


def module(name: str, text: str) -> types.ModuleType:
    found = types.ModuleType(name)
    exec(text, found.__dict__)
    return found


def test_the_view(receiver: Receiver, settings: Any, rf: RequestFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    subscription = subscribe(receiver.url())
    deliveries.send_test(subscription.pk)
    [got] = receiver.got
    monkeypatch.setitem(sys.modules, "signature", module("signature", snippet("python")))
    page = module("receiver", titled("how-to/webhooks", "receiver.py"))

    def receive(body: bytes) -> int:
        headers = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in got.headers.items()}
        request = rf.post("/hook", body, content_type="application/json", **headers)
        return int(page.receive(request).status_code)

    settings.OJS_WEBHOOK_SECRET = "another"
    assert receive(got.body) == 401
    settings.OJS_WEBHOOK_SECRET = SECRET
    assert receive(got.body + b" ") == 401
    assert page.ended == []
    assert [receive(got.body), receive(got.body)] == [204, 204]
    assert page.ended == [("webhook.test", got.event["subject"])], "once"


@pytest.mark.wide
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_program_for_node(tmp_path: Path) -> None:
    (tmp_path / "receiver.mjs").write_text(titled("how-to/webhooks", "receiver.mjs"))
    (tmp_path / "signature.mjs").write_text(snippet("javascript"))
    environment = {**os.environ, "PORT": "0", "OJS_WEBHOOK_SECRET": SECRET}
    with subprocess.Popen(
        [str(shutil.which("node")), "receiver.mjs"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as node:
        try:
            assert node.stdout is not None
            port = node.stdout.readline().split()[1]
            mine, strangers = (subscribe(f"http://127.0.0.1:{port}/", secret=secret) for secret in (SECRET, "another"))
            assert deliveries.send_test(strangers.pk)[1].status == 401
            _, reply = deliveries.send_test(mine.pk)
            assert reply.status == 204
            assert node.stdout.readline().startswith("webhook.test ")
        finally:
            node.terminate()
