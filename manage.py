#!/usr/bin/env python3
"""Django's command line for the example project."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent / "packages" / "ojs-conformance"))  # the command ojs_conformance
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
