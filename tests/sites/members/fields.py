from django.db import models


class HouseNumberField(models.BigAutoField):
    """What a site may name in DEFAULT_AUTO_FIELD."""
