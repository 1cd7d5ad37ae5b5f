-- FETCH from several queues, which are served from left to right, of some job types.

-- parameters: text, text, time, text, text, text, text, text, text, text, text, time, text
SELECT EXISTS(SELECT 1 FROM django_ojs_job WHERE state = 'available' AND queue IN (%s, %s)),
    (
        SELECT wake_at
        FROM django_ojs_job
        WHERE wake_at <= %s
          AND queue IN (%s, %s)
          AND state IN ('scheduled', 'retryable', 'available')
        ORDER BY wake_at
        LIMIT 1
    ) IS NOT NULL,
    EXISTS(SELECT 1 FROM django_ojs_job WHERE state = 'available' AND rate_key > '' AND queue IN (%s, %s)),
    EXISTS(SELECT 1 FROM django_ojs_queue WHERE limited AND (name = '_default' OR name IN (%s, %s))),
    EXISTS(SELECT 1 FROM django_ojs_maintenance),
    EXISTS(SELECT 1 FROM django_ojs_cronrun WHERE held AND queue IN (%s, %s)), w.id, w.state, w.directive,
    w.owner, w.last_seen_at < %s
FROM (SELECT 1 AS one) AS here
LEFT JOIN django_ojs_worker AS w ON w.id IN (%s);

-- parameters: queues text, bases text, workers text, visibilities text, ends text, begins text, limit
-- integer, now time, timeout integer, types list, prefixes list
WITH picked AS MATERIALIZED (
    SELECT found.id, found.base, t.worker, t.visibility, t.place, found.n
    FROM (
        SELECT id, base, row_number() OVER () AS n
        FROM (
            SELECT waiting.id, q.base
            FROM unnest(%(queues)s::text[], %(bases)s::bigint[]) AS q(name, base)
            CROSS JOIN LATERAL (
                SELECT id
                FROM django_ojs_job
                WHERE queue = q.name
                  AND state = 'available'
                  AND (expires_at IS NULL OR expires_at > %(now)s)
                  AND (deadline_at IS NULL OR deadline_at > %(now)s)
                  AND (start_by IS NULL OR start_by > %(now)s OR attempt > 0)
                  AND (due_at IS NULL OR due_at <= %(now)s)
                  AND (type = ANY(%(types)s) OR type ^@ ANY(%(prefixes)s::text[]))
                  AND rate_key = ''
                ORDER BY priority DESC, enqueued_at, id
                LIMIT 4
                FOR UPDATE SKIP LOCKED
            ) AS waiting
            WHERE NOT EXISTS (
                SELECT 1
                FROM django_ojs_queue
                WHERE name = q.name
                  AND paused
                  OR name IN (q.name, '_default')
                  AND limited
            )
            LIMIT %(limit)s::bigint
        ) AS taken
    ) AS found
    JOIN unnest(%(workers)s::text[], %(visibilities)s::bigint[], %(begins)s::bigint[], %(ends)s::bigint[])
    WITH ORDINALITY AS t(worker, visibility, begins, ends, place) ON found.n > t.begins
      AND found.n <= t.ends
),
claimed AS (
    UPDATE django_ojs_job j
    SET state = 'active', attempt = j.attempt + 1, started_at = greatest(%(now)s, j.enqueued_at),
        worker_id = picked.worker, due_at = NULL,
        lease_ms = coalesce(picked.visibility, j.visibility_ms, picked.base),
        visible_until = %(now)s::timestamptz + least(
            coalesce(picked.visibility, j.visibility_ms, picked.base), j.heartbeat_ms
        ) * interval '1 millisecond',
        timeout_at = %(now)s::timestamptz + (
            coalesce(j.timeout_ms, %(timeout)s::bigint) + coalesce(j.grace_ms, 0)
        ) * interval '1 millisecond',
        wake_at = least(
            %(now)s::timestamptz + least(
                coalesce(picked.visibility, j.visibility_ms, picked.base), j.heartbeat_ms
            ) * interval '1 millisecond',
            %(now)s::timestamptz + (coalesce(j.timeout_ms, %(timeout)s::bigint) + coalesce(j.grace_ms, 0)) * interval '1 millisecond',
            j.deadline_at
        )
    FROM picked
    WHERE j.id = picked.id
      AND j.state || '' IN ('available')
    RETURNING j.id, j.type, j.queue, j.state, j.priority, j.attempt, j.max_attempts, j.uncounted, j.round,
        j.args, j.meta, j.extra, j.retry, j.timeout_ms, j.visibility_ms, j.heartbeat_ms, j.grace_ms,
        j.trace_id, j.created_at, j.enqueued_at, j.due_at, j.expires_at, j.start_by, j.deadline_at,
        j.activated_at, j.started_at, j.finished_at, j.visible_until, j.timeout_at, j.wake_at, j.worker_id,
        j.lease_ms, j.losses, j.suspected, j.resumable, j.retry_delay_ms, j.errors, j.result, j.result_ttl,
        j.dead_letter, j.unique_key, j.workflow_id, j.parent_id, j.rate_key, j.rate_limit, picked.n,
        picked.place
),
began AS (
    INSERT INTO django_ojs_workflowstart (workflow_id, job_id, started_at)
    SELECT DISTINCT ON (workflow_id) workflow_id, id, %(now)s::timestamptz
    FROM claimed
    WHERE workflow_id IS NOT NULL
    ORDER BY workflow_id, n ON CONFLICT DO NOTHING
    RETURNING workflow_id, job_id
),
logged AS (
    INSERT INTO django_ojs_event (
        txid, type, time, component, subject, job_id, job_type, queue, state, attempt, worker_id, trace_id,
        workflow_id, data
    )
    SELECT pg_current_xact_id()::text::bigint, e.*
    FROM (
        SELECT 'workflow.started', %(now)s::timestamptz, 'api', coalesce(w.own_id, w.id::text), NULL::uuid,
            '', '', '', 0, '', c.trace_id, w.id, '{' || w.facts || '}'
        FROM began
        JOIN django_ojs_workflow w ON w.id = began.workflow_id
        JOIN claimed c ON c.id = began.job_id
        UNION ALL
        SELECT 'job.started', started_at, 'workers', '', id, type, queue, 'active', attempt, worker_id,
            trace_id, workflow_id,
            '{"wait_ms":' || coalesce(round(date_part('epoch', started_at - enqueued_at) * 1000)::bigint, 0) || '}'
        FROM claimed
    ) AS e
),
counted AS (
    INSERT INTO django_ojs_countdelta (queue, at, available, active, wait_ms)
    SELECT queue, %(now)s, -count(*), count(*),
        coalesce(round(sum(date_part('epoch', started_at - enqueued_at)) * 1000)::bigint, 0)
    FROM claimed
    GROUP BY queue
)
SELECT c.place, c.id, c.type, c.queue, c.state, c.priority, c.attempt, c.max_attempts, c.uncounted, c.round,
    c.args, c.meta, c.extra, c.retry, c.timeout_ms, c.visibility_ms, c.heartbeat_ms, c.grace_ms, c.trace_id,
    c.created_at, c.enqueued_at, c.due_at, c.expires_at, c.start_by, c.deadline_at, c.activated_at,
    c.started_at, c.finished_at, c.visible_until, c.timeout_at, c.wake_at, c.worker_id, c.lease_ms, c.losses,
    c.suspected, c.resumable, c.retry_delay_ms, c.errors, c.result, c.result_ttl, c.dead_letter, c.unique_key,
    c.workflow_id, c.parent_id, c.rate_key, c.rate_limit, m.position, m.created_at::text, m.before
FROM claimed c
LEFT JOIN LATERAL (
    SELECT s.position, w.created_at,
        CASE
            WHEN w.type = 'chain'
              AND length(w.progress) = w.job_count + 1 THEN coalesce(
                  array_to_string(
                      ARRAY(
                          SELECT CASE
                              WHEN j.state = 'completed' THEN coalesce(j.result, 'null') ELSE 'null'
                          END AS result
                          FROM django_ojs_workflowstep p
                          LEFT JOIN django_ojs_job j ON j.id = p.job_id
                          WHERE p.workflow_id = s.workflow_id
                            AND p.position < s.position
                          ORDER BY p.position
                      ), E'\x1f'
                  ), ''
              )
        END AS before
    FROM django_ojs_workflowstep s
    JOIN django_ojs_workflow w ON w.id = s.workflow_id
    WHERE c.workflow_id IS NOT NULL
      AND s.job_id = c.id
    LIMIT 1
) AS m ON true
ORDER BY c.n;
