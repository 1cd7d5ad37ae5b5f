"""A process that pushes unique jobs of few keys in many ways: `python -m tests.processes.pushunique SEED ROUNDS`.

It says `ready`, and waits for a line. Then it pushes one job or some together, in transactions of its own or in one
that it commits or rolls back, and between them cancels jobs, so that their keys are free again.
"""

import random
import sys
from typing import Any

import django

KEYS = 4

if __name__ == "__main__":
    django.setup()
    from django.db import transaction

    from django_ojs.database import retried
    from django_ojs.jobs.cancel import cancel
    from django_ojs.jobs.push import push_each
    from django_ojs.models import Job

    chance = random.Random(int(sys.argv[1]))

    def document(key: int) -> dict[str, Any]:
        policy = {"keys": ["args"], "on_conflict": chance.choice(["reject", "ignore", "replace"])}
        return {"type": "a.b", "args": [key], "unique": policy}

    @retried  # as any caller with a transaction of its own has to
    def push_in_own(documents: list[dict[str, Any]], *, using: str) -> None:
        with transaction.atomic(using=using):
            push_each(documents, using=using)
            transaction.set_rollback(chance.random() < 0.3, using=using)

    Job.objects.exists()  # connected
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(int(sys.argv[2])):
        documents = list(map(document, chance.sample(range(KEYS), chance.randint(1, KEYS))))
        match chance.randrange(5):
            case 0:
                push_in_own(documents[:1], using="default")
            case 1:
                live = Job.objects.live().values_list("pk", flat=True)
                cancel(list(live)[: chance.randrange(1, KEYS)])
            case 2:
                push_each(documents)
            case _:
                push_each(documents[:1])
