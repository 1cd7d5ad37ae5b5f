"""The dead letter queue for operators, and the rules that retry it: `/admin/dead-letter` (admin 1.7). Bulk acts are
in `adminbulk`."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import states
from django_ojs.errors import NotFound, PermissionDenied
from django_ojs.http import fields, overriding, permissions
from django_ojs.http.adminbulk import DeadLetterPurge
from django_ojs.http.auditing import audited
from django_ojs.http.base import AdminView
from django_ojs.http.bulkbody import said
from django_ojs.http.deadletter import dead_by_queue, dead_letters, listed, meant
from django_ojs.http.joblists import Base, listing
from django_ojs.http.jobserializers import detail
from django_ojs.http.permissions import type_limit
from django_ojs.jobs import replay
from django_ojs.jobs.info import info
from django_ojs.jobs.search import FEW
from django_ojs.jobs.verbs import delete_one, is_dead_letter, not_revived, retry_one
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.rules import replayrules
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import fault
from django_ojs.rules.replayrules import Rule
from django_ojs.statistics import failures

RESOURCE = "dead_letter_job"
RULE = "replay_rule"


class DeadLetterRoot(DeadLetterPurge):
    """`GET /admin/dead-letter`: the filters of `/admin/jobs`, newest end first. `DELETE`: all that are meant."""

    http_method_names = ["get", "head", "delete", "options"]
    scopes = {"GET": "admin.read", "DELETE": "admin.purge"}
    rights = {"GET": "view_job", "DELETE": "delete_job"}

    def get(self, request: Request) -> Response:
        found, letters, narrowed = meant(request)
        base: Base | None = {"finished_at": (dead_letters(), found)} if letters > FEW else None
        total = None if narrowed else letters
        return listed(listing(request, found, total, base, default="finished_at", columns=None))


class AdminDeadLetterStats(AdminView):
    """`GET /admin/dead-letter/stats`: how many there are by queue, and the newest 10,000 by type and error."""

    scopes = {"GET": "admin.read"}
    rights = {"GET": "view_job"}

    def get(self, request: Request) -> Response:
        jobs: QuerySet[Job] = dead_letters().filter(permissions.visible(request))
        found = failures.dead_letters(jobs)
        by_queue = dead_by_queue(request, "")
        if type_limit(request) is not None:  # the counts know no types
            by_queue = {}
            found["total"] = found["looked_at"]
        total = found.pop("total", sum(by_queue.values()))
        times = {name: format_instant(found[name]) if found[name] else None for name in ("oldest_at", "newest_at")}
        return Response({"total": total, "by_queue": by_queue, **found, **times})


class AdminDeadLetterDetail(AdminView):
    """`GET` and `DELETE /admin/dead-letter/{id}`"""

    scopes = {"GET": "admin.read", "DELETE": "admin.purge"}
    rights = {"GET": "view_job", "DELETE": "delete_job"}

    def get(self, request: Request, job_id: str) -> Response:
        return Response(detail(_find(request, job_id)))

    @audited("job.delete")
    def delete(self, request: Request, job_id: str) -> Response:
        delete_one(_find(request, job_id)["id"])
        return Response(status=204)


class AdminDeadLetterRetry(AdminView):
    """`POST /admin/dead-letter/{id}/retry`: available again, as if it had never run; `override` may change the job."""

    scopes = {"POST": "admin.write"}
    rights = {"POST": "change_job"}

    @audited("job.retry")
    def post(self, request: Request, job_id: str) -> Response:
        body = fields.only(self.payload(required=False), "override", "reason", "confirm")
        override = overriding.read(request, body)
        row = _find(request, job_id)
        self.act.detail |= said(body) | {"override": sorted(override or {})}
        return Response(detail(retry_one(row["id"], override=override)))


class ReplayRules(AdminView):
    """`GET /admin/dead-letter/replay-rules`: the rules that retry dead letters, in the order in which they are
    asked."""

    scopes = {"GET": "admin.read"}
    rights = {"GET": "view_replayrule"}

    def get(self, request: Request) -> Response:
        found = [_rule_facts(rule) for rule in replay.rules() if _may_touch(request, rule)]
        standing = {"total": len(found), "limit": replayrules.MAX_RULES, "offset": 0, "has_more": False}
        standing |= {"page": 1, "per_page": replayrules.MAX_RULES}
        return Response({"items": found, "replay_rules": found, "pagination": standing})


class ReplayRuleView(AdminView):
    """What the views of one rule share: a caller whose key is limited may only touch rules within its limits."""

    def rule(self, name: str) -> Rule:
        """The rule in the path. Raises NotFound or PermissionDenied."""
        rule = replay.find(name)
        self.check(rule)
        return rule

    def check(self, rule: Rule) -> None:
        _check_limits(self.request, rule)


class ReplayRuleDetail(ReplayRuleView):
    """`GET`, `PUT` and `DELETE /admin/dead-letter/replay-rules/{name}`; `PUT` replaces a rule in its place."""

    scopes = {"GET": "admin.read", "PUT": "admin.write", "DELETE": "admin.write"}
    rights = {"GET": "view_replayrule", "PUT": "change_replayrule", "DELETE": "delete_replayrule"}

    def get(self, request: Request, name: str) -> Response:
        return Response(_rule_facts(self.rule(name)))

    @audited("replayrule.set")
    def put(self, request: Request, name: str) -> Response:
        body = self.payload()
        if body.get("name", name) != name:
            raise fault("name", "must be the name in the path, or absent", body["name"])
        rule = replayrules.parse({**body, "name": name})
        self.check(rule)
        with contextlib.suppress(NotFound):
            self.rule(name)  # a caller may not replace what it may not touch
        new = replay.put(rule)
        self.act.detail["rule"] = rule.facts()
        return Response(_rule_facts(rule), status=201 if new else 200)

    @audited("replayrule.delete")
    def delete(self, request: Request, name: str) -> Response:
        self.rule(name)
        replay.delete(name)
        return Response(status=204)


class ReplayRulePreview(ReplayRuleView):
    """`POST /admin/dead-letter/replay-rules/{name}/preview`: how many dead letters a rule is for, and how many of them
    are due. Nothing is changed."""

    scopes = {"POST": "admin.write"}
    rights = {"POST": "change_replayrule"}

    def post(self, request: Request, name: str) -> Response:
        self.payload(required=False)
        rule = self.rule(name)
        return Response({"name": rule.name, **dataclasses.asdict(replay.preview(rule))})


def _rule_facts(rule: Rule) -> dict[str, Any]:
    return rule.facts() | {"source": rule.source}


def _check_limits(request: Request, rule: Rule) -> None:
    permissions.check_row(request, {name: rule.filter.get(name, "") for name in ("queue", "type")})


def _may_touch(request: Request, rule: Rule) -> bool:
    try:
        _check_limits(request, rule)
    except PermissionDenied:
        return False
    return True


def _find(request: Request, text: str) -> JobRow:
    """A dead letter. A job that is none is not found, but one that lives is named with its state."""
    row = info(fields.path_id(text, RESOURCE))
    permissions.check_row(request, row)
    if is_dead_letter(row):
        return row
    error = not_revived(row)
    if error and request.method == "POST" and row["state"] in states.LIVE:
        raise error
    raise NotFound.resource(RESOURCE, text)
