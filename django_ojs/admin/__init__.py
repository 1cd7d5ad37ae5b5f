"""The engine in Django's admin: look at everything, and act through the operations of the spec only."""

from django_ojs.admin import (  # noqa: F401 - each registers its models
    apikey,
    approval,
    attention,
    bulkaction,
    cron,
    deadletters,
    event,
    job,
    outbox,
    queue,
    ratelimit,
    records,
    webhook,
    worker,
    workflow,
)
