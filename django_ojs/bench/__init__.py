"""`manage.py ojs_bench`: how fast this site's database and machine are with django-ojs, beside plain SQL."""
