"""A process that saves checkpoints of jobs: `python -m tests.processes.saving ROUNDS WORKER JOB...`.

It says `ready`, and waits for a line. Then it saves one of each job in turn, and prints the sequences that it was
given.
"""

import json
import sys
import uuid

import django

if __name__ == "__main__":
    django.setup()
    from django_ojs.jobs import checkpoints
    from django_ojs.jobs.checkpoints import NewCheckpoint
    from django_ojs.models import Job

    rounds, worker = int(sys.argv[1]), sys.argv[2]
    jobs = [uuid.UUID(text) for text in sys.argv[3:]]
    Job.objects.exists()  # connected
    print("ready", flush=True)
    sys.stdin.readline()
    given: dict[str, list[int]] = {str(job_id): [] for job_id in jobs}
    for number in range(rounds):
        for job_id in jobs:
            saved = checkpoints.save(NewCheckpoint(job_id, {"by": worker, "n": number}, worker_id="w"))
            given[str(job_id)].append(saved.sequence)
    print(json.dumps(given), flush=True)
