"""The messages, enums and methods of `ojs.proto` as Python classes, and `Stub`, a client of them.

The classes are made from `ojs.binpb`, the compiled `ojs.proto`, in a descriptor pool of their own. So nothing is added
to Python's default pool, where another OJS client of the same process may have put its own `ojs.v1`, and no generated
module asks for a certain version of protobuf. After a change of `ojs.proto`, from the root of the repository:

    python -m grpc_tools.protoc -I django_ojs/grpc --include_imports \
        --descriptor_set_out django_ojs/grpc/ojs.binpb ojs.proto
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import EnumDescriptor, FileDescriptor
from google.protobuf.message import Message

PACKAGE = "ojs.v1"
SERVICE = f"{PACKAGE}.OJSService"


class Method(NamedTuple):
    """One RPC. `streams` says whether it answers with a stream; no request is one."""

    name: str
    path: str
    request: type[Message]
    response: type[Message]
    streams: bool


def _load() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(Path(__file__).with_name("ojs.binpb").read_bytes())
    for file in files.file:  # each stands behind those that it imports
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL = _load()  #: for server reflection, too
FILE: FileDescriptor = POOL.FindFileByName("ojs.proto")

#: The classes of the messages by their names in the package.
MESSAGES: Mapping[str, type[Message]] = {
    name: message_factory.GetMessageClass(descriptor) for name, descriptor in FILE.message_types_by_name.items()
}
ENUMS: Mapping[str, EnumDescriptor] = dict(FILE.enum_types_by_name)

# The well-known types of this pool, which are not the classes of `google.protobuf`.
Struct, Value, ListValue, Timestamp, Duration = (
    message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"google.protobuf.{name}"))
    for name in ("Struct", "Value", "ListValue", "Timestamp", "Duration")
)

METHODS: Mapping[str, Method] = {
    method.name: Method(
        method.name,
        f"/{SERVICE}/{method.name}",
        MESSAGES[method.input_type.name],
        MESSAGES[method.output_type.name],
        bool(method.server_streaming),
    )
    for method in FILE.services_by_name["OJSService"].methods
}


class Stub:
    """The RPCs as attributes, over a channel of `grpc` or of `grpc.aio`.

        stub = Stub(grpc.insecure_channel("localhost:9090"))
        stub.Enqueue(MESSAGES["EnqueueRequest"](type="email.send"), timeout=30)

    What an attribute takes and gives is what the channel's `unary_unary` and `unary_stream` make.
    """

    def __init__(self, channel: Any) -> None:
        for method in METHODS.values():
            connect = channel.unary_stream if method.streams else channel.unary_unary
            call = connect(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{SERVICE} has no RPC {name}; there are {', '.join(METHODS)}.")
