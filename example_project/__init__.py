"""A small Django site that runs everything django-ojs has."""
