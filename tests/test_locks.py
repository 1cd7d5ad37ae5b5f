"""Every lock of rows is known, and either changes what it locks or is told to (`Store.certify`).

On a Galera cluster a lock binds its own node. What a transaction has changed is compared with what others have changed,
and what it has only locked is not: two nodes would both decide as if they were alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.sources import nodes, trees

#: They change or delete the rows that they lock, or decide by nothing but these: then of two who disagree one has
#: changed them, and the other is refused or comes after it. A new lock that decides by other rows calls `certify`.
CHANGE = {
    "alerts._store", "client.sync.sync", "cron.schedules._change", "cron.schedules.aim_again", "cron.schedules.lock",
    "events.order._pass", "jobs.bulk._advance", "jobs.checkpoints._store", "keys._write_use",
    "lifecycle.transitions.still_fitting", "limits.ratelimits._locked", "limits.ratelimits.block",
    "limits.ratelimits.prune", "outbox._relay", "queues.bounds._locked", "queues.configuration._locked",
    "queues.deletion._delete_if_empty", "queues.maintenance._set_right", "queues.maintenance.end_if_over",
    "queues.maintenance.start", "queues.maintenance.stop",
    "statistics.eventcounts._count_for_workers", "statistics.eventcounts._locked_place",
    "statistics.history._add_to_hour", "statistics.history._move_oldest", "statistics.webhookcounts.count",
    "store.orm._lock_claimable", "store.orm.delete_jobs", "store.orm.hold_keys", "store.orm.lock_members",
    "store.orm.lock_where", "store.orm.moved", "webhooks.deliveries._record_replies", "webhooks.deliveries._take",
    "webhooks.deliveries.record_replies", "webhooks.deliveries.set_right", "webhooks.relay._tell_what_is_lost",
    "webhooks.relay.note_pruned", "webhooks.relay.relay",
    "workerregistry.dead._rescue", "workerregistry.dead.rescue_dead_workers",
    "workerregistry.dead.hand_back", "workerregistry.dead.replace_dead_worker",
    "workerregistry.registration.direct", "workerregistry.registration.locked", "workerregistry.registration.meet",
    "workerregistry.registration.register_many", "workerregistry.registration.seen", "workflows.advance.lock_running",
    "workflows.children._tell", "workflows.workflow._locked",
}  # fmt: skip
#: Behind another lock that does.
BEHIND = {
    "statistics.counters._lock",  # of two who fold the same rows one is refused when it deletes them
    "statistics.counters.fold",
    "store.orm.lock_live",  # the keys are locked
    "store.orm.lock_stripes",  # the store of MariaDB has its own
    "webhooks.deliveries.replay",  # the subscription is locked
}


def locks(path: str) -> Iterator[tuple[str, bool]]:
    """The functions of a module that lock rows, and whether each certifies what it locks."""
    place = path.removesuffix(".py").replace("/", ".")
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef):
            names = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
            if "select_for_update" in names:
                yield f"{place}.{node.name}", "certify" in names


def test_every_lock_changes_what_it_locks_or_is_told_to() -> None:
    found = dict(lock for path in trees() for lock in locks(path))
    assert len(found) > 50
    assert {name for name, certified in found.items() if not certified} == CHANGE | BEHIND
