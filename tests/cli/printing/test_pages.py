"""Claims about the pages that errors refer to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from einmal.cli.clients import print_error
from einmal.cli.printing.pages import PAGES
from einmal.client.errors import error_for
from einmal.types import ErrorCode

ROOT = Path(__file__).parents[3]


def anchors(page: Path) -> set[str]:
    """As the site and GitHub make them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}


@pytest.mark.parametrize("target", sorted(set(PAGES.values())))
def test_each_page_and_its_anchor_exist(target: str) -> None:
    page, _, anchor = target.partition("#")
    assert anchor in anchors(ROOT / page)


def test_an_error_that_has_a_page_names_it_last(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(error_for(ErrorCode.topic_authorization_failed, "t"))
    *_, hint, see = capsys.readouterr().err.splitlines()
    assert (hint[:5], see) == ("hint:", "see:  docs/security.md#authorize-with-acls")
    print_error(error_for(ErrorCode.topic_already_exists, "t"))
    assert "see:" not in capsys.readouterr().err
