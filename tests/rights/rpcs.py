"""Calls over gRPC without a network: through the transport's own code, on the connection of the test."""

from __future__ import annotations

from typing import Any
from unittest import mock

from django.db import transaction

from django_ojs.grpc import calls, messages
from django_ojs.grpc.errors import RpcError
from django_ojs.grpc.metadata import Metadata
from tests.rights.calls import filled
from tests.rights.world import Side


def sent(rpc: str, template: Any, side: Side, key: str) -> tuple[str, bytes]:
    """The code of the answer, and what it says."""
    raw = messages.to_message(f"{rpc}Request", filled(template, side)).SerializeToString()
    found: list[Any] = []
    given = Metadata({"authorization": f"Bearer {key}"} if key else {}, "127.0.0.1")
    try:
        with mock.patch.object(calls, "close_old_connections"):  # the test's transaction is open on this one
            calls.UnaryCall(calls.OPERATIONS[rpc], raw, given).run(found.append)
    except RpcError as refused:
        return refused.code.name, repr(vars(refused)).encode()
    return "OK", found[0].body


def outcome(rpc: str, template: Any, side: Side, key: str) -> str:
    """The code of the answer; what the call has done is undone."""
    with transaction.atomic():
        code, _ = sent(rpc, template, side, key)
        transaction.set_rollback(True)
    return code
