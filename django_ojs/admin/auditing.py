"""What is done in the admin, in the audit log: verbs (`operate`) and the forms that save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import Model
from django.http import HttpRequest

from django_ojs import audit

#: Kinds of targets and acts that the other doors call otherwise.
_KINDS = {"cronschedule": "cron", "webhooksubscription": "webhook", "webhookdelivery": "webhook",
          "outboxentry": "outbox"}  # fmt: skip
_ACTIONS = {"cron.run": "cron.trigger", "replayrule.enable": "replayrule.set", "replayrule.disable": "replayrule.set"}


def action(model: type[Model], verb: str) -> str:
    """`cancel_jobs` of jobs is `job.cancel`, as the other doors call it."""
    kind, word = str(model._meta.model_name), verb.partition("_")[0]
    found = f"{_KINDS.get(kind, kind)}.{word}"
    return _ACTIONS.get(found, found)


def entry(request: HttpRequest, action: str, target: object = "", **detail: Any) -> audit.Act:
    """What an entry says of an act in the admin."""
    actor = f"user:{request.user.get_username()}"
    return audit.Act(actor, action, str(target), detail, "admin", request.META.get("REMOTE_ADDR", ""))


def name(obj: Any) -> str:
    """What the other doors call an object."""
    return str(getattr(obj, "public_id", obj.pk))


def saved(request: HttpRequest, form: Any, obj: Any, action: str, save: Callable[[], object]) -> None:
    """Save what a form changed, with an entry that names the fields, but not their values."""
    act = entry(request, action)

    def run() -> None:
        save()
        act.target, act.detail = name(obj), {"fields": sorted(form.changed_data)}

    audit.perform(run, act)
