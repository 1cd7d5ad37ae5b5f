"""Show operators all data of django-ojs in Django's admin, and let them act by the operations of the specification.

All pages are on Django's own admin site. `register_all` puts them on a site of one's own.
"""

from django.contrib import admin

from django_ojs.admin import (  # noqa: F401 - each registers its models
    apikey,
    approval,
    attention,
    bulkaction,
    cron,
    deadletters,
    event,
    job,
    outbox,
    queue,
    ratelimit,
    records,
    webhook,
    worker,
    workflow,
)

#: Our pages: the ModelAdmin of each model. Django's own site has them as soon as the modules above are imported.
PAGES = {
    model: type(model_admin)
    for model, model_admin in admin.site._registry.items()
    if model._meta.app_label == "django_ojs"
}


def register_all(site: admin.AdminSite) -> None:
    """Put all pages of django-ojs on this admin site, which may be of a class of its own.

    Call it where the site registers its own models, for example in an app's `admin.py`; where the app stands in
    `INSTALLED_APPS` does not matter. A model that the site has registered already keeps its ModelAdmin.
    """
    for model, model_admin in PAGES.items():
        if not site.is_registered(model):
            site.register(model, model_admin)
