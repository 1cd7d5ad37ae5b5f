"""A Django app with `manage.py ojs_conformance`, for those who work on django-ojs."""
