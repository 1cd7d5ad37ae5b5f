"""The service and its messages: what `ojs.proto` says, for ever, and what importing it leaves alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("google.protobuf")

from google.protobuf.descriptor import Descriptor

from django_ojs.grpc import definition
from django_ojs.grpc.definition import ENUMS, FILE, MESSAGES, METHODS, SERVICE, Stub

FOLDER = Path(definition.__file__).parent

#: Every field as `number name type`; `*` is repeated, `?` optional. `attributes` (200) is not in the lists: all
#: messages have it but those of `WITHOUT_ATTRIBUTES`. A line that changes breaks clients.
FIELDS = {
    "Job": "1 id str, 2 type str, 3 queue str, 4 args *Value, 5 meta Struct, 6 state JobState, 7 priority i32, "
    "8 attempt i32, 9 max_attempts i32, 10 retry_policy RetryPolicy, 11 unique_policy UniquePolicy, 12 result Struct, "
    "13 errors *JobError, 14 created_at Timestamp, 15 enqueued_at Timestamp, 16 scheduled_at Timestamp, "
    "17 started_at Timestamp, 18 completed_at Timestamp, 19 expires_at Timestamp, 20 timeout Duration, "
    "21 visibility_timeout Duration, 22 tags *str, 23 trace_id str, 24 workflow_id str, 25 specversion str",
    "RetryPolicy": "1 max_attempts ?i32, 2 initial_interval Duration, 3 backoff_coefficient ?dbl, "
    "4 max_interval Duration, 5 jitter ?bool, 6 non_retryable_errors *str, 7 on_exhaustion str",
    "UniquePolicy": "1 key *str, 2 period Duration, 3 on_conflict UniqueConflictAction, 4 states *JobState, "
    "5 args_keys *str, 6 meta_keys *str",
    "JobError": "1 code str, 2 message str, 3 retryable ?bool, 4 attempt i32, 5 occurred_at Timestamp, "
    "6 backtrace str, 7 details Struct",
    "EnqueueOptions": "1 queue str, 2 priority ?i32, 3 delay_until Timestamp, 4 timeout Duration, 5 retry RetryPolicy, "
    "6 unique UniquePolicy, 7 ttl Duration, 8 tags *str, 9 trace_id str, 10 meta Struct, 11 max_attempts ?i32, "
    "12 visibility_timeout Duration, 13 pending ?bool",
    "EnqueueRequest": "1 type str, 2 args *Value, 3 options EnqueueOptions",
    "EnqueueResponse": "1 job Job",
    "BatchJobEntry": "1 type str, 2 args *Value, 3 options EnqueueOptions",
    "EnqueueBatchRequest": "1 jobs *BatchJobEntry, 2 default_options EnqueueOptions",
    "EnqueueBatchResponse": "1 jobs *Job, 2 count i32, 3 errors map<i32, BatchJobError>",
    "BatchJobError": "1 code str, 2 message str",
    "GetJobRequest": "1 job_id str",
    "GetJobResponse": "1 job Job",
    "CancelJobRequest": "1 job_id str, 2 reason str",
    "CancelJobResponse": "1 job Job",
    "ActivateJobRequest": "1 job_id str",
    "ActivateJobResponse": "1 job Job",
    "FetchRequest": "1 queues *str, 2 count ?i32, 3 worker_id str",
    "FetchResponse": "1 jobs *Job",
    "AckRequest": "1 job_id str, 2 result Struct",
    "AckResponse": "1 acknowledged bool",
    "NackRequest": "1 job_id str, 2 error JobError",
    "NackResponse": "1 state JobState, 2 next_attempt_at Timestamp",
    "HeartbeatRequest": "1 id str, 2 worker_id str, 3 extend_by Duration, 4 current_state WorkerState",
    "HeartbeatResponse": "1 directed_state WorkerState, 2 new_deadline Timestamp",
    "StreamJobsRequest": "1 queues *str, 2 worker_id str, 3 max_concurrent ?i32",
    "StreamEventsRequest": "1 queues *str, 2 event_types *str, 3 job_id *str, 4 workflow_id str",
    "Event": "1 id str, 2 type str, 3 job_id str, 4 job_type str, 5 queue str, 6 timestamp Timestamp, 7 data Struct, "
    "8 workflow_id str",
    "ManifestRequest": "",
    "ManifestResponse": "1 ojs_version str, 2 implementation Implementation, 3 conformance_level i32, "
    "4 protocols *str, 5 backend str, 6 extensions *str, 7 schema_validation bool",
    "Implementation": "1 name str, 2 version str, 3 language str",
    "HealthRequest": "",
    "HealthResponse": "1 status HealthStatus, 2 timestamp Timestamp, 3 details Struct",
    "ListQueuesRequest": "1 limit ?i32, 2 cursor str",
    "ListQueuesResponse": "1 queues *QueueInfo, 2 next_cursor str",
    "QueueInfo": "1 name str, 2 paused bool, 3 available_count i64, 4 created_at Timestamp",
    "QueueStatsRequest": "1 queue str",
    "QueueStatsResponse": "1 queue str, 2 stats QueueStatistics",
    "QueueStatistics": "1 available i64, 2 active i64, 3 scheduled i64, 4 retryable i64, 5 dead i64, "
    "6 completed_last_hour i64, 7 failed_last_hour i64, 8 avg_duration_ms dbl, 9 avg_wait_ms dbl, "
    "10 throughput_per_second dbl, 11 paused bool",
    "PauseQueueRequest": "1 queue str",
    "PauseQueueResponse": "",
    "ResumeQueueRequest": "1 queue str",
    "ResumeQueueResponse": "",
    "ListDeadLetterRequest": "1 queue str, 2 limit ?i32, 3 cursor str",
    "ListDeadLetterResponse": "1 jobs *Job, 2 total_count i64, 3 next_cursor str",
    "RetryDeadLetterRequest": "1 job_id str",
    "RetryDeadLetterResponse": "1 job Job",
    "DeleteDeadLetterRequest": "1 job_id str",
    "DeleteDeadLetterResponse": "",
    "RegisterCronRequest": "1 name str, 2 cron str, 3 timezone str, 4 type str, 5 args *Value, "
    "6 options EnqueueOptions",
    "RegisterCronResponse": "1 name str, 2 next_run_at Timestamp",
    "UnregisterCronRequest": "1 name str",
    "UnregisterCronResponse": "",
    "ListCronRequest": "",
    "ListCronResponse": "1 entries *CronEntry",
    "CronEntry": "1 name str, 2 cron str, 3 timezone str, 4 type str, 5 args *Value, 6 options EnqueueOptions, "
    "7 next_run_at Timestamp, 8 last_run_at Timestamp",
    "CreateWorkflowRequest": "1 name str, 2 steps *WorkflowStep",
    "WorkflowStep": "1 id str, 2 type str, 3 args *Value, 4 depends_on *str, 5 options EnqueueOptions",
    "CreateWorkflowResponse": "1 workflow Workflow",
    "GetWorkflowRequest": "1 workflow_id str",
    "GetWorkflowResponse": "1 workflow Workflow",
    "CancelWorkflowRequest": "1 workflow_id str, 2 reason str",
    "CancelWorkflowResponse": "1 workflow Workflow",
    "Workflow": "1 id str, 2 name str, 3 state WorkflowState, 4 steps *WorkflowStepStatus, 5 created_at Timestamp, "
    "6 completed_at Timestamp",
    "WorkflowStepStatus": "1 id str, 2 type str, 3 state WorkflowStepState, 4 job_id str, 5 depends_on *str",
}
WITHOUT_ATTRIBUTES = {"BatchJobError", "Implementation"}
ENUM_VALUES = {
    "JobState": "JOB_STATE_ UNSPECIFIED SCHEDULED AVAILABLE PENDING ACTIVE COMPLETED RETRYABLE CANCELLED DISCARDED",
    "UniqueConflictAction": "UNIQUE_CONFLICT_ACTION_ UNSPECIFIED REJECT REPLACE IGNORE REPLACE_EXCEPT_SCHEDULE",
    "WorkerState": "WORKER_STATE_ UNSPECIFIED RUNNING QUIET TERMINATE",
    "WorkflowState": "WORKFLOW_STATE_ UNSPECIFIED RUNNING COMPLETED FAILED CANCELLED",
    "WorkflowStepState": "WORKFLOW_STEP_STATE_ UNSPECIFIED WAITING PENDING ACTIVE COMPLETED FAILED CANCELLED",
    "HealthStatus": "HEALTH_STATUS_ UNSPECIFIED OK DEGRADED UNHEALTHY",
}
UNARY = {
    *("Manifest", "Health", "Enqueue", "EnqueueBatch", "GetJob", "CancelJob", "ActivateJob"),
    *("Fetch", "Ack", "Nack", "Heartbeat", "ListQueues", "QueueStats", "PauseQueue", "ResumeQueue"),
    *("ListDeadLetter", "RetryDeadLetter", "DeleteDeadLetter", "RegisterCron", "UnregisterCron", "ListCron"),
    *("CreateWorkflow", "GetWorkflow", "CancelWorkflow"),
}
TYPES = {"TYPE_STRING": "str", "TYPE_BOOL": "bool", "TYPE_INT32": "i32", "TYPE_INT64": "i64", "TYPE_DOUBLE": "dbl"}


def fields_of(descriptor: Descriptor) -> str:
    from google.protobuf import descriptor_pb2

    found = descriptor_pb2.DescriptorProto()
    descriptor.CopyToProto(found)
    maps = {each.name: each for each in found.nested_type if each.options.map_entry}

    def word(field: descriptor_pb2.FieldDescriptorProto) -> str:
        kind = field.type_name.rpartition(".")[2] or TYPES[descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)]
        if kind in maps:
            return "map<{}, {}>".format(*map(word, maps[kind].field))
        mark = "*" if field.label == field.LABEL_REPEATED else "?" if field.proto3_optional else ""
        return f"{mark}{kind}"

    return ", ".join(f"{field.number} {field.name} {word(field)}" for field in found.field)


def test_the_fields_are_those_of_the_table() -> None:
    attributes = "200 attributes map<str, Value>"
    expected = {
        name: fields if name in WITHOUT_ATTRIBUTES else ", ".join(filter(None, (fields, attributes)))
        for name, fields in FIELDS.items()
    }
    assert {name: fields_of(kind.DESCRIPTOR) for name, kind in MESSAGES.items()} == expected


def test_the_enums_are_those_of_the_table() -> None:
    found = {}
    for name, enum in ENUMS.items():
        prefix, *words = ENUM_VALUES[name].split()
        found[name] = " ".join([prefix, *(value.name.removeprefix(prefix) for value in enum.values)])
        assert [value.number for value in enum.values] == list(range(len(words))), name
    assert found == ENUM_VALUES


def test_the_rpcs_are_those_of_the_specification() -> None:
    assert SERVICE == "ojs.v1.OJSService"
    assert [name for name, method in METHODS.items() if method.streams] == ["StreamJobs", "StreamEvents"]
    assert {name for name, method in METHODS.items() if not method.streams} == UNARY
    for name, method in METHODS.items():
        assert method.path == f"/ojs.v1.OJSService/{name}"
        assert method.request is MESSAGES[f"{name}Request"]
        streamed = {"StreamJobs": "Job", "StreamEvents": "Event"}
        assert method.response is MESSAGES[streamed.get(name, f"{name}Response")]
        assert not method.path.endswith("/")
    assert FILE.package == "ojs.v1"


def test_the_compiled_definition_is_that_of_the_text(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc")
    from google.protobuf import descriptor_pb2

    made = tmp_path / "ojs.binpb"
    well_known = Path(protoc.__file__).parent / "_proto"
    arguments = ["", f"-I{FOLDER}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={made}", "ojs.proto"]
    assert protoc.main(arguments) == 0
    ours, theirs = (
        {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file}
        for path in (FOLDER / "ojs.binpb", made)
    )
    assert ours["ojs.proto"] == theirs["ojs.proto"], "compile ojs.proto again: definition.py says how"
    assert ours.keys() == theirs.keys()


def test_importing_the_binding_registers_nothing() -> None:
    code = """
