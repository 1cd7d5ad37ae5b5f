-- What time brings: scheduled jobs that are due become available.

-- parameters: integer
SELECT %s AS "a" FROM "django_ojs_maintenance" LIMIT 1;

-- parameters: text
SELECT "django_ojs_job"."id" AS "f1", "django_ojs_job"."type" AS "f2", "django_ojs_job"."queue" AS "f3",
    "django_ojs_job"."state" AS "f4", "django_ojs_job"."priority" AS "f5", "django_ojs_job"."attempt" AS "f6",
    "django_ojs_job"."max_attempts" AS "f7", "django_ojs_job"."uncounted" AS "f8",
    "django_ojs_job"."round" AS "f9", "django_ojs_job"."args" AS "expressionwrapper9",
    "django_ojs_job"."meta" AS "expressionwrapper10", "django_ojs_job"."extra" AS "expressionwrapper11",
    "django_ojs_job"."retry" AS "f11", "django_ojs_job"."timeout_ms" AS "f12",
    "django_ojs_job"."visibility_ms" AS "f13", "django_ojs_job"."heartbeat_ms" AS "f14",
    "django_ojs_job"."grace_ms" AS "f15", "django_ojs_job"."trace_id" AS "f16",
    "django_ojs_job"."created_at" AS "f17", "django_ojs_job"."enqueued_at" AS "f18",
    "django_ojs_job"."due_at" AS "f19", "django_ojs_job"."expires_at" AS "f20",
    "django_ojs_job"."start_by" AS "f21", "django_ojs_job"."deadline_at" AS "f22",
    "django_ojs_job"."activated_at" AS "f23", "django_ojs_job"."started_at" AS "f24",
    "django_ojs_job"."finished_at" AS "f25", "django_ojs_job"."visible_until" AS "f26",
    "django_ojs_job"."timeout_at" AS "f27", "django_ojs_job"."wake_at" AS "f28",
    "django_ojs_job"."worker_id" AS "f29", "django_ojs_job"."lease_ms" AS "f30",
    "django_ojs_job"."losses" AS "f31", "django_ojs_job"."suspected" AS "f32",
    "django_ojs_job"."resumable" AS "f33", "django_ojs_job"."retry_delay_ms" AS "f34",
    "django_ojs_job"."errors" AS "expressionwrapper34", "django_ojs_job"."result" AS "expressionwrapper35",
    "django_ojs_job"."result_ttl" AS "f35", "django_ojs_job"."dead_letter" AS "f36",
    "django_ojs_job"."unique_key" AS "f37", "django_ojs_job"."workflow_id" AS "f38",
    "django_ojs_job"."parent_id" AS "f39", "django_ojs_job"."rate_key" AS "f40",
    "django_ojs_job"."rate_limit" AS "f41"
FROM "django_ojs_job"
WHERE "django_ojs_job"."wake_at" <= %s
LIMIT 500;
