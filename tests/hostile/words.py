"""What a hostile client puts where: names, paths, queries, headers, and members of the calls' documents."""

from __future__ import annotations

import gzip
from typing import Any

from tests.hostile.values import Raw, nested

QUEUES = ("default", "mail", "q-1.x", "0")
WORKERS = ("w1", "w 2", "wörk/er", "%00", "w" * 255)
CRONS = ("nightly", "c-1", "0.a")
TYPES = ("a.b", "mail.send", "x_1")
BOMB = gzip.compress(b'{"type":"a.b","args":["' + b"0" * 20_000_000 + b'"]}', 9, mtime=0)
BAD_BYTES = (
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xf8\x88\x80\x80\x80",
    b"\x00",
    b"\\u12",
    b"\\ud800",
    b"NaN",
    b"]",
    b"'",
)
ODD_TEXTS = ("", " ", "\x00", "a\x00b", "\ud7ff", "'", '"', "%", "\\", "%s", "x" * 256, "x" * 3000, "é", "日本🎉",
              "\u202e",
              "\x7f", "null", "-", "_", "*", "**", "a*", "{}", "../..", "1;DROP TABLE ojs", "\n", "\x85")  # fmt: skip
ODD_TIMES = ("2026-01-15T12:00:00Z", "2026-01-15 12:00:00 00:00", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59",
              "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-23:59", "2026-02-30T00:00:00Z", "2026-01-15", "-1",
              "2026-01-15T24:00:00Z", "2026-01-15T12:00:60Z", "+1h", "now")  # fmt: skip
SOURCES = ("ojs://django-ojs/api", "ojs://django-ojs/workers/*", "ojs://django-ojs/workers/%00", "*", "ojs://*",
            "ojs://django-ojs/workers/%2500", "ojs://django-ojs/workers/%25FF*", "ojs://django-ojs/*", "ojs:", "//",
            "ojs://django-ojs/workers/%00*", "ojs://django-ojs/", "ojs://django-ojs/w\x00*")  # fmt: skip
ODD_SEGMENTS = ("", ".", "..", "%00", "%FF", "%ED%A0%80", "%2F", "%0A", "x" * 300, "x" * 9000, "%F0%9F%8E%89", "é", "*",
                 "bulk", "results", "stats", "null", "-1", "019539a4-0000-7000-8000-00000000000g", "%7B%7D", "'",
                 "019539A4-0000-7000-8000-000000000000", "019539a4000070008000000000000000", "%20", "jobs;a=b",
                 "00000000-0000-4000-8000-000000000000", "..%2F..%2Fadmin", "%25", "\xff", "%u1234")  # fmt: skip
PARAMETERS = ("limit", "per_page", "page", "offset", "cursor", "after", "queue", "queues", "type", "types", "job_types",
               "sources", "job_id", "workflow_id", "since", "until", "enabled", "unknown",
               "state", "states", "older_than", "sort", "order", "error_type", "worker_id", "status", "period",
               "confirm", "dry_run", "wait", "timeout")  # fmt: skip
SYSTEM = ("state", "attempt", "max_attempts", "created_at", "error", "errors", "result", "worker_id", "workflow_id",
           "options", "specversion", "x_previous_errors", "override", "jobs", "queues", "", "\x00", "__proto__",
           "pk", "self")  # fmt: skip

ENVELOPE: dict[str, list[Any]] = {
    "queue": list(QUEUES), "priority": [-100, 5.0, "HIGH", 100], "meta": [{"trace_id": "t"}, {"": None}, {"a\x00": 1}],
    "pending": [True, False], "scheduled_at": ["2026-01-15T12:05:00Z", "2020-01-01T00:00:00Z", *ODD_TIMES],
    "expires_at": ["2026-01-15T12:30:00Z", *ODD_TIMES], "timeout": [1, 30, 10**12], "timeout_ms": [5, 10**18],
    "visibility_timeout": ["1s", "PT1H", 5], "retry": [{"max_attempts": 1}, {"max_attempts": 2_147_483_647}, {}],
    "tags": [["a"]], "unique": [{"keys": ["type"]}], "schema": ["urn:x:y"], "version": ["2.0", 5],
    "x_kept": [Raw("1e400")],
    "x_previous_errors": [5, None, []],
    "options": [{"queue": "mail", "delay_until": "+5m"}, {"metadata": {"a": 1}}, {"retry_policy": {"max_attempts": 0}}],
    "rate_limit": [{"key": "k"}], "total_timeout": [9], "specversion": ["1.0", "1.0.0-rc.1"],
}  # fmt: skip
CRON: dict[str, list[Any]] = {
    "expression": ["* * * * *", "@every 1s", "@daily", "0 0 31 2 *", "0 0 30 2 *", "*/0 * * * *", "60 * * * *",
    "@every 0s",
                   "@every P9999Y", "* * * * * *", "L L L L L", "0 0 1 1 *", "@reboot", "1-0 * * * *", "x" * 300],
    "schedule": ["* * * * *"], "cron": ["@hourly"], "enabled": [True, False, "x"], "description": ["d", "\x00",
    "x" * 3000],
    "timezone": ["UTC", "Europe/Berlin", "No/Where", "../etc", "\x00", "Etc/GMT+12", 5, "/", "localtime", "."],
    "overlap_policy": ["skip", "enqueue", "allow", "cancel_previous", "replace", "queue", "x"], "queue": list(QUEUES),
    "job_template": [{"type": "a.b", "args": [], "options": {"queue": "mail"}}, {"type": "a.b"}, 5], "meta": [{"a": 1}],
    "options": [{"delay_until": "+1h"}, {"queue": "0"}], "expires_at": ["+1h", *ODD_TIMES], "timeout": [5],
    "name": ["x"],
}  # fmt: skip
WORKFLOW: dict[str, list[Any]] = {
    "type": ["chain", "group", "group", "batch", "saga", 5], "name": ["n", "", "x" * 300, "\x00"], "id": ["f1", "",
    "\x00"],
    "callbacks": [{"on_success": {"type": "a.b", "args": []}}, {"on_complete": 5}, {}],
    "options": [{"queue": "mail"}, 5],
}  # fmt: skip
FETCH: dict[str, list[Any]] = {
    "count": [1, 2, 5, 10**12, -5],
    "visibility_timeout_ms": [1, 60_000, 10**15],
    "max_jobs": [3],
}
ACK: dict[str, list[Any]] = {"result": [None, 1, {"a": "\x00"}, Raw("1e400"), nested(150), Raw('"\\ud800"')],
                              "worker_id": list(WORKERS), "attempt": [1, 2, 2**31]}  # fmt: skip
