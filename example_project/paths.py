"""Where the site is, and where it keeps what it makes."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
#: Mail, reports, logs, the demo's password and, unless DATABASE_URL says otherwise, the database.
DATA_DIR = Path(os.environ.get("DJANGO_DATA_DIR") or BASE_DIR / "demo-data").absolute()
