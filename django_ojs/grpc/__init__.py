"""The gRPC binding: the operations of the HTTP binding, as the service `ojs.v1.OJSService` of `ojs.proto`.

Needs the extra `grpc`. Nothing here imports the libraries before it is used: a site without the extra never needs them.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

HINT = "Install django-ojs[grpc]."
_NEEDED = {
    "grpc": "grpcio", "grpc_health": "grpcio-health-checking", "grpc_reflection": "grpcio-reflection",
    "google.protobuf": "protobuf", "google.rpc": "googleapis-common-protos",
}  # fmt: skip


@cache
def missing() -> tuple[str, ...]:
    """The packages that the binding needs and this installation does not have."""
    return tuple(package for module, package in _NEEDED.items() if not _is_there(module))


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it is not there
        return False
