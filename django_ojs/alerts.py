"""Note what needs an operator's attention, and tell of it by event and by mail: when it begins and when it is over.

`check` compares what `doctor.attention` finds with the alerts that are open. The leading scheduler calls it as often as
`OJS["ALERTS"]` says; webhooks get the events by subscribing to `alert.raised` and `alert.cleared`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from collections.abc import Sequence

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import IntegrityError
from django.utils import translation
from django.utils.translation import gettext

from django_ojs import clock, doctor
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, retried
from django_ojs.doctor import Finding
from django_ojs.events import catalogue, log
from django_ojs.faults import only_if_taken
from django_ojs.guard import get_logger
from django_ojs.messages import packed, translated, unpacked
from django_ojs.models import Alert
from django_ojs.rules import alertrules
from django_ojs.rules.alertrules import AlertRules
from django_ojs.rules.durations import format_instant
from django_ojs.store import store_of

logger = get_logger(__name__)

#: Open alerts that a check did not find, each with when it was found last.
Missed = set[tuple[int, dt.datetime]]
#: Alerts that one mail spells out.
SPELLED_OUT = 50
#: Alerts of one kind that are open at once. The scheduler raises further ones of the kind when some of these are over.
MOST = 500


@dataclasses.dataclass(frozen=True, slots=True)
class Changes:
    """What a check found that is new, and what is over since."""

    raised: list[Alert]
    cleared: list[Alert]


def rules() -> AlertRules | None:
    """What the site wants to be alerted of; None where it wants no alerts."""
    return None if ojs_settings.ALERTS is None else alertrules.parse(ojs_settings.ALERTS)


def check(wanted: AlertRules, using: str, missed: Missed) -> Changes:
    """Check once, and store what has changed with its events, and which mails are due (`tell`).

    What comes and goes is one alert: it is over when two checks of the caller, one after the other, do not find it.
    `missed` is what the one before did not find, and is brought up to date. Where a diagnosis failed, what it would
    have found stays as it is.
    """
    found = doctor.attention(doctor.Site(using, rules=wanted))
    try:
        changes, missing = _store(found, wanted, missed, using=using)
    except IntegrityError as error:
        only_if_taken(error)  # another process, which leads by now, has raised the same alert; the next check sees it
        return Changes([], [])
    missed.clear()
    missed.update(missing)
    return changes


def key_of(finding: Finding) -> str:
    """What it is about, for which there is one open alert at most."""
    return f"{finding.id} {finding.about}".strip()[:330]


@retried
def _store(found: Sequence[Finding], wanted: AlertRules, missed: Missed, *, using: str) -> tuple[Changes, Missed]:
    with atomic(using=using):
        store_of(using).begin_writing()
        now = clock.now(using)
        alerts = Alert.objects.using(using)
        there = {str(alert.key): alert for alert in alerts.filter(key__isnull=False).select_for_update()}
        by_key = {key_of(finding): finding for finding in found}
        unseen = doctor.unseen(found)
        there_of = Counter(alert.kind for alert in there.values())
        raised = []
        for key, finding in by_key.items():
            if key in there:
                _see_again(there[key], finding, now)
            elif there_of[finding.id] < MOST:
                there_of[finding.id] += 1
                raised.append(_raised(finding, wanted, now))
        gone = {(alert.pk, alert.seen_at): alert for key, alert in there.items() if key not in by_key}
        missing = {known: alert for known, alert in gone.items() if known in missed or alert.kind not in unseen}
        over = [alert for known, alert in missing.items() if known in missed and alert.kind not in unseen]
        for alert in over:
            alert.key, alert.cleared_at = None, now
            alert.untold = Alert.Untold.CLEARED if wanted.mail_to else ""
        for alert in raised:  # one by one: MariaDB returns no ids of many
            alert.save(using=using, force_insert=True)
        alerts.bulk_update(
            there.values(), ["key", "says", "mend", "phrases", "figures", "seen_at", "cleared_at", "untold"]
        )  # fmt: skip
        events = [("alert.raised", alert) for alert in raised] + [("alert.cleared", alert) for alert in over]
        log.append([_event(kind, alert, now) for kind, alert in events], using)
    return Changes(raised, over), set(missing)


def _raised(finding: Finding, wanted: AlertRules, now: dt.datetime) -> Alert:
    alert = Alert(key=key_of(finding), kind=finding.id, about=finding.about[:255], raised_at=now)
    alert.untold = Alert.Untold.RAISED if wanted.mail_to else ""
    _see_again(alert, finding, now)
    return alert


def _see_again(alert: Alert, finding: Finding, now: dt.datetime) -> None:
    alert.says, alert.mend, alert.figures, alert.seen_at = str(finding.says), str(finding.mend), finding.figures, now
    alert.phrases = {"says": packed(finding.says), "mend": packed(finding.mend)}


def texts(alert: Alert) -> tuple[str, str]:
    """What was found and what to do about it, in the language that is active."""
    phrases = alert.phrases or {}
    says, mend = (unpacked(phrases.get(name, text)) for name, text in (("says", alert.says), ("mend", alert.mend)))
    return translated(says), translated(mend)


def _event(type: str, alert: Alert, now: dt.datetime) -> catalogue.Record:
    return catalogue.of_alert(
        type, now, alert_id=str(alert.pk), kind=alert.kind, about=alert.about, says=alert.says,
        mend=alert.mend, raised_at=format_instant(alert.raised_at), figures=alert.figures,
    )  # fmt: skip


# Mail


def tell(wanted: AlertRules, using: str) -> bool:
    """Send one mail about all alerts that no mail has reported yet; False where there are none. The next mail reports
    what changes meanwhile. Raises what the site's mail backend raises; the alerts are still to be reported then."""
    untold = list(Alert.objects.using(using).exclude(untold="").order_by("pk"))
    if not untold:
        return False
    mail(untold, wanted).send()
    for word in Alert.Untold.values:
        told = [alert.pk for alert in untold if alert.untold == word]
        Alert.objects.using(using).filter(pk__in=told, untold=word).update(untold="")
    return True


