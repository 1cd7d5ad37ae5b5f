"""A process that claims jobs and runs none: `python -m tests.processes.claim NAME`.

It says `ready`, waits for a line, and prints the id of every job it was given, until it was given none so many times
in a row: `python -m tests.processes.claim NAME TIMES`, once by default.
"""

import sys

import django

if __name__ == "__main__":
    django.setup()
    from django_ojs.jobs.fetch import Fetch, fetch

    name = sys.argv[1]
    fetch(Fetch(["nothing"], worker_id=name))  # connected, and known to the server
    print("ready", flush=True)
    sys.stdin.readline()
    left = patience = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    while left:
        rows = fetch(Fetch(["default"], count=7, worker_id=name))
        left = patience if rows else left - 1
        for row in rows:
            print(row["id"], flush=True)
