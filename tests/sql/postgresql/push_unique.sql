-- PUSH of one unique job: no job that is open may have its key.

-- parameters: stripes text
INSERT INTO django_ojs_uniquelock (stripe, used)
SELECT stripe, true
FROM unnest(%(stripes)s::int[]) AS stripe
WHERE true ON CONFLICT (stripe) DO UPDATE SET used = true
WHERE false;

-- parameters: id uuid, type text, args text, extra text, retry text, timeout_ms integer, created_at time,
-- enqueued_at time, unique_key text, event text, component text, data text
WITH free AS MATERIALIZED (
    SELECT 1
    WHERE NOT EXISTS (
        SELECT 1
        FROM django_ojs_job
        WHERE unique_key = %(unique_key)s::text
          AND unique_key > ''
          AND state IN ('', 'scheduled', 'available', 'pending', 'active', 'retryable')
    )
),
inserted AS (
    INSERT INTO django_ojs_job (
        type, queue, state, priority, max_attempts, args, meta, extra, retry, trace_id, unique_key, rate_key,
        rate_limit, id, timeout_ms, created_at, enqueued_at, attempt, losses, dead_letter, worker_id, errors
    )
    SELECT %(type)s::text, 'default', 'available', 0, 3, %(args)s::text, '{}', %(extra)s::text,
        %(retry)s::text, '', %(unique_key)s::text, '', '', %(id)s::uuid, %(timeout_ms)s::bigint,
        %(created_at)s::timestamptz, %(enqueued_at)s::timestamptz, 0, 0, false, '', ''
    FROM free
),
counted AS (
    INSERT INTO django_ojs_countdelta (queue, at, available)
    SELECT 'default', %(created_at)s::timestamptz, 1
    FROM free
),
logged AS (
    INSERT INTO django_ojs_event (
        txid, type, time, component, subject, job_id, job_type, queue, state, attempt, worker_id, trace_id,
        workflow_id, data
    )
    SELECT pg_current_xact_id()::text::bigint, %(event)s::text, %(created_at)s::timestamptz,
        %(component)s::text, '', %(id)s::uuid, %(type)s::text, 'default', 'available', 0, '', '', NULL,
        %(data)s::text
    FROM free
)
SELECT EXISTS (SELECT 1 FROM free), EXISTS (SELECT 1 FROM django_ojs_worker WHERE asleep);
