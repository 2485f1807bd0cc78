"""List the client's settings in docs/client-settings.md, from the tables that the client reads them with.

Usage: python -m tools.list_settings [--check]
"""

from __future__ import annotations

from pathlib import Path

from tools.generated_page import write_or_check

from einmal.client.config import AdminSettings, ClientSettings, ConsumerSettings, ProducerSettings, documentation
from einmal.client.security_settings import SECURITY_NAMES

PAGE = Path(__file__).parent.parent / "docs" / "client-settings.md"
HEAD = """# Client settings

Settings of `Producer`, `Consumer` and `Admin` in `einmal.client` and `einmal.client.aio`, under Kafka's names. Pass
them as a mapping (`{"linger.ms": 5}`), as keyword arguments (`linger_ms=5`), or both. Values may be strings. An unknown
name is an error that suggests the nearest. Generated from `src/einmal/client/config.py` and `security_settings.py` by
`tools/list_settings.py`; a test checks that the page is up to date.
"""


def page() -> str:
    of_all = documentation(ClientSettings)
    secured = [row for row in of_all if row[0] in SECURITY_NAMES]
    sections = [("All clients", [row for row in of_all if row not in secured]), ("Security", secured)]
    for kind in (ProducerSettings, ConsumerSettings, AdminSettings):
        own = [row for row in documentation(kind) if row not in of_all]
        if own:
            sections.append((kind.__name__.removesuffix("Settings"), own))
    lines = [HEAD]
    for title, rows in sections:
        lines += [f"## {title}\n", "| setting | default | description |", "|---|---|---|"]
        lines += [f"| `{name}` | {f'`{default}`' if default else ''} | {text} |" for name, default, text in rows]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    write_or_check(PAGE, page, "tools.list_settings")
