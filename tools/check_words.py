"""Reject retired words in everything a person reads, and suggest the field's word for each.

The check covers Markdown pages; docstrings, comments and strings with a space in Python sources; and docstrings,
comments and the names of test functions in tests, whose strings quote output. It skips code, and emphasis in Markdown,
which quote names and output, and generated pages, whose source it reads.

Identifiers of the product and the tools, and names of their modules, do without some of the words, too.

A docstring of the product or the tools must not begin with "Of" or "What": it stands on its own, without the name of
what it describes.

Usage: python -m tools.check_words
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tools.python_source import parse

ROOT: Final = Path(__file__).parent.parent
PROSE: Final = ("*.md", ".github/**/*.md", "docs/**/*.md", "examples/**/*.md")
SOURCES: Final = ("src/**/*.py", "examples/**/*.py", "tools/**/*.py")
TESTS: Final = ("tests/**/*.py",)
DOCUMENTED: Final = ("src/**/*.py", "tools/**/*.py")
GENERATED: Final = (
    "docs/cli.md",
    "docs/client-settings.md",
    "docs/modules.md",
    "docs/public-defects.md",
    "docs/settings-bounds.md",
    "docs/states.md",
)
HERE: Final = "tools/check_words.py"
_IN_IDENTIFIERS: Final = re.compile(r"(?<![a-z])(told|(?<!in_)places?)(?![a-z])|^_*(each|found)$")
"""Retired words of a name in snake case; ``in_place`` is right, and so are ``for_each`` and ``not_found``."""
_FRAGMENT: Final = re.compile(r"\s*(Of|What)\b")


class Rule(NamedTuple):
    words: frozenset[str]
    wrong: re.Pattern[str]
    right: str


def _rule(words: str, right: str, only: str = "") -> Rule:
    """``only``: the wrong uses of ``words``, if there are right ones. A space stands for any white space."""
    pattern = only.replace(" ", r"\s+") or rf"\b({words.replace(' ', '|')})\b"
    return Rule(frozenset(words.split()), re.compile(pattern, re.IGNORECASE), right)


# A comment shows the right use of a word.
RULES: Final = (
    _rule("strike strikes striking struck harm harms harmed hurt hurts", "fault, kill, fault injection"),
    # stroke="black" and stroke: black in SVG
    _rule("stroke strokes", "fault, kill, fault injection", r"\bstrokes?\b(?![-=:])"),
    _rule("judge judges judged judging judgement judgements", "reference implementation; check, validate"),
    _rule("told tell tells telling say says saying", "report, return, log"),
    _rule("said", "report, return, log", r"\b(is|are|was|were) said\b"),
    _rule("mend mends mended mending", "fix, repair"),
    _rule("dear dearer dearest", "expensive"),
    _rule("look looks looked looking", "manage, maintain", r"\blook(s|ed|ing)? after\b"),
    _rule("door doors", "entry point"),
    # make room, no room left, room in the buffer, room()
    _rule(
        "room rooms",
        "package",
        r"(?<!make\s)(?<!makes\s)(?<!no\s)(?<!enough\s)(?<!without\s)\brooms?\b(?! (in|for|left)\b|\()",
    ),
    _rule("spoken", "supported"),
    # give up, gives the guarantee, given these records
    _rule(
        "give gives given giving",
        "pass, set, configure",
        r"\bgiv(e|es|en|ing) ((a|an|the|its|it|them|each|every|another) )*"
        r"(brokers?|settings?|options?|host|port|address|module|path|file|folder|key|mapping)\b"
        r"|\b(is|are|was|were|be|been) given\b(?! (up|back)\b)",
    ),
    _rule(
        "take takes took taken taking",
        "disable, remove; acquire",
        r"\b(take|takes|took|taken|taking) (((it|them|one) )?out|(the|its|that|this) (name|transactional[. ]id))\b",
    ),
    _rule("name", "acquire", r"\bname is taken\b"),
    # goes on the wire
    _rule(
        "go goes going went gone",
        "resume, continue",
        r"\b(go|goes|going|went|gone) on\b(?! the (wire|disk)\b)",
    ),
    _rule("what", "remaining, existing", r"\bwhat (is|was) (left|there)\b"),
    # records in order
    _rule(
        "order",
        "clean, controlled",
        r"\b(stop(s|ped)?|leaves?|left|shut(s|ting)? down|end(s|ed)?) in order\b",
    ),
    # patched in place, takes place
    _rule(
        "place places",
        "location, position",
        r"(?<!\bin\s)(?<!\btake\s)(?<!\btakes\s)(?<!\btook\s)\bplaces?\b",
    ),
    _rule("talk talks talked talking", "messages, diagnostics; connect, send"),
    _rule("watching", "monitoring"),
    _rule("once", "(leave out)", r"\bonce (and )?for all\b"),
)


class Finding(NamedTuple):
    path: str
    line: int
    words: str
    right: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {' '.join(self.words.split())!r}; better: {self.right}"


def in_text(path: str, text: str, first_line: int = 1, rules: Iterable[Rule] = RULES) -> Iterator[Finding]:
    for rule in rules:
        for match in rule.wrong.finditer(text):
            yield Finding(path, first_line + text.count("\n", 0, match.start()), match[0], rule.right)


def _blank(quoted: str, text: str) -> str:
    """Replace what matches ``quoted`` by spaces, so that lines keep their numbers."""
    return re.sub(quoted, lambda match: re.sub(r"[^\n]", " ", match[0]), text, flags=re.MULTILINE | re.DOTALL)


def in_markdown(path: str, text: str) -> Iterator[Finding]:
    """Findings outside of code and emphasis."""
    for quoted in (r"^( *)```.*?^\1```", r"`[^`]+`", r"(?<![*\w])\*[^*\s][^*]*\*(?!\*)", r"\]\([^)]*\)"):
        text = _blank(quoted, text)
    return in_text(path, text)


def in_python(path: str, text: str) -> Iterator[Finding]:
    words = set(re.findall(r"[a-z]+", text.lower()))
    rules = [rule for rule in RULES if rule.words & words and rule.wrong.search(text)]
    if not rules:
        return  # Searching is faster than parsing.
    for node in ast.walk(parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield from in_text(path, _blank(r"``[^`]+``", node.value), node.lineno, rules)
    yield from _in_comments(path, text, rules)


def in_identifiers(path: str, text: str) -> Iterator[Finding]:
    """Names that are defined or used; a module's is reported at line 1."""
    names = [(1, path)]
    if re.search("told|place|each|found", text, re.IGNORECASE):  # Searching is faster than parsing.
        names += [(getattr(node, "lineno", 1), name) for node in ast.walk(parse(text)) for name in _names(node)]
    for line, name in names:
        for match in _IN_IDENTIFIERS.finditer(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()):
            yield Finding(path, line, match[0], f"the field's noun in {name}")


