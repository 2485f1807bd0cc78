"""A hook of mkdocs: pages outside of docs/ join the site, and links between pages work there as in the repository.

A link to a file that is not on the site, such as a source file, becomes plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parent.parent
RENAMED: Final = {
    "README.md": "first-steps.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
MERMAID: Final = ROOT / "build" / "mermaid" / "mermaid.min.js"
"""Fetched by `make docs`."""
EXAMPLES: Final = ("*.md", "*.svg", "*.toml", "*.py")
_ORIGINAL: Final = {site: source for source, site in RENAMED.items()}
_LINK: Final = re.compile(r"\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)]*)?\)")
_LOADED: Final = re.compile(
    r'<(?:(?:script|img|iframe|source)\b[^>]*?\bsrc(?:set)?|link\b[^>]*?\brel="(?:stylesheet|preload)"[^>]*?\bhref)'
    r'="(?P<address>(?:https?:)?//[^"]+)"'
)
_IMAGE: Final = re.compile(r'(?P<name>src|srcset)="(?P<target>[^":]+)"')


def on_config(config: MkDocsConfig, **_: Any) -> MkDocsConfig:
    """Let pages load our own copy of the script that draws diagrams. Without one they are left as text: the theme would
    load it from elsewhere."""
    if MERMAID.exists():
        config.extra_javascript.append(f"assets/{MERMAID.name}")
    else:
        config.mdx_configs["pymdownx.superfences"]["custom_fences"] = []
    return config


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages of the root, and the examples with their files."""
    if MERMAID.exists():
        files.append(File.generated(config, f"assets/{MERMAID.name}", abs_src_path=str(MERMAID)))
    for source, site in RENAMED.items():
        files.append(File.generated(config, site, abs_src_path=str(ROOT / source)))
    for path in sorted(path for pattern in EXAMPLES for path in (ROOT / "examples").rglob(pattern)):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Turn links of the repository into links of the site."""
    here = PurePosixPath(_source(page.file.src_uri)).parent

    def site(target: str) -> str | None:
        """``target``: as written in the page. Its link on the site; None: it is not there."""
        wanted = PurePosixPath(os.path.normpath(here / target))
        if (ROOT / wanted).is_dir():
            wanted /= "README.md"
        uri = _site(str(wanted))
        return os.path.relpath(uri, PurePosixPath(page.file.src_uri).parent) if files.get_file_from_path(uri) else None

    def link(match: re.Match[str]) -> str:
        if "://" in match["target"]:
            return match[0]
        target = site(match["target"])
        return f"[{match['text']}]({target}{match['anchor'] or ''})" if target else match["text"]

    def image(match: re.Match[str]) -> str:
        return f'{match["name"]}="{site(match["target"]) or match["target"]}"'

    parts = re.split(r"(^ *```.*?^ *```)", markdown, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [_IMAGE.sub(image, _LINK.sub(link, prose)) for prose in parts[::2]]
    return "".join(parts)


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Refuse a page for which a reader's browser would ask anybody else. Raises PluginError."""
    if foreign := [match["address"] for match in _LOADED.finditer(output)]:
        raise PluginError(f"{page.file.src_uri} loads {', '.join(foreign)}: serve it with the site")
    return output


def _source(site: str) -> str:
    """The path in the repository of a page of the site."""
    if site in _ORIGINAL:
        return _ORIGINAL[site]
    return site if site.startswith("examples/") else f"docs/{site}"


def _site(source: str) -> str:
    return RENAMED.get(source, source.removeprefix("docs/"))
