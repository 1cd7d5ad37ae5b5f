"""`manage.py ojs_bench`: how fast this site's database and machine are with django-ojs, beside plain SQL.

A Django app of the checkout, which the wheel does not contain: the example project has it among its apps.
"""
