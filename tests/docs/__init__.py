from __future__ import annotations

import sys
from pathlib import Path

# What generates the reference lives beside it.
sys.path.append(str(Path(__file__).resolve().parents[2] / "docs"))
