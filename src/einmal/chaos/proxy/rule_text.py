"""A rule of the proxy as text, such as ``on(EndTxn).drop_answer().once()``: what a test calls on the proxy. No I/O.

Names may stand without quotes. Nothing is executed: the text is taken apart, and only the methods of a rule are called.
"""

from __future__ import annotations

import ast
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from einmal.chaos.proxy.rules import Rule, Trigger, filter_of
from einmal.misspelt import nearest_name

_FAULTS: Final = ("drop_answer", "drop_request", "disconnect", "delay", "delay_answer", "duplicate", "reorder", "error")
_LIMITS: Final = ("once", "times", "nth", "probability")
_MOST: Final = 1e9
"""Beyond any count, id or number of seconds; not less than NaN."""
_EXAMPLE: Final = "on(EndTxn).drop_answer().once()"


class _Call(NamedTuple):
    name: str
    args: list[Any]
    kwargs: dict[str, Any]


def parse_rule(text: str) -> Rule:
    """Raises ValueError that names what is wrong."""
    calls = _calls(text)
    if calls[0].name != "on" or len(calls) < 2:
        raise ValueError(f"{text!r} is no rule: on(...), a fault, and limits, such as {_EXAMPLE}")
    rules: list[Rule] = []

    def on(
        *apis: str,
        client_id: str | None = None,
        transactional_id: str | None = None,
        broker: int | None = None,
    ) -> Trigger:
        return Trigger(filter_of(apis, client_id, transactional_id, broker), rules.append)

    trigger = _called(on, calls[0])
    rule = _called(_method(trigger, calls[1].name, _FAULTS, "fault"), calls[1])
    for call in calls[2:]:
        rule = _called(_method(rule, call.name, _LIMITS, "limit"), call)
    return typing.cast("Rule", rule)


def _calls(text: str) -> list[_Call]:
    """The calls of a chain, the first one first. Raises ValueError."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError(f"{text!r} is no rule, such as {_EXAMPLE}") from None
    calls: list[_Call] = []
    while isinstance(node, ast.Call):
        args = [_value(argument) for argument in node.args]
        kwargs = {keyword.arg or "**": _value(keyword.value) for keyword in node.keywords}
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        calls.append(_Call(name, args, kwargs))
        if not isinstance(node.func, ast.Attribute):
            break
        node = node.func.value
    if not calls or not isinstance(node, ast.Call):
        raise ValueError(f"{text!r} is no rule, such as {_EXAMPLE}")
    return calls[::-1]


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return node.id
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        raise ValueError(f"{ast.unparse(node)!r} is neither a name nor a value") from None


def _method(owner: object, name: str, allowed: tuple[str, ...], kind: str) -> Callable[..., Any]:
    if name not in allowed:
        nearest = nearest_name(name, allowed)
        hint = f"did you mean {nearest}?" if nearest else f"there are {', '.join(allowed)}"
        raise ValueError(f"unknown {kind} {name!r}; {hint}")
    method: Callable[..., Any] = getattr(owner, name)
    return method


def _called(method: Callable[..., Any], call: _Call) -> Any:
    """Call the method with arguments of its types. Raises ValueError."""
    signature = inspect.signature(method)
    hints = typing.get_type_hints(method)
    try:
        bound = signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        raise ValueError(f"{call.name}: {error}") from None
    for name, value in bound.arguments.items():
        is_variadic = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        for single in value if is_variadic else (value,):
            _check(call.name, name, single, hints)
    return method(*bound.args, **bound.kwargs)


def _check(call: str, name: str, value: object, hints: Mapping[str, Any]) -> None:
    types = typing.get_args(hints[name]) or (hints[name],)
    if isinstance(value, bool):
        is_right = bool in types
    elif isinstance(value, int | float):
        is_right = abs(value) < _MOST and (float in types or (isinstance(value, int) and int in types))
    else:
        is_right = isinstance(value, types)
    if not is_right:
        words = " or ".join("nothing" if kind is type(None) else kind.__name__ for kind in types)
        raise ValueError(f"{call}: {name}={value!r} is not {words}")
