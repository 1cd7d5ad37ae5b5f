from django.db import models
from django_tenants.models import DomainMixin, TenantMixin  # type: ignore[import-untyped]


class Tenant(TenantMixin):  # type: ignore[misc]
    name = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.name


class Domain(DomainMixin):  # type: ignore[misc]
    def __str__(self) -> str:
        return str(self.domain)