def _names(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.alias(name=name, asname=alias):
            return [alias or name]
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            return names
    return []


def in_docstrings(path: str, text: str) -> Iterator[Finding]:
    """Docstrings, also those of assignments, that begin with half a sentence."""
    if not re.search(r"[\"']\s*(Of|What)\b", text):
        return  # Searching is faster than parsing.
    for node in ast.walk(parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring))) if fragment := _FRAGMENT.match(docstring):
                yield Finding(
                    path, node.lineno, fragment[0], 'a verb or a noun first: "Return the ...", "Number of ..."'
                )


def in_tests(path: str, text: str) -> Iterator[Finding]:
    for node in ast.walk(parse(text)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test_"):
                yield from in_text(path, name.replace("_", " "), node.lineno)
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                yield from in_text(path, _blank(r"``[^`]+``", docstring), node.lineno)
    yield from _in_comments(path, text, RULES)


def _in_comments(path: str, text: str, rules: Iterable[Rule]) -> Iterator[Finding]:
    after_signs = "\n".join(re.findall("#.*", text))
    if not any(rule.wrong.search(after_signs) for rule in rules):
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from in_text(path, token.string, token.start[0], rules)


def findings() -> Iterator[Finding]:
    for patterns, search in (
        (PROSE, in_markdown),
        (SOURCES, in_python),
        (DOCUMENTED, in_docstrings),
        (DOCUMENTED, in_identifiers),
        (TESTS, in_tests),
    ):
        for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if name != HERE and name not in GENERATED:
                yield from search(name, path.read_text())


def main() -> None:
    all_findings = list(findings())
    for finding in all_findings:
        print(finding)
    if all_findings:
        sys.exit(f"{len(all_findings)} retired words")


if __name__ == "__main__":
    main()
