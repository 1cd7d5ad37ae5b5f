-- FETCH from several queues, which are served from left to right, of some job types.

-- parameters: text, text, text, text, text, text, text, text, text, text, text, text, text
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

-- parameters: queue text, now text, worker text, until text, ends text, types text, prefixes text
SELECT json_group_array(place),
    json_group_array(
        json_array(
            c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17, c18, c19, c20,
            c21, c22, c23, c24, c25, c26, c27, c28, c29, c30, c31, c32, c33, c34, c35, c36, c37, c38, c39,
            c40, c41, c42, c43, c44
        )
    )
FROM (
    SELECT j.rowid AS place, j.id AS c0, j.type AS c1, j.queue AS c2, 'active' AS c3, j.priority AS c4,
        attempt + 1 AS c5, j.max_attempts AS c6, j.uncounted AS c7, j.round AS c8, j.args AS c9,
        j.meta AS c10, j.extra AS c11, j.retry AS c12, j.timeout_ms AS c13, j.visibility_ms AS c14,
        j.heartbeat_ms AS c15, j.grace_ms AS c16, j.trace_id AS c17, j.created_at AS c18,
        j.enqueued_at AS c19, NULL AS c20, j.expires_at AS c21, j.start_by AS c22, j.deadline_at AS c23,
        j.activated_at AS c24, max(%(now)s, coalesce(enqueued_at, '')) AS c25, j.finished_at AS c26,
        CASE
            WHEN heartbeat_ms IS NULL
              AND visibility_ms IS NULL THEN %(until)s
            ELSE replace(
                strftime(
                    '%%Y-%%m-%%d %%H:%%M:%%f', %(now)s,
                    printf(
                        '+%%.3f seconds',
                        min(
                            coalesce(NULL, visibility_ms, 1800000),
                            coalesce(heartbeat_ms, coalesce(NULL, visibility_ms, 1800000))
                        ) / 1000.0
                    )
                ), '.000', ''
            )
        END AS c27,
        CASE
            WHEN coalesce(timeout_ms, 1800000) = 1800000
              AND coalesce(grace_ms, 0) = 0 THEN %(ends)s
            ELSE replace(
                strftime(
                    '%%Y-%%m-%%d %%H:%%M:%%f', %(now)s,
                    printf('+%%.3f seconds', (coalesce(timeout_ms, 1800000) + coalesce(grace_ms, 0)) / 1000.0)
                ), '.000', ''
            )
        END AS c28,
        min(
            CASE
                WHEN heartbeat_ms IS NULL
                  AND visibility_ms IS NULL THEN %(until)s
                ELSE replace(
                    strftime(
                        '%%Y-%%m-%%d %%H:%%M:%%f', %(now)s,
                        printf(
                            '+%%.3f seconds',
                            min(
                                coalesce(NULL, visibility_ms, 1800000),
                                coalesce(heartbeat_ms, coalesce(NULL, visibility_ms, 1800000))
                            ) / 1000.0
                        )
                    ), '.000', ''
                )
            END,
            CASE
                WHEN coalesce(timeout_ms, 1800000) = 1800000
                  AND coalesce(grace_ms, 0) = 0 THEN %(ends)s
                ELSE replace(
                    strftime(
                        '%%Y-%%m-%%d %%H:%%M:%%f', %(now)s,
                        printf(
                            '+%%.3f seconds', (coalesce(timeout_ms, 1800000) + coalesce(grace_ms, 0)) / 1000.0
                        )
                    ), '.000', ''
                )
            END, coalesce(deadline_at, '9999')
        ) AS c29, %(worker)s AS c30, coalesce(NULL, visibility_ms, 1800000) AS c31, j.losses AS c32,
        j.suspected AS c33, j.resumable AS c34, j.retry_delay_ms AS c35, j.errors AS c36, j.result AS c37,
        j.result_ttl AS c38, j.dead_letter AS c39, j.unique_key AS c40, j.workflow_id AS c41,
        j.parent_id AS c42, j.rate_key AS c43, j.rate_limit AS c44
    FROM django_ojs_job AS j
    WHERE queue = %(queue)s
      AND state = 'available'
      AND (expires_at IS NULL OR expires_at > %(now)s)
      AND (deadline_at IS NULL OR deadline_at > %(now)s)
      AND (start_by IS NULL OR start_by > %(now)s OR attempt > 0)
      AND (due_at IS NULL OR due_at <= %(now)s)
      AND (
          type IN (SELECT value FROM json_each(%(types)s))
            OR EXISTS (
                SELECT 1
                FROM json_each(%(prefixes)s) AS prefix
                WHERE substr(j.type, 1, length(prefix.value)) = prefix.value
            )
      )
      AND rate_key = ''
      AND NOT EXISTS (
          SELECT 1
          FROM django_ojs_queue
          WHERE name = %(queue)s
            AND paused
            OR name IN (%(queue)s, '_default')
            AND limited
      )
    ORDER BY priority DESC, enqueued_at, id
    LIMIT 4
);