import sys
from google.protobuf import descriptor_pool
import django_ojs.grpc
assert "grpc" not in sys.modules, "the package alone needs no library"
import django_ojs.grpc.definition
assert "ojs" not in sys.modules and "grpc" not in sys.modules
pool = descriptor_pool.Default()
for find, name in ((pool.FindFileByName, "ojs.proto"), (pool.FindMessageTypeByName, "ojs.v1.Job"),
                   (pool.FindMessageTypeByName, "google.protobuf.Struct")):
    try:
        find(name)
    except KeyError:
        continue
    sys.exit(f"{name} is in the default pool")
# Another client of the same process may define the same names, in its own way.
from google.protobuf import descriptor_pb2
theirs = descriptor_pb2.FileDescriptorProto(name="ojs.proto", package="ojs.v1")
theirs.message_type.add(name="Job").field.add(name="other", number=1, type=9, label=1)
pool.Add(theirs) if hasattr(pool, "Add") else pool.AddSerializedFile(theirs.SerializeToString())
assert "other" in pool.FindMessageTypeByName("ojs.v1.Job").fields_by_name
assert "other" not in django_ojs.grpc.definition.MESSAGES["Job"].DESCRIPTOR.fields_by_name
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


class Channel:
    """Takes down what a stub asks a channel for."""

    def __init__(self) -> None:
        self.asked: dict[str, tuple[str, object, object]] = {}

    def unary_unary(self, path: str, request_serializer: object, response_deserializer: object) -> str:
        self.asked[path] = ("unary", request_serializer, response_deserializer)
        return path

    def unary_stream(self, path: str, request_serializer: object, response_deserializer: object) -> str:
        self.asked[path] = ("stream", request_serializer, response_deserializer)
        return path


def test_a_stub_has_every_rpc() -> None:
    channel = Channel()
    stub = Stub(channel)
    assert {getattr(stub, name) for name in METHODS} == set(channel.asked)
    kinds = {path: kind for path, (kind, _, _) in channel.asked.items()}
    assert {path for path, kind in kinds.items() if kind == "stream"} == {
        "/ojs.v1.OJSService/StreamJobs",
        "/ojs.v1.OJSService/StreamEvents",
    }
    _, serialize, parse = channel.asked["/ojs.v1.OJSService/GetJob"]
    request, answer = MESSAGES["GetJobRequest"](job_id="x"), MESSAGES["GetJobResponse"](job={"id": "x"})
    assert serialize(request) == request.SerializeToString()  # type: ignore[operator]
    assert parse(answer.SerializeToString()) == answer  # type: ignore[operator]
    with pytest.raises(AttributeError, match=r"has no RPC Push; there are .*Enqueue"):
        _ = stub.Push
