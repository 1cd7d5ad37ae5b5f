"""Every call there is: the scope that a key needs for it, the permission that a user needs, and how far it reaches.

This is written by hand, and not taken from the code, so that a path, an RPC or a page that comes new, or asks for less
than it did, fails a test until somebody has said here what it should ask for.

How far a call reaches, in the last column, says what a limited key may do:

    -        jobs, and what has a queue and a type: its own
    queue    a queue as a whole: a key without a limit by type
    figures  the same, to look
    type     a job type in all queues: a key without a limit by queue
    all      what is of nobody in particular: a key without limits
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.rights.world import Side

TABLE = """
GET    jobs                                               read        view_job                  -
POST   jobs                                               push        add_job                   -
POST   jobs/batch                                         push        add_job                   -
POST   jobs/results                                       read        view_job                  -
POST   jobs/bulk                                          push        add_job                   -
POST   jobs/bulk/cancel                                   admin       change_job                -
POST   jobs/bulk/delete                                   admin       delete_job                -
POST   jobs/bulk/retry                                    admin       change_job                -
POST   workers                                            work        change_job                -
POST   workers/ack                                        work        change_job                -
POST   workers/deregister                                 work        change_job                -
POST   workers/fetch                                      work        change_job                -
POST   jobs/fetch                                         work        change_job                -
POST   workers/heartbeat                                  work        change_job                -
POST   workers/beat                                       work        change_job                -
POST   workers/nack                                       work        change_job                -
POST   workers/fail                                       work        change_job                -
POST   workers/progress                                   work        change_job                -
GET    queues                                             read        view_queue                figures
POST   queues                                             admin       add_queue                 queue
GET    durable-events                                     read        view_durableevent         all
POST   durable-events                                     emit        add_durableevent          all
GET    approvals                                          read        view_approval             -
GET    approvals/<approval_id>                            read        view_approval             -
POST   approvals/<approval_id>/decide                     approve     decide_approval           -
POST   approvals/<approval_id>/delegate                   approve     decide_approval           -
GET    unique-jobs                                        read        view_job                  -
GET    dead-letter                                        read        view_job                  -
DELETE dead-letter                                        admin.purge delete_job                -
POST   dead-letter/purge                                  admin.purge delete_job                -
POST   dead-letter/retry                                  admin.write change_job                -
GET    dead-letter/stats                                  admin.read  view_job                  -
GET    workflows                                          read        view_workflow             -
POST   workflows                                          push        add_job                   -
GET    cron                                               read        view_cronschedule         -
POST   cron                                               admin       add_cronschedule          -
GET    crons                                              read        view_cronschedule         -
POST   crons                                              admin       add_cronschedule          -
GET    rate-limits                                        read        view_ratelimit            -
GET    webhooks/subscriptions                             read        view_webhooksubscription  -
POST   webhooks/subscriptions                             admin       add_webhooksubscription   -
GET    webhooks/deliveries                                read        view_webhookdelivery      -
GET    admin/system/config                                admin.read  view_queue                -
GET    admin/config                                       admin.read  view_queue                -
GET    admin/stats/history                                admin.read  view_queue                figures
GET    admin/system/maintenance                           admin.read  view_maintenance          -
POST   admin/system/maintenance                           admin.write change_maintenance        all
GET    admin/maintenance                                  admin.read  view_maintenance          -
POST   admin/maintenance                                  admin.write change_maintenance        all
GET    admin/scheduling/stats                             admin.read  view_queue                figures
GET    admin/stats                                        admin.read  view_queue                figures
GET    admin/audit                                        admin.read  view_auditentry           all
GET    admin/jobs                                         admin.read  view_job                  -
POST   admin/jobs/bulk/cancel                             admin.write change_job                -
POST   admin/jobs/bulk/delete                             admin.purge delete_job                -
POST   admin/jobs/bulk/retry                              admin.write change_job                -
GET    admin/bulk-actions                                 admin.read  view_job                  -
GET    admin/workers                                      admin.read  view_worker               -
POST   admin/workers/directive                            admin.write change_worker             all
GET    admin/queues                                       admin.read  view_queue                figures
GET    admin/dead-letter/replay-rules                     admin.read  view_replayrule           -
GET    admin/dead-letter                                  admin.read  view_job                  -
DELETE admin/dead-letter                                  admin.purge delete_job                -
POST   admin/dead-letter/purge                            admin.purge delete_job                -
POST   admin/dead-letter/retry                            admin.write change_job                -
GET    admin/dead-letter/stats                            admin.read  view_job                  -
GET    admin/workflows                                    admin.read  view_workflow             -
GET    admin/cron                                         admin.read  view_cronschedule         -
POST   admin/cron                                         admin.write add_cronschedule          -
GET    admin/rate-limits                                  admin.read  view_ratelimit            -
POST   workers/register                                   work        change_job                -
GET    metrics                                            read        view_queue                all
GET    middleware                                         admin.read  view_job                  -
GET    events                                             read        view_job                  -
POST   events/ticket                                      read        view_job                  -
GET    events/stream                                      read        view_job                  -
GET    admin/stats/stream                                 admin.read  view_worker               figures
GET    schemas                                            read        view_jobschema            -
POST   schemas                                            admin       add_jobschema             type
GET    admin/schemas                                      admin.read  view_jobschema            -
POST   admin/schemas                                      admin.write add_jobschema             type
POST   jobs/<job_id>/ack                                  work        change_job                -
POST   jobs/<job_id>/activate                             push        add_job                   -
POST   jobs/<job_id>/cancel                               admin       change_job                -
POST   jobs/<job_id>/nack                                 work        change_job                -
POST   jobs/<job_id>/fail                                 work        change_job                -
GET    jobs/<job_id>/checkpoint                           read        view_job                  -
PUT    jobs/<job_id>/checkpoint                           work        change_job                -
POST   jobs/<job_id>/checkpoint                           work        change_job                -
DELETE jobs/<job_id>/checkpoint                           work        change_job                -
GET    checkpoints/<job_id>/resume                        work        change_job                -
POST   checkpoints/<job_id>                               work        change_job                -
DELETE checkpoints/<job_id>                               work        change_job                -
GET    ojs/v1/checkpoints/<job_id>/resume                 work        change_job                -
POST   ojs/v1/checkpoints/<job_id>                        work        change_job                -
DELETE ojs/v1/checkpoints/<job_id>                        work        change_job                -
GET    jobs/<job_id>/progress                             read        view_job                  -
PUT    jobs/<job_id>/progress                             work        change_job                -
GET    jobs/<job_id>/logs                                 read        view_job                  -
POST   jobs/<job_id>/logs                                 work        change_job                -
GET    jobs/<job_id>/result                               read        view_job                  -
GET    jobs/<job_id>/retries                              read        view_job                  -
GET    jobs/<job_id>                                      read        view_job                  -
PATCH  jobs/<job_id>                                      admin       change_job                -
DELETE jobs/<job_id>                                      admin       change_job                -
GET    workers/<worker_id>/health                         read        view_worker               -
DELETE workers/<worker_id>                                work        change_job                -
GET    queues/<name>/config                               read        view_queue                -
PUT    queues/<name>/config                               admin       change_queue              queue
PATCH  queues/<name>/config                               admin       change_queue              queue
POST   queues/<name>/pause                                admin       change_queue              queue
GET    queues/<name>/priority-stats                       read        view_queue                -
POST   queues/<name>/purge                                admin.purge delete_job                queue
POST   queues/<name>/resume                               admin       change_queue              queue
GET    queues/<name>/stats                                read        view_queue                figures
GET    queues/<name>                                      read        view_queue                figures
DELETE queues/<name>                                      admin       delete_queue              queue
POST   dead-letter/<job_id>/retry                         admin       change_job                -
GET    dead-letter/<job_id>                               read        view_job                  -
DELETE dead-letter/<job_id>                               admin       delete_job                -
POST   workflows/<workflow_id>/cancel                     admin       change_workflow           -
GET    workflows/<workflow_id>/progress                   read        view_workflow             -
POST   workflows/<workflow_id>/retry                      admin       change_workflow           -
GET    workflows/<workflow_id>                            read        view_workflow             -
DELETE workflows/<workflow_id>                            admin       change_workflow           -
POST   cron/<name>/disable                                admin       change_cronschedule       -
POST   cron/<name>/enable                                 admin       change_cronschedule       -
GET    cron/<name>/history                                read        view_cronschedule         -
POST   cron/<name>/pause                                  admin       change_cronschedule       -
POST   cron/<name>/resume                                 admin       change_cronschedule       -
POST   cron/<name>/trigger                                admin       change_cronschedule       -
GET    cron/<name>                                        read        view_cronschedule         -
PUT    cron/<name>                                        admin       change_cronschedule       -
PATCH  cron/<name>                                        admin       change_cronschedule       -
DELETE cron/<name>                                        admin       delete_cronschedule       -
POST   crons/<name>/disable                               admin       change_cronschedule       -
POST   crons/<name>/enable                                admin       change_cronschedule       -
GET    crons/<name>/history                               read        view_cronschedule         -
POST   crons/<name>/pause                                 admin       change_cronschedule       -
POST   crons/<name>/resume                                admin       change_cronschedule       -
POST   crons/<name>/trigger                               admin       change_cronschedule       -
GET    crons/<name>                                       read        view_cronschedule         -
PUT    crons/<name>                                       admin       change_cronschedule       -
PATCH  crons/<name>                                       admin       change_cronschedule       -
DELETE crons/<name>                                       admin       delete_cronschedule       -
PUT    rate-limits/<key>/override                         admin       change_ratelimit          queue
DELETE rate-limits/<key>/override                         admin       change_ratelimit          queue
GET    rate-limits/<key>                                  read        view_ratelimit            queue
PUT    rate-limits/<key>                                  admin       change_ratelimit          queue
POST   webhooks/subscriptions/<subscription_id>/rotate-secret admin       change_webhooksubscription -
POST   webhooks/subscriptions/<subscription_id>/test      admin       change_webhooksubscription -
GET    webhooks/subscriptions/<subscription_id>           read        view_webhooksubscription  -
PUT    webhooks/subscriptions/<subscription_id>           admin       change_webhooksubscription -
PATCH  webhooks/subscriptions/<subscription_id>           admin       change_webhooksubscription -
DELETE webhooks/subscriptions/<subscription_id>           admin       delete_webhooksubscription -
POST   webhooks/deliveries/<delivery_id>/retry            admin       change_webhookdelivery    -
GET    webhooks/deliveries/<delivery_id>                  read        view_webhookdelivery      -
POST   admin/jobs/<job_id>/activate                       admin.write change_job                -
POST   admin/jobs/<job_id>/cancel                         admin.write change_job                -
POST   admin/jobs/<job_id>/duplicate                      admin.write add_job                   -
POST   admin/jobs/<job_id>/retry                          admin.write change_job                -
POST   admin/jobs/<job_id>/run                            admin.write change_job                -
GET    admin/jobs/<job_id>/checkpoint                     admin.read  view_job                  -
DELETE admin/jobs/<job_id>/checkpoint                     admin.purge change_job                -
GET    admin/jobs/<job_id>                                admin.read  view_job                  -
PATCH  admin/jobs/<job_id>                                admin.write change_job                -
POST   admin/bulk-actions/<action_id>/cancel              admin.write change_job                all
GET    admin/bulk-actions/<action_id>                     admin.read  view_job                  all
POST   admin/workers/<worker_id>/quiet                    admin.write change_worker             all
POST   admin/workers/<worker_id>/restart                  admin.write change_worker             all
POST   admin/workers/<worker_id>/resume                   admin.write change_worker             all
POST   admin/workers/<worker_id>/terminate                admin.write change_worker             all
GET    admin/workers/<worker_id>                          admin.read  view_worker               -
DELETE admin/workers/<worker_id>                          admin.purge delete_worker             all
DELETE admin/queues/<name>/jobs                           admin.purge delete_job                queue
GET    admin/queues/<name>/config                         admin.read  view_queue                figures
PUT    admin/queues/<name>/config                         admin.write change_queue              queue
PATCH  admin/queues/<name>/config                         admin.write change_queue              queue
POST   admin/queues/<name>/pause                          admin.write change_queue              queue
GET    admin/queues/<name>/rate-limit                     admin.read  view_queue                figures
PUT    admin/queues/<name>/rate-limit                     admin.write change_queue              queue
PATCH  admin/queues/<name>/rate-limit                     admin.write change_queue              queue
POST   admin/queues/<name>/resume                         admin.write change_queue              queue
GET    admin/queues/<name>                                admin.read  view_queue                figures
POST   admin/dead-letter/replay-rules/<name>/preview      admin.write change_replayrule         -
GET    admin/dead-letter/replay-rules/<name>              admin.read  view_replayrule           -
PUT    admin/dead-letter/replay-rules/<name>              admin.write change_replayrule         -
DELETE admin/dead-letter/replay-rules/<name>              admin.write delete_replayrule         -
POST   admin/dead-letter/<job_id>/retry                   admin.write change_job                -
GET    admin/dead-letter/<job_id>                         admin.read  view_job                  -
DELETE admin/dead-letter/<job_id>                         admin.purge delete_job                -
POST   admin/workflows/<workflow_id>/cancel               admin.write change_workflow           -
GET    admin/workflows/<workflow_id>/progress             admin.read  view_workflow             -
POST   admin/workflows/<workflow_id>/retry                admin.write change_workflow           -
GET    admin/workflows/<workflow_id>                      admin.read  view_workflow             -
DELETE admin/workflows/<workflow_id>                      admin.purge change_workflow           -
GET    admin/cron/<name>/history                          admin.read  view_cronschedule         -
POST   admin/cron/<name>/pause                            admin.write change_cronschedule       -
POST   admin/cron/<name>/resume                           admin.write change_cronschedule       -
POST   admin/cron/<name>/trigger                          admin.write change_cronschedule       -
GET    admin/cron/<name>                                  admin.read  view_cronschedule         -
PUT    admin/cron/<name>                                  admin.write change_cronschedule       -
PATCH  admin/cron/<name>                                  admin.write change_cronschedule       -
DELETE admin/cron/<name>                                  admin.purge delete_cronschedule       -
PUT    admin/rate-limits/<key>/override                   admin.write change_ratelimit          queue
DELETE admin/rate-limits/<key>/override                   admin.purge change_ratelimit          queue
GET    admin/rate-limits/<key>                            admin.read  view_ratelimit            queue
PUT    admin/rate-limits/<key>                            admin.write change_ratelimit          queue
GET    events/<job_id>/history                            read        view_job                  -
GET    jobs/<job_id>/history                              read        view_job                  -
DELETE jobs/<job_id>/history                              admin.purge delete_job                -
GET    history                                            read        view_job                  -
DELETE history                                            admin.purge delete_job                -
GET    history/stats                                      read        view_job                  -
GET    jobs/<job_id>/lineage                              read        view_job                  -
GET    jobs/<job_id>/attempts                             read        view_job                  -
GET    jobs/<job_id>/events                               read        view_job                  -
GET    jobs/<job_id>/progress/stream                      read        view_job                  -
GET    jobs/<job_id>/logs/stream                          read        view_job                  -
GET    jobs/<job_id>/result/stream                        read        view_job                  -
GET    queues/<name>/events                               read        view_job                  -
GET    schemas/<name>/versions                            read        view_jobschema            -
GET    schemas/<name>/versions/<version>                  read        view_jobschema            -
DELETE schemas/<name>/versions/<version>                  admin       delete_jobschema          type
GET    schemas/<name>                                     read        view_jobschema            -
DELETE schemas/<name>                                     admin       delete_jobschema          type
GET    admin/schemas/<name>                               admin.read  view_jobschema            -
GET    admin/schemas/<name>/versions                      admin.read  view_jobschema            -
GET    admin/schemas/<name>/<version>                     admin.read  view_jobschema            -
PUT    admin/schemas/<name>/<version>                     admin.write add_jobschema             type
DELETE admin/schemas/<name>/<version>                     admin.purge delete_jobschema          type
"""

#: What is in the body of a call, or in its query where it has no body. `{queue}` and the like are of the side that the
#: call names; what is not here is `{}`.
_ONE = {"type": "{type}", "queue": "{queue}", "args": ["x"]}
_FLOW = {"type": "chain", "name": "flow", "steps": [{**_ONE, "options": {"queue": "{queue}"}}]}
_CRON = {"name": "n-{name}", "cron": "0 4 * * *", "type": "{type}", "queue": "{queue}", "args": []}
_JOBS = {"filter": {"queue": "{queue}", "type": "{type}", "state": "available"}, "confirm": True}
_DEAD = {"filter": {"queue": "{queue}", "type": "{type}"}, "confirm": True}
_HOOK = {"url": "https://example.com/new", "events": ["job.completed"], "queues": ["{queue}"], "job_types": ["{type}"]}
_RULE = {"filter": {"queue": "{queue}", "type": "{type}"}, "delay": "PT2H"}
BODIES: Mapping[str, Any] = {
    "POST jobs": _ONE,
    "POST jobs/batch": {"jobs": [_ONE, _ONE]},
    "POST durable-events": {"name": "order.paid", "key": "{name}", "payload": 1},
    "POST approvals/<approval_id>/decide": {"approved": True},
    "POST approvals/<approval_id>/delegate": {"to": ["perm:shop.refund"]},
    "POST jobs/results": {"ids": ["{job:completed}"]},
    "POST jobs/bulk": {"jobs": [_ONE, _ONE]},
    "POST jobs/bulk/cancel": {"job_ids": ["{job:available}"]},
    "POST jobs/bulk/delete": {"job_ids": ["{job:completed}"]},
    "POST jobs/bulk/retry": {"job_ids": ["{job:discarded}"]},
    "POST workers": {"worker_id": "w-{name}", "queues": ["{queue}"], "job_types": ["{type}"]},
    "POST workers/register": {"worker_id": "w-{name}", "queues": ["{queue}"]},
    "POST workers/ack": {"job_id": "{job:active}", "worker_id": "w-{name}"},
    "POST workers/nack": {"job_id": "{job:active}", "error": {"message": "x"}},
    "POST workers/fail": {"job_id": "{job:active}", "error": {"message": "x"}},
    "POST workers/progress": {"job_id": "{job:active}", "progress": 0.5},
    "POST workers/fetch": {"queues": ["{queue}"], "worker_id": "w-{name}", "count": 50},
    "POST jobs/fetch": {"queues": ["{queue}"], "count": 50},
    "POST workers/heartbeat": {"worker_id": "w-{name}", "active_jobs": ["{job:active}"]},
    "POST workers/beat": {"worker_id": "w-{name}", "state": "terminate"},
    "POST workers/deregister": {"worker_id": "w-{name}"},
    "POST jobs/<job_id>/nack": {"error": {"message": "x"}},
    "POST jobs/<job_id>/fail": {"error": {"message": "x"}},
    "PUT jobs/<job_id>/progress": {"progress": 0.5},
    **{call: {"state": {"at": 3}} for call in (
        "PUT jobs/<job_id>/checkpoint", "POST jobs/<job_id>/checkpoint", "POST checkpoints/<job_id>",
        "POST ojs/v1/checkpoints/<job_id>",
    )},
    "POST jobs/<job_id>/logs": {"lines": [{"message": "x"}]},
    "PATCH jobs/<job_id>": {"priority": 5},
    "PATCH admin/jobs/<job_id>": {"priority": 5},
    "POST queues": {"name": "{queue}"},
    "DELETE queues/<name>": {"strategy": "discard"},
    "PUT queues/<name>/config": {"concurrency": 1},
    "PATCH queues/<name>/config": {"concurrency": 1},
    "PUT admin/queues/<name>/config": {"concurrency": 1},
    "PATCH admin/queues/<name>/config": {"concurrency": 1},
    "PUT admin/queues/<name>/rate-limit": {"concurrency": 1},
    "PATCH admin/queues/<name>/rate-limit": {"concurrency": 1},
    "POST queues/<name>/purge": {"states": ["completed"], "confirm": True},
    "DELETE admin/queues/<name>/jobs": {"states": ["completed"], "confirm": True},
    **{f"PUT {door}rate-limits/<key>{rest}": {"concurrency": 1}
       for door in ("", "admin/") for rest in ("", "/override")},
    "POST workflows": _FLOW,
    **{f"POST {path}": _CRON for path in ("cron", "crons", "admin/cron")},
    **{f"{verb} {path}/<name>": {name: value for name, value in _CRON.items() if name != "name"}
       for verb in ("PUT", "PATCH") for path in ("cron", "crons", "admin/cron")},
    **{f"{verb} {door}dead-letter{rest}": _DEAD
       for verb, rest in (("DELETE", ""), ("POST", "/purge"), ("POST", "/retry")) for door in ("", "admin/")},
    "POST admin/jobs/bulk/cancel": _JOBS,
    "POST admin/jobs/bulk/retry": _DEAD,
    "POST admin/jobs/bulk/delete": {"filter": {"queue": "{queue}", "type": "{type}", "state": "completed"},
                                    "confirm": True},
    "POST admin/workers/directive": {"directive": "quiet"},
    "PUT admin/dead-letter/replay-rules/<name>": _RULE,
    "POST webhooks/subscriptions": _HOOK,
    "PUT webhooks/subscriptions/<subscription_id>": {"active": False},
    "PATCH webhooks/subscriptions/<subscription_id>": {"active": False},
    "POST schemas": {"job_type": "{type}", "version": "2", "uri": "urn:ojs:schema:{type}:v2", "schema": {}},
    "POST admin/schemas": {"job_type": "{type}", "version": "2", "uri": "urn:ojs:schema:{type}:v2", "schema": {}},
    "PUT admin/schemas/<name>/<version>": {"schema": {}},
    "POST admin/system/maintenance": {"enabled": True},
    "POST admin/maintenance": {"enabled": True},
}  # fmt: skip
#: Queries of calls that list, by which a caller may ask for another's.
QUERIES: Mapping[str, str] = {
    **{f"GET {path}": "?queue={queue}" for path in (
        "jobs", "admin/jobs", "dead-letter", "admin/dead-letter", "admin/stats", "admin/stats/history", "unique-jobs",
        "approvals",
    )},
    "GET events": "?queues={queue}&job_types={type}",
    "GET events/stream": "?queues={queue}&job_types={type}",
    "GET history": "?queues={queue}&job_types={type}",
    "GET history/stats": "?queues={queue}&job_types={type}",
    "DELETE history": "?before=2999-01-01T00:00:00Z&queues={queue}&job_types={type}",
}  # fmt: skip
#: What the caller who may do everything is answered, where it is no success.
ODD: Mapping[str, int] = {
    "POST queues": 409,  # it exists
    "POST workflows/<workflow_id>/retry": 409,  # it runs
    "POST admin/workflows/<workflow_id>/retry": 409,
    "DELETE admin/workers/<worker_id>": 409,  # it is alive
    "PUT admin/schemas/<name>/<version>": 409,  # it is registered
    "DELETE schemas/<name>": 404,  # this is said of one version only
}
#: The state of the job in a path, where it is not one that waits.
STATES: Mapping[str, str] = {
    "ack": "active", "nack": "active", "fail": "active", "progress": "active", "logs": "active", "activate": "pending",
    "checkpoint": "active", "resume": "active",
    "result": "completed", "retries": "discarded", "retry": "discarded", "run": "scheduled",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Call:
    """One path by one method; `scope` is that of a key, `right` the permission of a user."""

    method: str
    route: str
    scope: str
    right: str
    reach: str

    def __str__(self) -> str:
        return f"{self.method} {self.route}"

    @property
    def state(self) -> str:
        if "dead-letter" in self.route:
            return "discarded"
        return STATES.get(self.route.rpartition("/")[2], "available")

    @property
    def streams(self) -> bool:
        """Whether the answer is a stream, which the test client of WSGI does not get."""
        return self.route.endswith(("/stream", "/events"))

    @property
    def success(self) -> Callable[[int], bool]:
        """Whether a status is what a caller is answered who may make the call."""
        if self.streams:
            return lambda status: status == 406
        odd = ODD.get(str(self))
        return lambda status: status < 300 if odd is None else status == odd

    def send(self, client: Any, side: Side, *, key: str = "") -> Any:
        """The answer to the call about what is of this side."""
        path = side.path(self.route, self.state, key or f"queue:{side.queue}")
        body, query = filled(BODIES.get(str(self), {}), side), filled(QUERIES.get(str(self), ""), side)
        text = "" if self.method == "GET" else json.dumps(body)
        return client.generic(self.method, f"/ojs/v1{path}{query}", text, content_type="application/json")


def filled(template: Any, side: Side) -> Any:
    """A body with what is of this side in the places of its names."""
    if isinstance(template, dict):
        return {name: filled(value, side) for name, value in template.items()}
    if isinstance(template, list):
        return [filled(value, side) for value in template]
    if not isinstance(template, str):
        return template
    for name in ("queue", "type", "name", "workflow"):
        template = template.replace(f"{{{name}}}", getattr(side, name))
    for state, job_id in side.jobs.items():
        template = template.replace(f"{{job:{state}}}", job_id)
    return template


def _calls() -> Iterator[Call]:
    for line in TABLE.strip().splitlines():
        yield Call(*line.split())


CALLS = list(_calls())

#: The operations of `ojs.proto` as calls of the table, with their messages.
RPCS: Mapping[str, tuple[str, Any]] = {
    "Enqueue": ("POST jobs", {"type": "{type}", "args": ["x"], "options": {"queue": "{queue}"}}),
    "EnqueueBatch": (
        "POST jobs/batch", {"jobs": [{"type": "{type}", "args": ["x"], "options": {"queue": "{queue}"}}]}
    ),
    "Fetch": ("POST workers/fetch", {"queues": ["{queue}"], "worker_id": "w-{name}", "count": 50}),
    "Ack": ("POST jobs/<job_id>/ack", {"job_id": "{job:active}"}),
    "Nack": ("POST jobs/<job_id>/nack", {"job_id": "{job:active}", "error": {"code": "x", "message": "x"}}),
    "Heartbeat": ("POST workers/heartbeat", {"worker_id": "w-{name}", "state": "terminate"}),
    "ListQueues": ("GET queues", {}),
    "QueueStats": ("GET queues/<name>/stats", {"queue": "{queue}"}),
    "PauseQueue": ("POST queues/<name>/pause", {"queue": "{queue}"}),
    "ResumeQueue": ("POST queues/<name>/resume", {"queue": "{queue}"}),
    "GetJob": ("GET jobs/<job_id>", {"job_id": "{job:completed}"}),
    "CancelJob": ("POST jobs/<job_id>/cancel", {"job_id": "{job:available}"}),
    "ActivateJob": ("POST jobs/<job_id>/activate", {"job_id": "{job:pending}"}),
    "ListDeadLetter": ("GET dead-letter", {}),
    "RetryDeadLetter": ("POST dead-letter/<job_id>/retry", {"job_id": "{job:discarded}"}),
    "DeleteDeadLetter": ("DELETE dead-letter/<job_id>", {"job_id": "{job:discarded}"}),
    "RegisterCron": (
        "POST cron", {"name": "n-{name}", "expression": "0 4 * * *", "type": "{type}", "options": {"queue": "{queue}"}}
    ),
    "UnregisterCron": ("DELETE cron/<name>", {"name": "n-{name}"}),
    "ListCron": ("GET cron", {}),
    "CreateWorkflow": ("POST workflows", _FLOW),
    "GetWorkflow": ("GET workflows/<workflow_id>", {"workflow_id": "{workflow}"}),
    "CancelWorkflow": ("POST workflows/<workflow_id>/cancel", {"workflow_id": "{workflow}"}),
}  # fmt: skip
PUBLIC_RPCS = {"Manifest", "Health"}
#: Their callers are looked at in `test_streams`.
STREAMS = {"StreamJobs": "work", "StreamEvents": "read"}
