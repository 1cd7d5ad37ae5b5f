from typing import Any


class Everything:
    """All there is, in the one database that is not `default`."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "rest"

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return db == "rest"
