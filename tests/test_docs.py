"""Claims about pages: what is generated is up to date, what is named exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]


@pytest.mark.parametrize("tool", ["draw_states", "list_commands", "list_modules"])
def test_what_is_generated_is_up_to_date(tool: str) -> None:
    subprocess.run([sys.executable, ROOT / "tools" / f"{tool}.py", "--check"], check=True, timeout=60)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    missing = [link for link in links if not (page.parent / link).exists()]
    for name in re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", text):
        if not any((base / name).exists() for base in (ROOT, ROOT / "src" / "einmal")):
            missing.append(name)
    assert missing == []


def test_the_front_page_shows_the_pipeline_of_the_example() -> None:
    shown = re.search(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown is not None
    assert shown[1] == (ROOT / "examples" / "word_count" / "pipeline.toml").read_text()
