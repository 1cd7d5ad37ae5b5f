-- ACK of a step of a chain: the workflow is locked and the job of the next step is enqueued.

-- parameters: ids text, results text, workers text, attempts text, now time
WITH a AS MATERIALIZED (
    SELECT a.*
    FROM unnest(%(ids)s::uuid[], %(results)s::text[], %(workers)s::text[], %(attempts)s::int[]) AS a(
        id, result, worker, attempt
    )
    JOIN django_ojs_job AS locked ON locked.id = a.id
    ORDER BY a.id
    FOR UPDATE OF locked SKIP LOCKED
),
done AS (
    UPDATE django_ojs_job j
    SET state = 'completed', result = a.result, losses = 0, finished_at = greatest(%(now)s, j.started_at),
        due_at = NULL, visible_until = NULL, timeout_at = NULL, wake_at = NULL
    FROM a
    WHERE j.id = a.id
      AND j.state || '' IN ('active')
      AND (a.worker = '' OR j.worker_id = '' OR j.worker_id = a.worker)
      AND (a.attempt IS NULL OR a.attempt = j.attempt)
      AND j.workflow_id IS NULL
    RETURNING j.id, j.type, j.queue, j.state, j.priority, j.attempt, j.max_attempts, j.uncounted, j.round,
        j.args, j.meta, j.extra, j.retry, j.timeout_ms, j.visibility_ms, j.heartbeat_ms, j.grace_ms,
        j.trace_id, j.created_at, j.enqueued_at, j.due_at, j.expires_at, j.start_by, j.deadline_at,
        j.activated_at, j.started_at, j.finished_at, j.visible_until, j.timeout_at, j.wake_at, j.worker_id,
        j.lease_ms, j.losses, j.suspected, j.resumable, j.retry_delay_ms, j.errors, j.result, j.result_ttl,
        j.dead_letter, j.unique_key, j.workflow_id, j.parent_id, j.rate_key, j.rate_limit
),
logged AS (
    INSERT INTO django_ojs_event (
        txid, type, time, component, subject, job_id, job_type, queue, state, attempt, worker_id, trace_id,
        workflow_id, data
    )
    SELECT pg_current_xact_id()::text::bigint, 'job.completed', finished_at, 'workers', '', id, type, queue,
        'completed', attempt, worker_id, trace_id, workflow_id,
        '{"duration_ms":' || coalesce(round(date_part('epoch', finished_at - started_at) * 1000)::bigint, 0) || coalesce(
            ',"result":' || result, ''
        ) || '}'
    FROM done
),
counted AS (
    INSERT INTO django_ojs_countdelta (queue, at, active, completed, run_ms)
    SELECT queue, %(now)s, -count(*), count(*),
        round(sum(date_part('epoch', finished_at - started_at)) * 1000)::bigint
    FROM done
    GROUP BY queue
)
SELECT done.id, done.type, done.queue, done.state, done.priority, done.attempt, done.max_attempts,
    done.uncounted, done.round, done.args, done.meta, done.extra, done.retry, done.timeout_ms,
    done.visibility_ms, done.heartbeat_ms, done.grace_ms, done.trace_id, done.created_at, done.enqueued_at,
    done.due_at, done.expires_at, done.start_by, done.deadline_at, done.activated_at, done.started_at,
    done.finished_at, done.visible_until, done.timeout_at, done.wake_at, done.worker_id, done.lease_ms,
    done.losses, done.suspected, done.resumable, done.retry_delay_ms, done.errors, done.result,
    done.result_ttl, done.dead_letter, done.unique_key, done.workflow_id, done.parent_id, done.rate_key,
    done.rate_limit,
    (
        rate_key <> ''
          OR EXISTS (
              SELECT 1 FROM django_ojs_queue AS q WHERE q.limited AND q.name IN (done.queue, '_default')
          )
    )
FROM done;

