from pathlib import Path

from einmal.bench.workloads import WORKLOADS

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def test_the_benchmarks_page_lists_every_workload() -> None:
    text = PAGE.read_text()
    assert [name for name in WORKLOADS if f"`{name}`" not in text] == []