def mail(alerts: Sequence[Alert], wanted: AlertRules) -> EmailMessage:
    """The mail about these alerts in the site's language, to the recipients that it names, from its
    `DEFAULT_FROM_EMAIL`."""
    with translation.override(settings.LANGUAGE_CODE):
        return _mail(alerts, wanted)


def _mail(alerts: Sequence[Alert], wanted: AlertRules) -> EmailMessage:
    open_now = [alert for alert in alerts if alert.cleared_at is None]
    over = [alert for alert in alerts if alert.cleared_at is not None]
    first = (open_now or over)[0]
    subject = f"{_title(first)}{f': {first.about}' if first.about else ''}"
    if not open_now:
        subject = gettext("Over: %(subject)s") % {"subject": subject}
    if len(alerts) > 1:
        subject += gettext(" (and %(number)s more)") % {"number": len(alerts) - 1}
    parts = [_paragraph(alert) for alert in (*open_now, *over)[:SPELLED_OUT]]
    if len(alerts) > SPELLED_OUT:
        parts.append(
            gettext("And %(number)s more: see the alerts in the admin.") % {"number": len(alerts) - SPELLED_OUT}
        )
    service = ojs_settings.SERVICE_NAME
    return EmailMessage(f"[{service}] {' '.join(subject.split())}", "\n\n".join(parts) + "\n", to=list(wanted.mail_to))


def _paragraph(alert: Alert) -> str:
    says, mend = texts(alert)
    facts = {"since": format_instant(alert.raised_at), "kind": alert.kind}
    if alert.cleared_at is not None:
        facts["over"] = format_instant(alert.cleared_at)
        return gettext("Over since %(over)s (it began %(since)s):") % facts + f"\n{says}"
    return f"{says}\n{mend}\n" + gettext("Found %(since)s [%(kind)s].") % facts


def _title(alert: Alert) -> str:
    return translated(doctor.TITLES.get(alert.kind, doctor.TITLES["check"]))
