"""Regular expressions of clients, matched in time proportional to expression times text (Thompson's construction).

The standard library's can be made to run for ever. What is supported of RE2's syntax, which Kafka's patterns have:
literals, ``.``, ``[...]`` with ranges and ``^``, ``(...)``, ``(?:...)``, ``|``, ``*``, ``+``, ``?``, ``{n}``, ``{n,}``,
``{n,m}``, ``\\d \\D \\w \\W \\s \\S``, escaped punctuation, and ``^`` and ``$`` at the ends. Anything else is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

_LENGTH_MAX: Final = 512
_STATES_MAX: Final = 1_000
_DEPTH_MAX: Final = 50
_REPEAT_MAX: Final = 1_000
_PUNCTUATION: Final = frozenset("\\.+*?()|[]{}^$-/_ :,;@#%&=~!<>'\"`")
_CLASSES: Final[dict[str, Callable[[str], bool]]] = {
    "d": lambda c: c in "0123456789",
    "w": lambda c: c == "_" or (c.isascii() and c.isalnum()),
    "s": lambda c: c in " \t\n\f\r",
}

_Test: TypeAlias = Callable[[str], bool]


class Unsupported(ValueError):
    """Not an expression, or one that is not supported."""


class _State:
    """``test`` None: an empty move."""

    __slots__ = ("followers", "test")

    def __init__(self, test: _Test | None = None) -> None:
        self.test = test
        self.followers: list[_State] = []


_Part: TypeAlias = tuple[_State, _State]
"""First and last state."""


class RegularExpression:
    """Raises Unsupported."""

    def __init__(self, text: str) -> None:
        if len(text) > _LENGTH_MAX:
            raise Unsupported(f"longer than {_LENGTH_MAX} characters")
        self._text = text.removeprefix("^")
        if self._text.endswith("$") and not self._text.endswith("\\$"):
            self._text = self._text[:-1]
        self._at = 0
        self._count = 0
        self._first, self._last = self._alternatives(0)
        if self._at < len(self._text):
            raise Unsupported(f"unexpected {self._text[self._at]!r}")

    @property
    def cost(self) -> int:
        """Steps for each character, at most."""
        return self._count

    def matches(self, text: str) -> bool:
        """Whether all of ``text`` is matched."""
        active = _closure([self._first])
        for character in text:
            moved = [after for state in active if state.test and state.test(character) for after in state.followers]
            active = _closure(moved)
            if not active:
                return False
        return self._last in active

    # --- parsing -----------------------------------------------------------------------------------------------------

    def _state(self, test: _Test | None = None) -> _State:
        self._count += 1
        if self._count > _STATES_MAX:
            raise Unsupported("too large")
        return _State(test)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        taken = self._peek()
        if not taken:
            raise Unsupported("it ends too early")
        self._at += 1
        return taken

    def _alternatives(self, depth: int) -> _Part:
        if depth > _DEPTH_MAX:
            raise Unsupported("nested too deeply")
        first, last = self._state(), self._state()
        while True:
            begin, end = self._sequence(depth)
            first.followers.append(begin)
            end.followers.append(last)
            if self._peek() != "|":
                return first, last
            self._take()

    def _sequence(self, depth: int) -> _Part:
        first = last = self._state()
        while self._peek() not in ("", "|", ")"):
            begin = self._at
            part = self._atom(depth)
            low, high = self._quantifier()
            end = self._at
            last = self._repeated(part, begin, end, depth, last, low, high)
        return first, last

    def _repeated(
        self, part: _Part, begin: int, end: int, depth: int, last: _State, low: int, high: int | None
    ) -> _State:
        """Join ``part`` behind ``last``, as often as is asked for; copies are parsed once more."""
        is_used = False

        def copy() -> _Part:
            nonlocal part, is_used
            if not is_used:
                is_used = True
                return part
            self._at = begin
            return self._atom(depth)

        for _ in range(low):
            first, after = copy()
            last.followers.append(first)
            last = after
        if high is None:
            first, after = copy()
            joint = self._state()
            last.followers.append(joint)
            joint.followers.append(first)
            after.followers.append(joint)
            last = joint
        skipped: list[_State] = []
        for _ in range(0 if high is None else high - low):
            first, after = copy()
            skipped.append(last)
            last.followers.append(first)
            last = after
        joint = self._state()
        for state in (*skipped, last):
            state.followers.append(joint)
        self._at = end
        return joint

    def _quantifier(self) -> tuple[int, int | None]:
        found: tuple[int, int | None] = (1, 1)
        match self._peek():
            case "*":
                found = (0, None)
            case "+":
                found = (1, None)
            case "?":
                found = (0, 1)
            case "{":
                return self._counted()
            case _:
                return found
        self._take()
        self._no_second_quantifier()
        return found

    def _counted(self) -> tuple[int, int | None]:
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : max(end, 0)].partition(",")
        if end < 0 or not low.isdecimal() or (high and not high.isdecimal()):
            raise Unsupported("a count that is none")
        self._at = end + 1
        self._no_second_quantifier()
        least = int(low)
        most = None if comma and not high else int(high or low)
        if least > _REPEAT_MAX or (most is not None and not least <= most <= _REPEAT_MAX):
            raise Unsupported(f"a count above {_REPEAT_MAX}, or a range that is none")
        return least, most

    def _no_second_quantifier(self) -> None:
        if self._peek() in ("*", "+", "?", "{") and self._peek():
            raise Unsupported("one quantifier behind another")

    def _atom(self, depth: int) -> _Part:
        character = self._take()
        match character:
            case "(":
                if self._text.startswith("?:", self._at):
                    self._at += 2
                part = self._alternatives(depth + 1)
                if self._take() != ")":
                    raise Unsupported("a parenthesis that is not closed")
                return part
            case "[":
                return self._single(self._set())
            case ".":
                return self._single(lambda c: c != "\n")
            case "\\":
                return self._single(self._escaped())
            case "*" | "+" | "?" | "{" | "}" | "]" | "^" | "$":
                raise Unsupported(f"unexpected {character!r}")
            case _:
                return self._single(lambda c: c == character)

    def _single(self, test: _Test) -> _Part:
        first, last = self._state(test), self._state()
        first.followers.append(last)
        return first, last

    def _escaped(self) -> _Test:
        character = self._take()
        if character.lower() in _CLASSES:
            test = _CLASSES[character.lower()]
            return test if character.islower() else lambda c: not test(c)
        if character not in _PUNCTUATION:
            raise Unsupported(f"unexpected \\{character}")
        return lambda c: c == character

    def _set(self) -> _Test:
        is_negated = self._peek() == "^"
        if is_negated:
            self._take()
        tests: list[_Test] = []
        while self._peek() != "]" or not tests:
            tests.append(self._set_item())
        self._take()
        return lambda c: any(test(c) for test in tests) != is_negated

    def _set_item(self) -> _Test:
        low = self._take()
        if low == "[":
            raise Unsupported("a class within a class")
        if low == "\\":
            if self._peek().lower() in _CLASSES or self._text[self._at + 1 : self._at + 2] != "-":
                return self._escaped()
            low = self._take()
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in ("]", ""):
            return lambda c: c == low
        self._take()
        high = self._take()
        if high == "\\":
            high = self._take()
        if high < low:
            raise Unsupported(f"the range {low}-{high}")
        return lambda c: low <= c <= high


def _closure(states: list[_State]) -> dict[_State, None]:
    """All that can be reached without a character."""
    reached: dict[_State, None] = {}
    pending = states
    while pending:
        state = pending.pop()
        if state not in reached:
            reached[state] = None
            if state.test is None:
                pending.extend(state.followers)
    return reached
