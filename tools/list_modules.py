"""List every module with the first sentence of its docstring into docs/modules.md.

Usage: python tools/list_modules.py [--check]
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "einmal"
PAGE = ROOT / "docs" / "modules.md"


def first_sentence(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", paragraph)[0]


def page() -> str:
    lines = [
        "# Modules, room by room",
        "",
        "The first sentence of each module, listed by `tools/list_modules.py`; a test holds them together. Which room "
        "may import which is in [ARCHITECTURE.md](../ARCHITECTURE.md).",
    ]
    rooms = [SOURCE, *sorted(path for path in SOURCE.rglob("*") if path.is_dir() and (path / "__init__.py").exists())]
    for room in rooms:
        modules = [path for path in sorted(room.glob("*.py")) if path.name != "__init__.py"]
        name = "einmal" if room == SOURCE else str(room.relative_to(SOURCE))
        lines += ["", f"## {name}", ""]
        if about := first_sentence(room / "__init__.py"):
            lines += [about, ""]
        lines += ["| module | |", "|---|---|"]
        lines += [f"| `{path.stem}` | {first_sentence(path).replace('|', chr(92) + '|')} |" for path in modules]
    return "\n".join(lines) + "\n"


def main() -> None:
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() != page():
            sys.exit(f"{PAGE.name} is out of date: run python tools/list_modules.py")
        return
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
