"""Writes to those whom durable jobs ask, and lets a link of such a mail decide without a login.

The scheduler sends the mails, so neither a handler nor who delegates waits for a mail server. Where the server fails
between two mails, the next try leaves out who has the mail. One that was sent as the process ended may be sent again.

A link is for one approval, one asking of it (`approvals.asking_of`) and one user. It decides once, because a decision
ends the approval. It is refused after the time of `OJS["APPROVAL_MAIL"]`, after the approval was given to others or
asked again, and once the user is inactive or has another password or mail address. Its token stands behind the `#` of
its address, so browsers send it to no server and into no `Referer`. No row and no log has it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import smtplib
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core import mail as site_mail
from django.core import signing
from django.core.mail import EmailMessage
from django.urls import reverse
from django.utils import translation
from django.utils.crypto import constant_time_compare, salted_hmac
from django.utils.formats import date_format
from django.utils.timezone import localtime
from django.utils.translation import gettext

from django_ojs import audit, clock
from django_ojs.audit import Act
from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.errors import NotFound, OJSError, PermissionDenied
from django_ojs.guard import get_logger, words_of
from django_ojs.jobs import approvals
from django_ojs.jobs.approvals import Decider, Kind
from django_ojs.messages import phrase
from django_ojs.models import Approval, ApprovalAssignee, AuditEntry
from django_ojs.rules.approvals import ApprovalMail, ApprovalState, parse_mail

logger = get_logger(__name__)

#: Approvals of one pass, and users to whom one approval is mailed.
BATCH, MOST_MAILS = 50, 200
_SALT = "django_ojs.approval"
MAX_TOKEN = 1000
#: What is wrong with one mail and not with the mail server: it would hold the others for ever.
_OF_ONE = (smtplib.SMTPRecipientsRefused, smtplib.SMTPDataError, ValueError)


class SentMails:
    """Who has the mails of approvals whose other mails could not be sent yet. One that asks a user by name has a row
    that tells; this is for members of groups and for who has a permission."""

    def __init__(self) -> None:
        self._sent: dict[tuple[uuid.UUID, str], set[str]] = {}

    def of(self, approval: Approval) -> set[str]:
        """The primary keys of those who have the mail of this asking."""
        return self._sent.setdefault((approval.pk, approvals.asking_of(approval)), set())

    def forget(self) -> None:
        self._sent.clear()


def tell(mail: ApprovalMail, sent: SentMails | None = None, *, using: str | None = None) -> int:
    """Send the mails that are due, over one connection; return for how many approvals. Raises what the site's mail
    backend raises: those that were not sent are due then, and `sent` has the others."""
    using, sent = database(using), sent or SentMails()
    due = Approval.objects.using(using).filter(state=ApprovalState.OPEN, mail_due=True)
    found = list(due.order_by("requested_at")[:BATCH].prefetch_related("assignees"))
    if found:
        with _connection() as connection:
            for approval in found:
                _tell(approval, mail, connection, sent.of(approval), using)
    if len(found) < BATCH:  # nothing is due any more
        sent.forget()
    return len(found)


def _connection() -> Any:
    """The site's mail backend. Django 6.1 calls it a mailer."""
    return site_mail.mailers.default if hasattr(site_mail, "mailers") else site_mail.get_connection()


def _tell(approval: Approval, mail: ApprovalMail, connection: Any, sent: set[str], using: str) -> None:
    asked = list(approval.assignees.all())
    untold = [one for one in asked if not one.told]
    told = ApprovalAssignee.objects.using(using).filter(pk__in=[one.pk for one in untold])
    has = sent | {one.key for one in asked if one.told and one.kind == Kind.USER}
    people = [user for user in _people(untold, everybody=not asked) if str(user.pk) not in has]
    for user in people[:MOST_MAILS]:
        entry = _entry(approval, user)
        try:
            connection.send_messages([message(approval, user, mail)])
        except _OF_ONE as error:
            if getattr(error, "smtp_code", 500) < 500:  # for now
                raise
            entry.outcome = AuditEntry.Outcome.DENIED.value
            entry.detail["error"] = words_of(error)
            logger.warning("The mail about the approval %s to user:%s cannot be sent: %s",
                           approval.pk, user.get_username(), words_of(error))  # fmt: skip
        sent.add(str(user.pk))
        has_mail = told.filter(kind=Kind.USER, key=str(user.pk))
        audit.perform(partial(has_mail.update, told=True), entry, using=using)
    if len(people) > MOST_MAILS:
        logger.warning(
            "The approval %s asks %d users; %d of them got a mail.", approval.pk, len(people), MOST_MAILS
        )  # fmt: skip
    told.update(told=True)
    same = Approval.objects.using(using).filter(pk=approval.pk, changes=approval.changes)
    same.update(mail_due=False)  # who was asked meanwhile is due


def _entry(approval: Approval, user: Any) -> Act:
    """What the audit log says of a mail: to whom, at which address, and about what."""
    about = {"name": approval.name, "job_id": str(approval.job_id)}
    to = {"to": f"user:{user.get_username()}", "address": _address(user)}
    return Act("scheduler", "approval.mail", str(approval.pk), {**to, **about}, door="scheduler")


