"""A long history by plain SQL on PostgreSQL: ended jobs with three events each, as days of work leave them.

The jobs are of forty types in ten queues; some were cancelled or discarded, some have results, errors and unique keys.
Counts, minutes and hours of the statistics include them, and the metrics have counted them.
"""

from __future__ import annotations

from collections.abc import Callable

from django.db import connection, transaction
from django.db.models import Max

from benchmarks import reference
from django_ojs.events import order
from django_ojs.models import (
    Event,
    EventCommit,
    EventLog,
    Job,
    MetricPlace,
    Queue,
    QueueCount,
    QueueHour,
    QueueMinute,
    QueueTraffic,
)

QUEUES = ("default", "mail", "reports", "images", "imports", "exports", "billing", "search", "webhooks", "slow")
#: Jobs whose events of one kind were committed together, and jobs that one statement makes.
TOGETHER, CHUNK = 30, 300_000

_JOB, _EVENT, _COMMIT = (model._meta.db_table for model in (Job, Event, EventCommit))
_COUNT, _MINUTE, _HOUR, _TRAFFIC, _QUEUE = (
    model._meta.db_table for model in (QueueCount, QueueMinute, QueueHour, QueueTraffic, Queue)
)


def make(
    jobs: int, days: float, progress: Callable[[str], None] = lambda text: None, *, workers: bool = True
) -> None:  # fmt: skip
    """So many jobs that ended one after another in the last `days`, and their events. Call it once.

    Args:
        progress: called with how far it is.
        workers: whether the jobs name who ran them; what counts the jobs of its own workers must not count these.
    """
    order.advance(connection.alias)
    step = days * 86400 / jobs
    first = (Event.objects.aggregate(last=Max("id"))["last"] or 0) + 1
    seq = (EventCommit.objects.aggregate(last=Max("seq"))["last"] or 0) + 1
    with connection.cursor() as cursor:
        cursor.execute("SELECT now() - make_interval(secs => %s)", [days * 86400])
        (begin,) = cursor.fetchone()
        for start in range(0, jobs, CHUNK):
            stop = min(start + CHUNK, jobs)
            with transaction.atomic():
                cursor.execute("SET LOCAL synchronous_commit = off")
                cursor.execute(_CHUNK, {
                    "begin": begin, "step": step, "start": start, "stop": stop - 1,
                    "worker": "worker-" if workers else None,
                })  # fmt: skip
                cursor.execute(_jobs())
                cursor.execute(_EVENTS, {"first": first, "seq": seq})
                cursor.execute(_COMMITS, {"seq": seq})
                for statement in _FIGURES:
                    cursor.execute(statement)
                cursor.execute("DROP TABLE chunk")
            progress(f"{stop:,} of {jobs:,} jobs")
        for table, column in ((_EVENT, "id"), (_COMMIT, "seq")):
            cursor.execute(
                f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'), (SELECT max({column}) FROM {table}))"
            )
    last = Event.objects.aggregate(last=Max("id"))["last"]
    newest = EventCommit.objects.aggregate(last=Max("seq"))["last"]
    MetricPlace.objects.update_or_create(pk=1, defaults={"seq": newest, "event": last})
    EventLog.objects.filter(pk=1).update(last_seq=newest)
    with connection.cursor() as cursor:
        for model in (Job, Event, EventCommit, QueueCount, QueueMinute, QueueHour, QueueTraffic):
            cursor.execute(f"VACUUM ANALYZE {model._meta.db_table}")


#: One row a job: its number, its id, which grows with its time, and what jobs and events share.
_CHUNK = """CREATE TEMP TABLE chunk AS
SELECT i, (lpad(to_hex((extract(epoch FROM created) * 1000)::bigint), 12, '0') || '7' || substr(noise, 1, 3) || '8'
        || substr(noise, 4, 15))::uuid AS id,
    'app' || kind %% 4 || '.task' || kind AS type,
    (ARRAY['{queues}'])[1 + kind %% {queue_count}] AS queue,
    CASE WHEN i %% 200 < 2 THEN 'cancelled' WHEN i %% 200 < 5 THEN 'discarded' ELSE 'completed' END AS state,
    created, created + wait AS started, created + wait + run AS finished, run, wait, noise,
    coalesce(%(worker)s || i %% 40, '') AS worker
FROM (SELECT i, md5(i::text) AS noise, %(begin)s + i * %(step)s * interval '1 s' AS created,
        floor(40 * ((i * 7919) %% 10007 / 10007.0) ^ 2)::int AS kind,
        (i * 31 %% 2000) * interval '1 ms' AS wait, (i * 17 %% 900) * interval '1 ms' AS run
    FROM generate_series(%(start)s::bigint, %(stop)s::bigint) AS i) AS numbered
""".format(queues="','".join(QUEUES), queue_count=len(QUEUES))

