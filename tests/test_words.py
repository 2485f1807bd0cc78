"""Claims about tools/check_words.py: each rule finds the wrong use of its word, and leaves the right one alone."""

from __future__ import annotations

import pytest
from tools.check_words import in_docstrings, in_identifiers, in_markdown, in_python, in_tests, in_text

WRONG = (
    "It strikes one broker.",
    "They struck it.",
    "a late request does harm",
    "The checker judges it.",
    "The client is told who leads.",
    "the error says why",
    "It mends the checkpoint.",
    "what is dear is made once",
    "a pipeline is looked after",
    "the doors of the product",
    "each room imports",
    "only PLAINTEXT is spoken",
    "give it a port",
    "where no host is given",
    "a defence is taken out",
    "the driver takes the name",
    "the query goes on",
    "read what is left",
    "a broker is stopped in order",
    "at the same place",
    "data to stdout, talk to stderr",
    "watching a pipeline",
    "once for all",
)
RIGHT = (
    '<path stroke="black" stroke-width="2"/>',
    "an essay; the teller; estimates",
    "room in the buffer, no room left, make room, await room()",
    "it gives the guarantee, given up, give back",
    "it goes on the wire",
    "records arrive in order",
    "patched in place; the election takes place; replace",
    "a watch on the directory",
    "commend and amend",
)


@pytest.mark.parametrize("text", WRONG)
def test_retired_words_are_found(text: str) -> None:
    assert list(in_text("page.md", text))


@pytest.mark.parametrize("text", RIGHT)
def test_right_uses_are_left_alone(text: str) -> None:
    assert not list(in_text("page.md", text))


def test_quotations_in_markdown_are_skipped_and_lines_are_counted() -> None:
    page = "```\nit says\n```\n`it says`, *the message that says so* and\n**it says so**.\n"
    assert [each.line for each in in_markdown("page.md", page)] == [5]


def test_docstrings_comments_and_sentences_of_sources_are_searched() -> None:
    source = """'It tells us.'\n\nNAME = 'told'\nERROR = f'{NAME} was told'  # So it says.\ntold = 1\n"""
    assert sorted(each.line for each in in_python("module.py", source)) == [1, 4, 4]


def test_quoted_code_in_docstrings_is_skipped() -> None:
    assert not list(in_python("module.py", '"""``says``: the lines that ``tell`` prints."""\n'))


@pytest.mark.parametrize(
    "name", ("told", "_told_ms", "leader_told", "place", "places_of", "BatchPlace", "each", "_found", "Found")
)
def test_retired_words_in_identifiers_are_found(name: str) -> None:
    for source in (f"{name} = 1", f"def {name}(): pass", f"class {name}: pass", f"print(f'{{row.{name}}}')"):
        assert [each.line for each in in_identifiers("module.py", source)] == [1]


@pytest.mark.parametrize(
    "name",
    ("replace", "placeholder", "in_place", "addInPlace", "placed", "placement", "stoled", "for_each", "is_not_found"),
)
def test_other_words_in_identifiers_are_left_alone(name: str) -> None:
    assert not list(in_identifiers("module.py", f"{name} = 1  # told\n"))


def test_retired_words_in_names_of_modules_are_found() -> None:
    assert list(in_identifiers("src/einmal/log/place.py", ""))


def test_docstring_that_begins_with_of_or_what_is_rejected() -> None:
    source = """'What is sent.'\n\n\ndef size():\n    'Of a batch.'\n\n\nLIMIT = 1\n'Of a batch, in bytes.'\n"""
    assert sorted(each.line for each in in_docstrings("module.py", source)) == [1, 5, 9]


def test_docstring_that_stands_on_its_own_is_left_alone() -> None:
    source = """'Often sent.'\n\n\ndef size():\n    'Return what is sent.'\n    return 'Of a batch.'  # Of a batch.\n"""
    assert not list(in_docstrings("module.py", source))


def test_docstrings_comments_and_names_of_tests_are_searched_but_no_strings() -> None:
    source = """'It tells us.'\n\n\ndef test_it_says_so() -> None:\n    assert told == 'It was told'  # So it says.\n"""
    assert sorted(each.line for each in in_tests("test_module.py", source)) == [1, 4, 5]