def _people(asked: list[ApprovalAssignee], *, everybody: bool) -> list[Any]:
    """The active users with an address among these, each once, by their primary keys."""
    found = {user.pk: user for one in asked for user in _users(one.kind, one.key)}
    if everybody:
        found = {user.pk: user for user in _users(Kind.PERMISSION, approvals.DECIDE)}
    return [user for _, user in sorted(found.items()) if user.is_active and _address(user)]


def _users(kind: str, key: str) -> Iterator[Any]:
    model: Any = get_user_model()
    users = model._default_manager
    if kind == Kind.USER:
        yield from users.filter(pk=key)
    elif kind == Kind.GROUP:
        if hasattr(model, "groups"):
            yield from users.filter(groups__pk=key)[: MOST_MAILS + 1]
    else:
        yield from users.filter(approvals.holders(key, superusers=False))[: MOST_MAILS + 1]


def _address(user: Any) -> str:
    return str(getattr(user, user.get_email_field_name(), "") or "")


def message(approval: Approval, user: Any, mail: ApprovalMail) -> EmailMessage:
    """The mail to this user, in the site's language. It has no details of the approval: those may be confidential."""
    with translation.override(settings.LANGUAGE_CODE):
        title = " ".join(approval.title.split())
        lines = [title, gettext("A job of the type %(type)s waits for your decision.") % {"type": approval.type}]
        if approval.due_at is not None:
            lines.append(gettext("It can be decided until %(when)s.") % {"when": _when(approval.due_at)})
        page = reverse("admin:django_ojs_approval_decide", args=[approval.pk])
        lines.append(gettext("Decide it in the admin:") + f"\n{mail.site}{page}")
        if mail.links is not None:
            until = {"when": _when(clock.now() + mail.links)}
            link = f"{mail.site}{reverse('admin:django_ojs_approval_link')}#{token(approval, user)}"
            lines.append(gettext("Or without a login, until %(when)s:") % until + f"\n{link}")
            lines.append(gettext("Whoever has this link can decide in your name. Do not pass it on."))
        subject = f"[{ojs_settings.SERVICE_NAME}] {title}"
        return EmailMessage(subject, "\n\n".join(lines) + "\n", to=[_address(user)])


def _when(moment: Any) -> str:
    local = localtime(moment) if settings.USE_TZ else moment
    return f"{date_format(local, 'DATETIME_FORMAT')} {local.tzname() or ''}".strip()


# Links


@dataclasses.dataclass(frozen=True, slots=True)
class DecisionLink:
    """What a link may decide, and for whom."""

    approval: Approval
    decider: Decider


def token(approval: Approval, user: Any) -> str:
    """What a link to decide this approval, as it is asked now, has for this user."""
    facts = [approval.pk.hex, approvals.asking_of(approval), str(user.pk), _seal(user, settings.SECRET_KEY)]
    return signing.dumps(facts, salt=_SALT)


def lasting() -> dt.timedelta:
    """For how long a link decides. Raises NotFound where the site allows none."""
    mail = parse_mail(ojs_settings.APPROVAL_MAIL)
    if mail is None or mail.links is None:
        raise NotFound(phrase("This link is not valid."))
    return mail.links


def read(token: str, *, using: str | None = None) -> DecisionLink:
    """The approval of a link, open or not, and who decides by it.

    Raises NotFound where no link has this token, where it is too old, and where the site allows none; PermissionDenied
    where its user is not asked (any more), or has another password or mail address by now. Where the token is one of
    ours, the details name the `approval_id` and the `principal`.
    """
    try:
        if len(token) > MAX_TOKEN:
            raise signing.BadSignature
        key, asked, user_pk, seal = signing.loads(token, salt=_SALT)
    except (signing.BadSignature, ValueError) as error:  # ValueError: a token of an older release
        raise _useless() from error
    user: Any = get_user_model()._default_manager.filter(pk=user_pk).first()
    approval_id = uuid.UUID(key)
    name = f"user:{user_pk}" if user is None else Decider.of(user).name  # the key of one who is gone
    who = Decider(name, user, asking=asked)  # a superuser, too, only while it asks that user
    try:
        return _read(token, approval_id, who, seal, database(using))
    except OJSError as error:
        error.details = {**error.details, "approval_id": str(approval_id), "principal": who.name}
        raise


def _useless() -> NotFound:
    return NotFound(phrase("This link is not valid, or too old."))


def _read(token: str, approval_id: uuid.UUID, who: Decider, seal: str, using: str) -> DecisionLink:
    try:
        signing.loads(token, salt=_SALT, max_age=lasting())
    except signing.SignatureExpired as error:
        raise _useless() from error
    approval = approvals.read(approval_id, using=using)
    if who.user is None or not who.user.is_active:
        raise PermissionDenied(phrase("This approval does not ask you any more."))
    secrets = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    if not any(constant_time_compare(seal, _seal(who.user, secret)) for secret in secrets):
        raise PermissionDenied(phrase("Your account has changed since this link was sent."))
    who.check(approval, using)
    return DecisionLink(approval, who)


def _seal(user: Any, secret: str | bytes) -> str:
    """What changes with the user's password and mail address."""
    facts = f"{user.password}\0{_address(user)}"
    return str(salted_hmac(f"{_SALT}.seal", facts, secret=secret, algorithm="sha256").hexdigest()[:32])
