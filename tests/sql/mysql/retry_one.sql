-- An operator retries one job that was discarded.

-- parameters: uuid
SELECT `django_ojs_job`.`id` AS `f1`, `django_ojs_job`.`type` AS `f2`, `django_ojs_job`.`queue` AS `f3`,
    `django_ojs_job`.`state` AS `f4`, `django_ojs_job`.`priority` AS `f5`, `django_ojs_job`.`attempt` AS `f6`,
    `django_ojs_job`.`max_attempts` AS `f7`, `django_ojs_job`.`uncounted` AS `f8`,
    `django_ojs_job`.`round` AS `f9`, `django_ojs_job`.`args` AS `expressionwrapper9`,
    `django_ojs_job`.`meta` AS `expressionwrapper10`, `django_ojs_job`.`extra` AS `expressionwrapper11`,
    `django_ojs_job`.`retry` AS `f11`, `django_ojs_job`.`timeout_ms` AS `f12`,
    `django_ojs_job`.`visibility_ms` AS `f13`, `django_ojs_job`.`heartbeat_ms` AS `f14`,
    `django_ojs_job`.`grace_ms` AS `f15`, `django_ojs_job`.`trace_id` AS `f16`,
    `django_ojs_job`.`created_at` AS `f17`, `django_ojs_job`.`enqueued_at` AS `f18`,
    `django_ojs_job`.`due_at` AS `f19`, `django_ojs_job`.`expires_at` AS `f20`,
    `django_ojs_job`.`start_by` AS `f21`, `django_ojs_job`.`deadline_at` AS `f22`,
    `django_ojs_job`.`activated_at` AS `f23`, `django_ojs_job`.`started_at` AS `f24`,
    `django_ojs_job`.`finished_at` AS `f25`, `django_ojs_job`.`visible_until` AS `f26`,
    `django_ojs_job`.`timeout_at` AS `f27`, `django_ojs_job`.`wake_at` AS `f28`,
    `django_ojs_job`.`worker_id` AS `f29`, `django_ojs_job`.`lease_ms` AS `f30`,
    `django_ojs_job`.`losses` AS `f31`, `django_ojs_job`.`suspected` AS `f32`,
    `django_ojs_job`.`resumable` AS `f33`, `django_ojs_job`.`retry_delay_ms` AS `f34`,
    `django_ojs_job`.`errors` AS `expressionwrapper34`, `django_ojs_job`.`result` AS `expressionwrapper35`,
    `django_ojs_job`.`result_ttl` AS `f35`, `django_ojs_job`.`dead_letter` AS `f36`,
    `django_ojs_job`.`unique_key` AS `f37`, `django_ojs_job`.`workflow_id` AS `f38`,
    `django_ojs_job`.`parent_id` AS `f39`, `django_ojs_job`.`rate_key` AS `f40`,
    `django_ojs_job`.`rate_limit` AS `f41`
FROM `django_ojs_job`
WHERE `django_ojs_job`.`id` IN (%s)
ORDER BY `django_ojs_job`.`id` ASC
FOR UPDATE;

-- parameters: uuid, text, text, text
SELECT `django_ojs_job`.`parent_id` AS `parent_id`, `django_ojs_job`.`id` AS `pk`
FROM `django_ojs_job`
WHERE (
    `django_ojs_job`.`parent_id` IN (%s)
      AND NOT (`django_ojs_job`.`state` IN (%s, %s))
      AND (
          SELECT U0.`id` AS `pk`
          FROM `django_ojs_jobstep` U0
          WHERE (U0.`event_name` IS NULL AND U0.`kind` = %s AND U0.`job_id` = (`django_ojs_job`.`id`))
          ORDER BY U0.`name` ASC
          LIMIT 1
      ) IS NOT NULL
);

-- parameters: uuid, text
SELECT `django_ojs_job`.`queue` AS `queue`, `django_ojs_job`.`state` AS `state`,
    `django_ojs_job`.`dead_letter` AS `dead_letter`
FROM `django_ojs_job`
WHERE (`django_ojs_job`.`id` IN (%s) AND `django_ojs_job`.`state` IN (%s))
FOR UPDATE;

-- parameters: text, text, text, integer, integer, text, text, boolean, integer, text, text, text, text,
-- integer, integer, text, text, text, text, text, uuid
UPDATE `django_ojs_job`
SET `state` = %s, `enqueued_at` = %s, `due_at` = NULL, `wake_at` = NULL, `started_at` = NULL,
    `worker_id` = %s, `visible_until` = NULL, `timeout_at` = NULL, `uncounted` = NULL, `suspected` = NULL,
    `attempt` = %s, `round` = %s, `errors` = %s, `extra` = %s, `finished_at` = NULL, `dead_letter` = %s,
    `retry_delay_ms` = NULL, `losses` = %s, `expires_at` = NULL, `start_by` = NULL, `deadline_at` = NULL,
    `queue` = %s, `args` = %s, `meta` = %s, `retry` = %s, `priority` = %s, `max_attempts` = %s,
    `trace_id` = %s, `rate_key` = %s, `unique_key` = %s
WHERE (CONCAT_WS('', `django_ojs_job`.`state`, %s) IN (%s) AND `django_ojs_job`.`id` IN (%s));

-- parameters: integer, integer, integer, integer, integer, integer, integer, integer, integer, text, text,
-- integer, integer, integer
INSERT INTO `django_ojs_countdelta` (
    `scheduled`, `available`, `pending`, `active`, `completed`, `retryable`, `cancelled`, `discarded`, `dead`,
    `queue`, `at`, `failed`, `run_ms`, `wait_ms`
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
RETURNING `django_ojs_countdelta`.`scheduled`, `django_ojs_countdelta`.`available`,
    `django_ojs_countdelta`.`pending`, `django_ojs_countdelta`.`active`, `django_ojs_countdelta`.`completed`,
    `django_ojs_countdelta`.`retryable`, `django_ojs_countdelta`.`cancelled`,
    `django_ojs_countdelta`.`discarded`, `django_ojs_countdelta`.`dead`, `django_ojs_countdelta`.`id`,
    `django_ojs_countdelta`.`failed`, `django_ojs_countdelta`.`run_ms`, `django_ojs_countdelta`.`wait_ms`;

-- parameters: null, null, text, text, text, text, uuid, text, text, text, integer, text, text, null, text,
-- null, null, text, text, text, text, uuid, text, text, text, integer, text, text, null, text
INSERT INTO `django_ojs_event` (
    `txid`, `seq`, `type`, `time`, `component`, `subject`, `job_id`, `job_type`, `queue`, `state`, `attempt`,
    `worker_id`, `trace_id`, `workflow_id`, `data`
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s),
    (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
RETURNING `django_ojs_event`.`id`;