_EVENTS = f"""INSERT INTO {_EVENT} (id, txid, type, time, component, subject, job_id, job_type, queue, state, attempt,
    worker_id, trace_id, data)
SELECT %(first)s + i / {TOGETHER} * {3 * TOGETHER} + kind * {TOGETHER} + i %% {TOGETHER},
    %(seq)s + i / {TOGETHER} * 3 + kind - 1000000000000,
    CASE kind WHEN 0 THEN 'job.enqueued' WHEN 1 THEN 'job.started' ELSE 'job.' || state END,
    CASE kind WHEN 0 THEN created WHEN 1 THEN started ELSE finished END,
    CASE kind WHEN 0 THEN 'api' ELSE 'workers' END, '', id, type, queue,
    CASE kind WHEN 0 THEN 'available' WHEN 1 THEN 'active' ELSE state END, least(kind, 1),
    CASE kind WHEN 0 THEN '' ELSE worker END, '',
    CASE kind WHEN 0 THEN '{{"priority":0}}' WHEN 1 THEN '{{"wait_ms":' || i * 31 %% 2000 || '}}'
        ELSE '{{"duration_ms":' || i * 17 %% 900 || '}}' END
FROM chunk, generate_series(0, 2) AS kind ORDER BY 1"""

_COMMITS = f"""INSERT INTO {_COMMIT} (seq, txid)
SELECT number, number - 1000000000000 FROM (
    SELECT DISTINCT %(seq)s + i / {TOGETHER} * 3 + kind AS number FROM chunk, generate_series(0, 2) AS kind
) AS numbered ORDER BY 1 ON CONFLICT DO NOTHING"""

_ENDED = "count(*) FILTER (WHERE state = 'completed'), count(*) FILTER (WHERE state = 'discarded')"
_LENGTHS = "sum(extract(epoch FROM run) * 1000)::bigint, sum(extract(epoch FROM wait) * 1000)::bigint"
_FIGURES = [
    f"""INSERT INTO {_QUEUE} (name, paused, retry, config, limited, draining, move_to, created_at, updated_at)
    SELECT DISTINCT queue, false, '', '', false, false, '', now(), now() FROM chunk ON CONFLICT DO NOTHING""",
    f"""INSERT INTO {_COUNT} AS known (queue, completed, cancelled, discarded, dead)
    SELECT queue, count(*) FILTER (WHERE state = 'completed'), count(*) FILTER (WHERE state = 'cancelled'),
        count(*) FILTER (WHERE state = 'discarded'), count(*) FILTER (WHERE i % 200 IN (2, 3)) FROM chunk GROUP BY 1
    ON CONFLICT (queue) DO UPDATE SET completed = known.completed + excluded.completed,
        cancelled = known.cancelled + excluded.cancelled, discarded = known.discarded + excluded.discarded,
        dead = known.dead + excluded.dead""",
    f"""INSERT INTO {_MINUTE} (queue, minute, started, completed, failed, run_ms, wait_ms)
    SELECT queue, date_trunc('minute', finished), count(*), {_ENDED}, {_LENGTHS} FROM chunk
    WHERE finished > now() - interval '2 days' GROUP BY 1, 2 ON CONFLICT DO NOTHING""",
    f"""INSERT INTO {_TRAFFIC} (queue, minute, enqueued, waits)
    SELECT coalesce(queue, ''), date_trunc('minute', finished), count(*), '60:' || count(*) FROM chunk
    WHERE finished > now() - interval '2 days' GROUP BY GROUPING SETS ((queue, 2), (2)) ON CONFLICT DO NOTHING""",
    f"""INSERT INTO {_HOUR} (queue, hour, started, completed, failed, run_ms, wait_ms, enqueued, waits)
    SELECT coalesce(queue, ''), date_trunc('hour', finished), count(*), {_ENDED}, {_LENGTHS}, count(*),
        '60:' || count(*) FROM chunk WHERE finished <= now() - interval '2 days'
    GROUP BY GROUPING SETS ((queue, 2), (2)) ON CONFLICT DO NOTHING""",
]  # fmt: skip


def _jobs() -> str:
    values = reference.job_values("created") | {
        "id": "id", "type": "type", "queue": "queue", "state": "state", "attempt": "1",
        "args": """'[' || i || ',"customer-' || i % 5000 || '",{"dry_run":false,"lines":12}]'""",
        "meta": """CASE WHEN i % 3 = 0 THEN '{"tenant":"t' || i % 50 || '"}' ELSE '{}' END""",
        "extra": """CASE WHEN i % 20 = 0 THEN '{"tags":["tag' || i % 7 || '"]}' ELSE '' END""",
        "started_at": "started", "finished_at": "finished", "worker_id": "worker",
        "errors": """CASE WHEN state = 'discarded' THEN '[{"type":"' || (ARRAY['SmtpError','Timeout','KeyError'])
            [1 + i / 200 % 3] || '","code":"handler_error","message":"No answer from host ' || i % 90 || '"}]'
            ELSE '' END""",
        "result": """CASE WHEN state = 'completed' AND i % 2 = 0 THEN '{"ok":true,"rows":' || i || '}' END""",
        "dead_letter": "i % 200 IN (2, 3)",
        "unique_key": "CASE WHEN i % 20 = 7 THEN md5(noise) || noise ELSE '' END",
    }  # fmt: skip
    return f"INSERT INTO {_JOB} ({', '.join(values)}) SELECT {', '.join(values.values())} FROM chunk ORDER BY i"
