"""Claims about pages: generated pages are up to date, and names of files, commands and targets exist."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from einmal.extras import install_command
from tests.suite.cases import each_case

ROOT = Path(__file__).parent.parent
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]


@pytest.mark.parametrize(
    "tool",
    [
        "draw_states",
        "generate_messages",
        "list_access",
        "list_bounds",
        "list_commands",
        "list_log_events",
        "list_modules",
        "list_public_defects",
        "list_settings",
    ],
)
def test_generated_pages_are_up_to_date(tool: str) -> None:
    subprocess.run([sys.executable, "-m", f"tools.{tool}", "--check"], cwd=ROOT, check=True, timeout=300)


@each_case("page", PAGES)
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text()
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", text) + re.findall(r'src(?:set)?="([^"]+)"', text)
    links = [link for link in targets if "://" not in link]
    missing = [link for link in links if not (page.parent / link).exists()]
    for name in re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", text):
        if not any((base / name).exists() for base in (ROOT, ROOT / "src" / "einmal")):
            missing.append(name)
    assert missing == []


@each_case("page", PAGES)
def test_named_targets_of_make_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text()
    named = re.findall(r"^\$ make ([a-z-]+)", text, re.MULTILINE) + re.findall(r"`make ([a-z-]+)", text)
    assert set(named) <= targets


@each_case("page", PAGES)
def test_named_commands_exist(page: Path) -> None:
    reference = (ROOT / "docs" / "cli.md").read_text()
    commands = {
        words for path in re.findall(r"^## `einmal ([a-z -]+)", reference, re.MULTILINE) for words in path.split()
    }
    text = page.read_text()
    named = re.findall(r"^\$ einmal ([a-z]+)", text, re.MULTILINE) + re.findall(r"`einmal ([a-z]+)", text)
    assert set(named) <= commands


@each_case("page", PAGES)
def test_an_installation_is_named_as_the_program_names_it(page: Path) -> None:
    """A release changes the source in ``extras``: no page names one that has no package yet, or an older one."""
    text = " ".join(page.read_text().split())
    named = re.findall(r"pip3? install (?:-\S+ )*'?(?:einmal|\.)(?:\[[a-z,]*\])?(?:==\S+)?'?(?=[\s`,;)]|$)", text)
    allowed = install_command().replace("'", "").partition(" in ")[0].replace("[]", "")
    for each in named:
        extras = re.search(r"\[([a-z,]+)\]", each)
        expected = allowed if extras is None else install_command(*extras[1].split(",")).partition(" in ")[0]
        assert each == expected, f"{page.name}: {each!r} instead of {expected!r}"


@each_case("page", PAGES)
def test_a_program_that_starts_a_query_waits_for_it(page: Path) -> None:
    """It would end, and with it the query, before a row is written."""
    programs = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    starting = [program for program in programs if "write_stream(" in program and ".start()" in program]
    assert [program for program in starting if ".awaitTermination()" not in program] == []


def test_the_front_page_names_the_versions_that_the_tests_install() -> None:
    table = re.search(r"^## Status\n(.*?)^## ", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert table is not None
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "requirements" / "dev.txt").read_text(), re.MULTILINE))
    older = re.search(r"^pyspark==(\S+)", (ROOT / "requirements" / "spark-4.2.txt").read_text(), re.MULTILINE)
    kafka = dict(
        re.findall(r"<kafka\.(\w+)\.version>([\d.]+)<", (ROOT / "tests" / "interop" / "kafka" / "pom.xml").read_text())
    )
    assert older is not None
    named = [f"{name} {pinned[name]}" for name in ("confluent-kafka", "aiokafka", "kafka-python")]
    named += [f"{name} {pinned[name]}" for name in ("duckdb", "deltalake", "pyiceberg")]
    named += [f"PySpark {pinned['pyspark']}; its tests on {older[1]}"]
    named += [f"Apache Kafka {kafka['broker']}", f"client and tools {kafka['tools']}"]
    assert [each for each in named if each not in table[1]] == []


def test_the_site_and_its_index_have_every_page() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    index = (ROOT / "docs" / "index.md").read_text()
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")} - {"decisions/README.md"}
    assert pages - set(re.findall(r"[\w/.-]+\.md", navigation)) == set()
    assert pages - set(re.findall(r"\]\(([\w/.-]+\.md)", index)) == {"index.md"}


def test_pre_commit_runs_the_checks_of_make_check() -> None:
    makefile = (ROOT / "Makefile").read_text()
    check, recipe = (
        re.search(rf"^{target}: .*\n((?:\t.*\n)+)", makefile, re.MULTILINE) for target in ("check", "static")
    )
    assert check is not None and "static fast-tests" in check[1]
    assert recipe is not None
    expanded = recipe[1].replace("$(BIN)", ".venv/bin") + "make fast-tests"
    hooks = re.findall(r"^ +entry: (.*)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.MULTILINE)
    assert hooks == [line.strip() for line in expanded.splitlines()]


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    for page, named in (
        ("dev.txt", [*project["project"]["dependencies"], *extras["spark"], *extras["bench"], *groups["dev"]]),
        ("docs.txt", groups["docs"]),
    ):
        pinned = re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements" / page).read_text(), re.MULTILINE)
        names = {re.split(r"[^a-z0-9-]", each)[0] for each in named}
        assert names <= set(pinned), page


def test_the_front_page_shows_the_pipeline_of_the_example() -> None:
    shown = re.search(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown is not None
    assert shown[1] == (ROOT / "examples" / "word_count" / "pipeline.toml").read_text()
