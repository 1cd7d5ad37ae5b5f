-- PUSH of one job: the row, its event, the count of its queue.

-- parameters: text, text, text, text, text, integer, text, text
INSERT INTO django_ojs_job (
    id, type, args, extra, retry, timeout_ms, created_at, enqueued_at, queue, state, priority, max_attempts,
    meta, trace_id, unique_key, rate_key, rate_limit, attempt, losses, dead_letter, worker_id, errors
)
VALUES (
    %s, %s, %s, %s, %s, %s, %s, %s, 'default', 'available', 0, 3, '{}', '', '', '', '', 0, 0, false, '', ''
);

-- parameters: text, text
INSERT INTO django_ojs_countdelta (queue, at, available) VALUES (%s, %s, 1);

-- parameters: text, text, text, text, text, text, text, text, integer, text, text, null, text
INSERT INTO django_ojs_event (
    type, time, component, subject, job_id, job_type, queue, state, attempt, worker_id, trace_id, workflow_id,
    data
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);
