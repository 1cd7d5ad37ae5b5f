"""A process that claims jobs and runs none: `python -m tests.processes.claim NAME`.

It says `ready`, waits for a line, and prints the id of every job it was given.
"""

import sys

import django

if __name__ == "__main__":
    django.setup()
    from django_ojs.operations.fetch import fetch

    name = sys.argv[1]
    fetch(["nothing"], worker_id=name)  # connected, and known to the server
    print("ready", flush=True)
    sys.stdin.readline()
    while rows := fetch(["default"], count=7, worker_id=name):
        print("\n".join(str(row["id"]) for row in rows), flush=True)
