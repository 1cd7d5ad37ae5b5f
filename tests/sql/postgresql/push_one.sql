-- PUSH of one job: the row, its event, the count of its queue.

-- parameters: id uuid, type text, args text, extra text, retry text, timeout_ms integer, created_at time,
-- enqueued_at time, event text, component text, data text
WITH inserted AS (
    INSERT INTO django_ojs_job (
        type, queue, state, priority, max_attempts, args, meta, extra, retry, trace_id, unique_key, rate_key,
        rate_limit, id, timeout_ms, created_at, enqueued_at, attempt, losses, dead_letter, worker_id, errors
    )
    VALUES (
        %(type)s::text, 'default', 'available', 0, 3, %(args)s::text, '{}', %(extra)s::text, %(retry)s::text,
        '', '', '', '', %(id)s::uuid, %(timeout_ms)s::bigint, %(created_at)s::timestamptz,
        %(enqueued_at)s::timestamptz, 0, 0, false, '', ''
    )
),
counted AS (
    INSERT INTO django_ojs_countdelta (queue, at, available)
    VALUES ('default', %(created_at)s::timestamptz, 1)
),
logged AS (
    INSERT INTO django_ojs_event (
        txid, type, time, component, subject, job_id, job_type, queue, state, attempt, worker_id, trace_id,
        workflow_id, data
    )
    VALUES (
        pg_current_xact_id()::text::bigint, %(event)s::text, %(created_at)s::timestamptz, %(component)s::text,
        '', %(id)s::uuid, %(type)s::text, 'default', 'available', 0, '', '', NULL, %(data)s::text
    )
)
SELECT EXISTS (SELECT 1 FROM django_ojs_worker WHERE asleep);
