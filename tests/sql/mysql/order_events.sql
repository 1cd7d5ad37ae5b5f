-- Committed events get their places in the log.

-- parameters: integer
SELECT `django_ojs_eventlog`.`id`, `django_ojs_eventlog`.`salt`, `django_ojs_eventlog`.`snapshot`,
    `django_ojs_eventlog`.`server`, `django_ojs_eventlog`.`last_seq`, `django_ojs_eventlog`.`pruned_to`,
    `django_ojs_eventlog`.`run`, `django_ojs_eventlog`.`kept_to`, `django_ojs_eventlog`.`changes`
FROM `django_ojs_eventlog`
WHERE `django_ojs_eventlog`.`id` = %s
ORDER BY `django_ojs_eventlog`.`id` ASC
LIMIT 1
FOR UPDATE SKIP LOCKED;

SELECT `django_ojs_event`.`id` AS `id`,
    (
        SELECT coalesce(
            nullif(max(CASE WHEN variable_name = 'WSREP_CLUSTER_STATE_UUID' THEN variable_value END), ''),
            concat(
                @@server_id, '@',
                unix_timestamp() - max(CASE WHEN variable_name = 'UPTIME' THEN variable_value END)
            )
        )
        FROM information_schema.global_status
        WHERE variable_name IN ('UPTIME', 'WSREP_CLUSTER_STATE_UUID')
    ) AS `run`
FROM `django_ojs_event`
WHERE `django_ojs_event`.`seq` IS NULL
ORDER BY 1 ASC
LIMIT 1000;

-- sent once for each row
-- parameters: integer, integer
UPDATE django_ojs_event SET seq = %s WHERE id = %s;

-- parameters: integer, text, integer, integer
UPDATE `django_ojs_eventlog`
SET `last_seq` = %s, `run` = %s, `kept_to` = NULL, `changes` = %s
WHERE `django_ojs_eventlog`.`id` = %s;
