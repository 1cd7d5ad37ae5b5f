"""Let one holder at a time do something: `with lock("import", timeout="10m")`, without Redis.

A lock is a row with its name, its holder and the instant at which it ends. Time is the database's, so hosts need not
agree on it, and a holder that dies loses the lock at that instant.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import os
import secrets
import socket
import time
from types import TracebackType
from typing import Self

from asgiref.sync import sync_to_async
from django.db import IntegrityError
from django.db.models import Q
from django.db.transaction import TransactionManagementError

from django_ojs import clock
from django_ojs.client.options import Duration, milliseconds
from django_ojs.client.running import running
from django_ojs.database import Looks, atomic, database, in_callers_transaction, retried
from django_ojs.faults import only_if_taken, suppress_passing
from django_ojs.guard import get_logger, uncancelled
from django_ojs.messages import shown

logger = get_logger(__name__)

_PREFIX = "lock:"


class LockHeld(Exception):
    """The lock was not free in the time that the caller would wait.

    Attributes:
        name: of the lock.
        holder: who has it: a job or a process; empty if it has become free meanwhile.
    """

    def __init__(self, name: str, holder: str) -> None:
        super().__init__(name, holder)
        self.name, self.holder = name, holder

    def __str__(self) -> str:
        return f"The lock {self.name!r} is held by {self.holder or 'another'}."


class Lock:
    """A lock by its name, for `with` and `async with`; `lock()` makes it. It can be used again, and not inside itself.

    Attributes: `name`, `timeout_ms`.
    """

    def __init__(self, name: str, timeout: Duration, wait: Duration | None) -> None:
        if not isinstance(name, str):
            raise TypeError(f"The name of a lock is a text, not {shown(name)}.")
        if not name:
            raise ValueError("A lock has a name.")
        self.name = name
        self.timeout_ms = milliseconds(timeout, "timeout")
        if self.timeout_ms == 0:
            raise ValueError("timeout=0: say how long the lock may be held, should its holder die.")
        self._wait = None if wait is None else milliseconds(wait, "wait") / 1000
        # Not the name: MariaDB would take `import` for `Import`.
        self._key = _PREFIX + hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=24).hexdigest()
        self._holder = self._mark = ""

    def acquire(self) -> bool:
        """Take the lock if it is free; whether this holds it now. Raises TransactionManagementError inside an open
        transaction, before whose commit no other process would see the lock."""
        if self._holder:
            raise RuntimeError(f"The lock {self.name!r} is held by this object already: make another one.")
        using = database(None)
        if in_callers_transaction(using):
            raise TransactionManagementError(
                f"lock({self.name!r}) inside an open transaction would not be seen by others before its commit: take "
                "the lock first, and open the transaction inside of it."
            )
        # The same again after a try whose answer was lost: it may hold the lock.
        self._mark = self._mark or _who(self.timeout_ms)
        if not _take(self._key, self._mark, self.timeout_ms, using=using):
            return False
        self._holder, self._mark = self._mark, ""
        return True

    def extend(self) -> bool:
        """Let the lock last for its whole timeout from now on; False if it has ended and another has taken it."""
        from django_ojs.models import Lease

        using = database(None)
        until = clock.now(using) + dt.timedelta(milliseconds=self.timeout_ms)
        mine = Lease.objects.using(using).filter(name=self._key, holder=self._holder)
        return bool(self._holder and mine.update(expires_at=until))

    def release(self) -> None:
        """Give the lock back. A lock that has ended meanwhile is logged: another may have held it, too."""
        from django_ojs.models import Lease

        holder, self._holder = self._holder, ""
        if not holder:
            return

        def notice(error: Exception) -> None:
            logger.warning("The lock %r was not given back (%s): it ends by itself.", self.name, error)

        with suppress_passing(notice):
            if not Lease.objects.using(database(None)).filter(name=self._key, holder=holder).delete()[0]:
                logger.warning(
                    "The lock %r was held for longer than its timeout of %g s, and another has taken it meanwhile: "
                    "give it more time, or call extend().", self.name, self.timeout_ms / 1000,
                )  # fmt: skip

    def __enter__(self) -> Self:
        looks = self._looks()
        for pause in looks:
            if self._try(looks):
                return self
            time.sleep(pause)
        raise self._refusal(looks) from looks.error

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    async def __aenter__(self) -> Self:
        looks = self._looks()
        try:
            for pause in looks:
                if await uncancelled(self._try, looks):
                    return self
                await asyncio.sleep(pause)
        except asyncio.CancelledError:  # it may have been taken at this moment
            await uncancelled(self.release)
            raise
        raise await sync_to_async(self._refusal)(looks) from looks.error

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await uncancelled(self.release)

    def _looks(self) -> Looks:
        return Looks(f"Waiting for the lock {self.name!r}", self._wait, database(None))

    def _try(self, looks: Looks) -> bool:
        with looks.outlasting():
            return self.acquire()
        return False

    def _refusal(self, looks: Looks) -> LockHeld:
        from django_ojs.models import Lease

        if looks.error is not None:  # nobody knows who has it
            return LockHeld(self.name, "")
        found = Lease.objects.using(database(None)).filter(name=self._key).values_list("holder", flat=True).first()
        return LockHeld(self.name, (found or "").rpartition(" ")[0])


def lock(name: str, *, timeout: Duration, wait: Duration | None = None) -> Lock:
    """Return a lock that one holder at a time has, in all processes of the site: `with lock("import", timeout="10m"):`.

    It is given back at the end of the block, or ends by itself `timeout` after it was taken, also if its holder was
    killed. A block that may last longer calls `extend()` of the lock, `with ... as held`. `wait` is how long to wait
    for it: None as long as it takes, 0 not at all. Raises LockHeld if that is over.
    """
    return Lock(name, timeout, wait)


def _who(timeout_ms: int) -> str:
    """Who takes a lock: its job and process, for people to read, and a mark that no other holder has, which begins with
    the timeout."""
    run = running.get()
    what = f"process {os.getpid()} on {socket.gethostname()[:100]}"
    return f"{what if run is None else f'job {run.id}, {what}'} {timeout_ms}-{secrets.token_hex(16)}"


def _longest(holder: str) -> dt.timedelta:
    """How long a lock of this holder's lasts at most; for ever, where an older release has not said so."""
    timeout_ms, dash, _ = holder.rpartition(" ")[2].partition("-")
    return dt.timedelta(milliseconds=int(timeout_ms)) if dash else dt.timedelta.max


@retried
def _take(key: str, holder: str, timeout_ms: int, *, using: str) -> bool:
    from django_ojs.models import Lease

    now = clock.now(using)
    until = now + dt.timedelta(milliseconds=timeout_ms)
    leases = Lease.objects.using(using).filter(name=key)
    if leases.filter(Q(expires_at__lte=now) | Q(holder=holder)).update(holder=holder, expires_at=until):
        return True
    if (found := leases.values_list("holder", "expires_at").first()) is not None:
        (other, end), longest = found, _longest(found[0])
        if end - now - clock.AHEAD > longest:  # it was taken while the clock was ahead: let it begin now
            leases.filter(holder=other, expires_at=end).update(expires_at=now + longest)
        return False
    try:
        with atomic(using=using):
            Lease.objects.using(using).create(name=key, holder=holder, expires_at=until)
    except IntegrityError as error:  # another was first
        only_if_taken(error)
        return False
    return True
