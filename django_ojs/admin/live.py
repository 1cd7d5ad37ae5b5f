"""How a page stays as it is on the server: what `live.js` is told in attributes of the part that changes.

The server renders that part. The script asks for it when an event says that something happened, and now and then for
what changes without one; where there is no WebSocket, or this user may read no events, it asks more often instead.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.forms.utils import flatatt
from django.http import HttpRequest
from django.utils.safestring import SafeString

from django_ojs.http import sockets

#: Seconds between two questions without the WebSocket, and with it, for ages and heartbeats.
POLLING, FOLLOWING = 2.0, 15.0
#: Milliseconds after an event in which no other is sent: one is as good as a thousand to who asks for the page.
INTERVAL = 500

#: What changes the numbers of the overview. No heartbeats: they come all the time.
OVERVIEW = (
    "job.state_changed", "dead_letter.retried", "dead_letter.replayed", "dead_letter.deleted", "dead_letter.pruned",
    "queue.*", "queue.created", "queue.config_updated", "queue.deleted",
    "worker.registered", "worker.started", "worker.quiet", "worker.stopped", "worker.terminated", "cron.*",
)  # fmt: skip
DEAD_LETTERS = (
    "job.discarded", "dead_letter.retried", "dead_letter.replayed", "dead_letter.deleted", "dead_letter.pruned",
)  # fmt: skip
#: Of one worker, for what it holds. They cannot be filtered by worker.
WORKER = (
    "job.state_changed", "worker.registered", "worker.started", "worker.quiet", "worker.stopped", "worker.terminated",
)  # fmt: skip
WORKFLOW = ("job.state_changed", "workflow.*", "workflow.cancelled")
JOB = (
    "job.*", "job.state_changed", "job.timeout", "job.stalled", "dead_letter.retried", "dead_letter.replayed",
    "priority.changed", "result.pruned",
)  # fmt: skip


def follow(
    request: HttpRequest, url: str, types: Sequence[str], *, age: float = 0.0, every: float = POLLING, **only: Any
) -> SafeString:
    """The attributes of the part at `url`: it changes with events of these types, of the jobs or workflows in `only`.

    Args:
        age: seconds for which the server may show what it has shown before.
        every: seconds between two questions where events are not to be had.
    """
    told = {"data-ojs-live": url, "data-ojs-age": _ms(age), "data-ojs-every": _ms(every)}
    if socket := sockets.address(request):
        asked = {"event_types": list(types), **{name: [str(value)] for name, value in only.items()}}
        subscription = {
            "action": "subscribe", "channel": "events", "filter": asked, "min_interval_ms": INTERVAL
        }  # fmt: skip
        told |= {
            "data-ojs-socket": socket, "data-ojs-subscribe": json.dumps(subscription),
            "data-ojs-interval": str(INTERVAL), "data-ojs-following": _ms(FOLLOWING),
        }  # fmt: skip
    return flatatt(told)


def _ms(seconds: float) -> str:
    return str(round(seconds * 1000))