-- parameters: ids text, results text, workers text, attempts text, now time
WITH a AS MATERIALIZED (
    SELECT a.*
    FROM unnest(%(ids)s::uuid[], %(results)s::text[], %(workers)s::text[], %(attempts)s::int[]) AS a(
        id, result, worker, attempt
    )
    JOIN django_ojs_job AS locked ON locked.id = a.id
    ORDER BY a.id
    FOR UPDATE OF locked
),
done AS (
    UPDATE django_ojs_job j
    SET state = 'completed', result = a.result, losses = 0, finished_at = greatest(%(now)s, j.started_at),
        due_at = NULL, visible_until = NULL, timeout_at = NULL, wake_at = NULL
    FROM a
    WHERE j.id = a.id
      AND j.state || '' IN ('active')
      AND (a.worker = '' OR j.worker_id = '' OR j.worker_id = a.worker)
      AND (a.attempt IS NULL OR a.attempt = j.attempt)
    RETURNING j.id, j.type, j.queue, j.state, j.priority, j.attempt, j.max_attempts, j.uncounted, j.round,
        j.args, j.meta, j.extra, j.retry, j.timeout_ms, j.visibility_ms, j.heartbeat_ms, j.grace_ms,
        j.trace_id, j.created_at, j.enqueued_at, j.due_at, j.expires_at, j.start_by, j.deadline_at,
        j.activated_at, j.started_at, j.finished_at, j.visible_until, j.timeout_at, j.wake_at, j.worker_id,
        j.lease_ms, j.losses, j.suspected, j.resumable, j.retry_delay_ms, j.errors, j.result, j.result_ttl,
        j.dead_letter, j.unique_key, j.workflow_id, j.parent_id, j.rate_key, j.rate_limit
),
logged AS (
    INSERT INTO django_ojs_event (
        txid, type, time, component, subject, job_id, job_type, queue, state, attempt, worker_id, trace_id,
        workflow_id, data
    )
    SELECT pg_current_xact_id()::text::bigint, 'job.completed', finished_at, 'workers', '', id, type, queue,
        'completed', attempt, worker_id, trace_id, workflow_id,
        '{"duration_ms":' || coalesce(round(date_part('epoch', finished_at - started_at) * 1000)::bigint, 0) || coalesce(
            ',"result":' || result, ''
        ) || '}'
    FROM done
),
counted AS (
    INSERT INTO django_ojs_countdelta (queue, at, active, completed, run_ms)
    SELECT queue, %(now)s, -count(*), count(*),
        round(sum(date_part('epoch', finished_at - started_at)) * 1000)::bigint
    FROM done
    GROUP BY queue
),
flows AS MATERIALIZED (
    SELECT id, created_at, progress, type
    FROM django_ojs_workflow
    WHERE id = ANY(ARRAY(SELECT workflow_id FROM done))
      AND state || '' = 'running'
    ORDER BY id
    FOR UPDATE
)
SELECT done.id, done.type, done.queue, done.state, done.priority, done.attempt, done.max_attempts,
    done.uncounted, done.round, done.args, done.meta, done.extra, done.retry, done.timeout_ms,
    done.visibility_ms, done.heartbeat_ms, done.grace_ms, done.trace_id, done.created_at, done.enqueued_at,
    done.due_at, done.expires_at, done.start_by, done.deadline_at, done.activated_at, done.started_at,
    done.finished_at, done.visible_until, done.timeout_at, done.wake_at, done.worker_id, done.lease_ms,
    done.losses, done.suspected, done.resumable, done.retry_delay_ms, done.errors, done.result,
    done.result_ttl, done.dead_letter, done.unique_key, done.workflow_id, done.parent_id, done.rate_key,
    done.rate_limit,
    (
        rate_key <> ''
          OR EXISTS (
              SELECT 1 FROM django_ojs_queue AS q WHERE q.limited AND q.name IN (done.queue, '_default')
          )
    ), s.position, s.step_id, s.type, w.created_at::text, b.started_at::text,
    CASE
        WHEN lag(s.workflow_id) OVER (ORDER BY s.workflow_id, done.finished_at, s.position) = s.workflow_id THEN NULL
        ELSE w.progress
    END, n.step_id, n.job_id, n.type, n.document
FROM done
FULL JOIN flows w ON w.id = done.workflow_id
LEFT JOIN LATERAL (SELECT * FROM django_ojs_workflowstep WHERE w.id IS NOT NULL AND job_id = done.id LIMIT 1) AS s ON true
LEFT JOIN django_ojs_workflowstart b ON b.workflow_id = s.workflow_id
LEFT JOIN django_ojs_workflowstep n ON w.type = 'chain'
  AND n.workflow_id = s.workflow_id
  AND n.position = s.position + 1
ORDER BY s.workflow_id, done.finished_at, s.position, done.id;

-- parameters: id uuid, type text, args text, extra text, retry text, timeout_ms integer, created_at time,
-- enqueued_at time, workflow_id uuid, event text, component text, data text, flow_id text, flow_progress
-- text, told_type text, told_time text, told_component text, told_subject text, told_worker_id text,
-- told_trace_id text, told_workflow_id text, told_data text
WITH saved AS (
    UPDATE django_ojs_workflow w
    SET progress = v.progress
    FROM unnest(%(flow_id)s::uuid[], %(flow_progress)s::text[]) AS v(id, progress)
    WHERE w.id = v.id
),
inserted AS (
    INSERT INTO django_ojs_job (
        type, queue, state, priority, max_attempts, args, meta, extra, retry, trace_id, unique_key, rate_key,
        rate_limit, id, timeout_ms, created_at, enqueued_at, workflow_id, attempt, losses, dead_letter,
        worker_id, errors
    )
    VALUES (
        %(type)s::text, 'default', 'available', 0, 3, %(args)s::text, '{}', %(extra)s::text, %(retry)s::text,
        '', '', '', '', %(id)s::uuid, %(timeout_ms)s::bigint, %(created_at)s::timestamptz,
        %(enqueued_at)s::timestamptz, %(workflow_id)s::uuid, 0, 0, false, '', ''
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
    SELECT pg_current_xact_id()::text::bigint, e.*
    FROM (
        SELECT v.type, v.time, v.component, v.subject, NULL::uuid, '', '', '', 0, v.worker_id, v.trace_id,
            v.workflow_id, v.data
        FROM unnest(
            %(told_type)s::text[], %(told_time)s::timestamptz[], %(told_component)s::text[],
            %(told_subject)s::text[], %(told_worker_id)s::text[], %(told_trace_id)s::text[],
            %(told_workflow_id)s::uuid[], %(told_data)s::text[]
        ) AS v(type, time, component, subject, worker_id, trace_id, workflow_id, data)
        UNION ALL
        SELECT %(event)s::text, %(created_at)s::timestamptz, %(component)s::text, '', %(id)s::uuid,
            %(type)s::text, 'default', 'available', 0, '', '', %(workflow_id)s::uuid, %(data)s::text
    ) AS e
)
SELECT EXISTS (SELECT 1 FROM django_ojs_worker WHERE asleep);

-- parameters: text
SELECT pg_notify('ojs_jobs', %s) WHERE EXISTS (SELECT 1 FROM django_ojs_worker WHERE asleep);