-- parameters: now text, worker text, until text, ends text, places text
UPDATE django_ojs_job
SET state = 'active', attempt = attempt + 1, worker_id = %(worker)s,
    started_at = max(%(now)s, coalesce(enqueued_at, '')), due_at = NULL,
    lease_ms = coalesce(NULL, visibility_ms, 1800000),
    visible_until = CASE
        WHEN heartbeat_ms IS NULL
          AND visibility_ms IS NULL THEN %(until)s
        ELSE replace(
            strftime(
                '%%Y-%%m-%%d %%H:%%M:%%f', %(now)s,
                printf(
                    '+%%.3f seconds',
                    min(
                        coalesce(NULL, visibility_ms, 1800000),
                        coalesce(heartbeat_ms, coalesce(NULL, visibility_ms, 1800000))
                    ) / 1000.0
                )
            ), '.000', ''
        )
    END,
    timeout_at = CASE
        WHEN coalesce(timeout_ms, 1800000) = 1800000
          AND coalesce(grace_ms, 0) = 0 THEN %(ends)s
        ELSE replace(
            strftime(
                '%%Y-%%m-%%d %%H:%%M:%%f', %(now)s,
                printf('+%%.3f seconds', (coalesce(timeout_ms, 1800000) + coalesce(grace_ms, 0)) / 1000.0)
            ), '.000', ''
        )
    END,
    wake_at = min(
        CASE
            WHEN heartbeat_ms IS NULL
              AND visibility_ms IS NULL THEN %(until)s
            ELSE replace(
                strftime(
                    '%%Y-%%m-%%d %%H:%%M:%%f', %(now)s,
                    printf(
                        '+%%.3f seconds',
                        min(
                            coalesce(NULL, visibility_ms, 1800000),
                            coalesce(heartbeat_ms, coalesce(NULL, visibility_ms, 1800000))
                        ) / 1000.0
                    )
                ), '.000', ''
            )
        END,
        CASE
            WHEN coalesce(timeout_ms, 1800000) = 1800000
              AND coalesce(grace_ms, 0) = 0 THEN %(ends)s
            ELSE replace(
                strftime(
                    '%%Y-%%m-%%d %%H:%%M:%%f', %(now)s,
                    printf('+%%.3f seconds', (coalesce(timeout_ms, 1800000) + coalesce(grace_ms, 0)) / 1000.0)
                ), '.000', ''
            )
        END, coalesce(deadline_at, '9999')
    )
WHERE state = 'available'
  AND rowid IN (SELECT value FROM json_each(%(places)s));

-- parameters: text
INSERT INTO django_ojs_event (
    type, time, component, subject, job_id, job_type, queue, state, attempt, worker_id, trace_id, workflow_id,
    data
)
SELECT 'job.started', j.started_at, 'workers', '', j.id, j.type, j.queue, j.state, j.attempt, j.worker_id,
    j.trace_id, j.workflow_id,
    '{"wait_ms":' || coalesce(
        max(0, CAST(round((julianday(j.started_at) - julianday(j.enqueued_at)) * 86400000.0) AS INTEGER)), 0
    ) || '}'
FROM json_each(%s)
CROSS JOIN django_ojs_job AS j ON j.rowid = value;

-- parameters: text, text, integer, integer, integer
INSERT INTO django_ojs_countdelta (queue, at, available, active, wait_ms) VALUES (%s, %s, %s, %s, %s);
