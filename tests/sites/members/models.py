import uuid

from django.contrib.auth.models import AbstractBaseUser, BaseUserManager
from django.db import models


class Member(AbstractBaseUser):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    email = models.EmailField(unique=True)

    objects = BaseUserManager()

    USERNAME_FIELD = "email"


class Visit(models.Model):
    """Has a key of the site's own kind."""

    def __str__(self) -> str:
        return str(self.pk)