NACK: dict[str, list[Any]] = {"requeue": [True, False], "worker_id": list(WORKERS), "attempt": [1, 2]}
ERROR: dict[str, list[Any]] = {
    "code": ["x", "DEAD_LETTER", "DISCARD", "\x00"], "retryable": [True, False], "backtrace": [["a", "b"], "a\nb"],
    "details": [{"error_class": "a.B", "n": Raw("1e999")}], "unknown": [nested(20)], "message": ["é\x00", "m" * 5000],
}  # fmt: skip
BEAT: dict[str, list[Any]] = {
    "state": ["running", "quiet", "terminating"], "hostname": ["h", "h\x00", 5], "pid": [1, 2**40],
    "concurrency": [4, 10**20],
    "queues": [["default"], ["\x00"]], "labels": [{"a": "\x00"}, ["x"]], "memory_mb": [1.5, 1e14, Raw("1e400")],
    "started_at": list(ODD_TIMES), "visibility_timeout_ms": [1, 10**14], "active_job_ids": [["x"], []],
    "reason": ["bye"],
    "jobs_completed": [10**19], "job_types": [["a.b"]], "shutdown": [False], "cpu_percent": [-1],
}  # fmt: skip
OVERRIDE: dict[str, list[Any]] = {"queue": [*QUEUES, "No"], "priority": [5, "x"], "args": [[1], "x"],
    "meta": [{"a": 1}, 5],
                                   "retry": [{"max_attempts": 1}, 5], "unknown": [1]}  # fmt: skip
ODD_HEADERS = (
    "",
    " ",
    "x" * 9000,
    "\xe9",
    "\xff\xfe",
    "\x7f",
    "\x01",
    ";;;,,,",
    '"',
    "a=b; c",
    "\t",
    "%00",
    "\xed\xa0\x80",
)
# Charsets whose codec makes no text (base64, undefined, ...) are left out: Django cannot even make a request of them.
HEADERS: dict[str, list[str]] = {
    "Accept": ["*/*", "text/html", "application/json", "application/json;q=0",
    "text/html,application/openjobspec+json"],
    "Content-Type": ["text/html", "application/json; charset=utf-16", "application/json; charset=utf-7",
    "multipart/form-data",
                     "application/x-www-form-urlencoded", "multipart/form-data; boundary=\xff", "APPLICATION/JSON ;a=b",
                     "application/json; charset=unicode_escape", "application/json;charset=nonsense", "json"],
    "Idempotency-Key": ["k1", "k2", "k3", "k4", "k5", "k6", "x" * 256, "x" * 257, "\xe9\xff", " k1 "],
    "OJS-Version": ["1.0", "1.0.0-rc.1", "2.0", "1", "1.0.0.0", "1.0\t"],
    "OJS-Requires-Extension": ["urn:x", ",,,", "urn:ojs:ext:\xff"],
    "Authorization": ["Bearer", "Bearer x", "Bearer ojs_" + "z" * 43, "Basic YTpi", "bearer  \xff", "Digest a",
    "Bearer a b"],
    "X-Request-Id": ["abc", "a b", "x" * 200, "<script>"],
    "Cookie": ["sessionid=x; csrftoken=y", 'sessionid="\\000aaaaaaaaaaa"', "sessionid=\xff" + "a" * 20, "=;=;;",
    "a" * 5000,
               'messages="\\000\\377"', 'django_language="\\000"'],
    "Accept-Language": ["de", "x" * 1000, "*;q=9,de-\xff"],
    "Accept-Encoding": ["gzip", "br;q=x"],
    "If-None-Match": ["*", 'W/"x"'],
    "Range": ["bytes=0-1"],
    "X-HTTP-Method-Override": ["DELETE"],
    "X-CSRFToken": ["x" * 32],
    "Referer": ["http://[::1", "javascript:x"],
    "Origin": ["null", "http://evil.example", "http://[::1"],
    "X-Forwarded-Host": ["evil.example"],
    "Transfer-Encoding": ["identity"],
    "Expect": ["100-continue"],
}  # fmt: skip
MAINTENANCE: dict[str, list[Any]] = {
    "reason": ["enough", "\x00", "x" * 501, 5, None], "duration": ["15m", "PT0S", "P9999Y", "soon", 7, None],
    "estimated_duration": ["PT15M", "", [], None], "auto_end": [True, "yes", None],
}  # fmt: skip
