"""Figures that one process writes while another may be reading them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def replace_json(path: Path, figures: Mapping[str, Any]) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(figures))
    os.replace(draft, path)


def read_json(path: Path) -> dict[str, Any]:
    """Empty before the first report."""
    return dict(json.loads(path.read_text())) if path.exists() else {}
