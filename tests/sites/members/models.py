import uuid

from django.contrib.auth.models import AbstractBaseUser, BaseUserManager
from django.db import models


class Member(AbstractBaseUser):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    email = models.EmailField(unique=True)

    objects = BaseUserManager()

    USERNAME_FIELD = "email"


class Official(AbstractBaseUser):
    """One that the admin lets in, and whose rights are no rows: it has neither groups nor permissions of Django's, and
    nothing but a password says whether it is active."""

    email = models.EmailField(unique=True)

    objects = BaseUserManager()
    is_staff = True

    USERNAME_FIELD = "email"

    @property
    def is_active(self) -> bool:  # type: ignore[override]
        return self.has_usable_password()

    def has_perm(self, perm: str, obj: object = None) -> bool:
        return True

    has_module_perms = has_perm


class Visit(models.Model):
    """Has a key of the site's own kind."""

    def __str__(self) -> str:
        return str(self.pk)
