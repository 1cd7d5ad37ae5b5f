-- PUSH of several jobs, however many.

-- parameters: type text, extra text, retry text, timeout_ms integer, id text, args text, created_at text,
-- component text
WITH new AS NOT MATERIALIZED (
    SELECT v.id AS id, %(type)s::text AS type, 'default'::text AS queue, 'available'::text AS state,
        0::smallint AS priority, 3::int AS max_attempts, v.args AS args, '{}'::text AS meta,
        %(extra)s::text AS extra, %(retry)s::text AS retry, %(timeout_ms)s::bigint AS timeout_ms,
        NULL::bigint AS visibility_ms, NULL::bigint AS heartbeat_ms, NULL::bigint AS grace_ms,
        ''::text AS trace_id, v.created_at AS created_at, v.created_at AS enqueued_at,
        NULL::timestamptz AS due_at, NULL::timestamptz AS expires_at, NULL::timestamptz AS start_by,
        NULL::timestamptz AS deadline_at, NULL::timestamptz AS wake_at, ''::text AS unique_key,
        NULL::uuid AS workflow_id, NULL::uuid AS parent_id, NULL::int AS result_ttl, ''::text AS rate_key,
        ''::text AS rate_limit
    FROM unnest(%(id)s::uuid[], %(args)s::text[], %(created_at)s::timestamptz[]) AS v(id, args, created_at)
),
inserted AS (
    INSERT INTO django_ojs_job (
        id, type, queue, state, priority, max_attempts, args, meta, extra, retry, timeout_ms, visibility_ms,
        heartbeat_ms, grace_ms, trace_id, created_at, enqueued_at, due_at, expires_at, start_by, deadline_at,
        wake_at, unique_key, workflow_id, parent_id, result_ttl, rate_key, rate_limit, attempt, losses,
        dead_letter, worker_id, errors
    )
    SELECT id, type, queue, state, priority, max_attempts, args, meta, extra, retry, timeout_ms,
        visibility_ms, heartbeat_ms, grace_ms, trace_id, created_at, enqueued_at, due_at, expires_at,
        start_by, deadline_at, wake_at, unique_key, workflow_id, parent_id, result_ttl, rate_key, rate_limit,
        0, 0, false, '', ''
    FROM new
),
counted AS (
    INSERT INTO django_ojs_countdelta (queue, at, scheduled, available, pending)
    SELECT queue, max(created_at), count(*) FILTER (WHERE state = 'scheduled'),
        count(*) FILTER (WHERE state = 'available'), count(*) FILTER (WHERE state = 'pending')
    FROM new
    GROUP BY queue
),
logged AS (
    INSERT INTO django_ojs_event (
        txid, type, time, component, subject, job_id, job_type, queue, state, attempt, worker_id, trace_id,
        workflow_id, data
    )
    SELECT pg_current_xact_id()::text::bigint,
        CASE state WHEN 'available' THEN 'job.enqueued' ELSE 'job.scheduled' END, created_at, %(component)s,
        '', id, type, queue, state, 0, '', trace_id, workflow_id,
        CASE
            state
            WHEN 'available' THEN '{"priority":' || priority || CASE
                WHEN unique_key = '' THEN '' ELSE ',"unique_key":"' || unique_key || '"'
            END || '}'
            ELSE '{"scheduled_at":"' || to_char(due_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') || '"}'
        END
    FROM new
    WHERE state <> 'pending'
)
SELECT EXISTS (SELECT 1 FROM django_ojs_worker WHERE asleep);
