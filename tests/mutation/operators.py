"""Small defects of a module: comparisons, bounds, conditions, results and statements, each changed at one location.

``mutations`` lists the locations in a module's source, in an order that depends on the source only; ``mutate`` returns
the syntax tree with one of them changed. Left alone are asserts (a weaker invariant is nothing that a test can see),
type annotations, docstrings, and the text of messages.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tools.python_source import parse

Change = Callable[[ast.AST], ast.AST]

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SKIPPED: Final = frozenset({"__repr__", "__str__", "__reduce__"})


class Mutation(NamedTuple):
    """``number``: of its module's mutations, in order. ``before`` and ``after``: the changed code."""

    number: int
    line: int
    operator: str
    before: str
    after: str


class _Place(NamedTuple):
    """A node to be changed, by its parent's field and its index there (``at``; -1: the field is the node)."""

    parent: ast.AST
    field: str
    at: int
    operator: str
    change: Change


def mutations(source: str) -> list[Mutation]:
    """Every mutation of a module."""
    found = []
    for number, place in enumerate(_places(parse(source))):
        node = _node(place)
        after = place.change(copy.deepcopy(node))
        found.append(Mutation(number, node.lineno, place.operator, _text(node), _text(after)))  # type: ignore[attr-defined]
    return found


def mutate(source: str, number: int) -> ast.Module:
    """The module with its mutation of this number."""
    tree = parse(source)
    place = list(_places(tree))[number]
    changed = ast.copy_location(place.change(copy.deepcopy(_node(place))), _node(place))
    if place.at < 0:
        setattr(place.parent, place.field, changed)
    else:
        getattr(place.parent, place.field)[place.at] = changed
    return ast.fix_missing_locations(tree)


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


def _node(place: _Place) -> ast.AST:
    found = getattr(place.parent, place.field)
    node: ast.AST = found if place.at < 0 else found[place.at]
    return node


def _places(parent: ast.AST) -> Iterator[_Place]:
    for field, value in ast.iter_fields(parent):
        if field in ("annotation", "returns", "decorator_list", "bases", "type_params"):
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(-1, value)]:
            if not isinstance(node, ast.AST) or _is_left_alone(node):
                continue
            for operator, change in _changes(parent, field, node):
                yield _Place(parent, field, index, operator, change)
            yield from _places(node)


def _is_left_alone(node: ast.AST) -> bool:
    match node:
        case ast.Assert() | ast.Import() | ast.ImportFrom() | ast.JoinedStr():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.FunctionDef(name=name):
            return name in _SKIPPED
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
    return False


def _changes(parent: ast.AST, field: str, node: ast.AST) -> Iterator[tuple[str, Change]]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
            yield "comparison", _other_comparison
        case ast.Constant(value=bool()):
            yield "constant", lambda each: ast.Constant(not each.value)  # type: ignore[attr-defined]
        case ast.Constant(value=int()):
            yield "bound", lambda each: ast.Constant(each.value + 1)  # type: ignore[attr-defined]
            yield "bound", lambda each: ast.Constant(each.value - 1)  # type: ignore[attr-defined]
        case ast.BoolOp():
            yield "condition", _other_junction
        case ast.UnaryOp(op=ast.Not()):
            yield "condition", lambda each: each.operand  # type: ignore[attr-defined]
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            yield "arithmetic", _other_sign
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield "result", lambda each: ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise() | ast.Delete() | ast.Continue():
            yield "statement", lambda each: ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement", lambda each: ast.Pass()
    if field == "test" and isinstance(parent, ast.If | ast.IfExp) and not isinstance(node, ast.Compare | ast.UnaryOp):
        yield "condition", lambda each: ast.UnaryOp(ast.Not(), each)  # type: ignore[arg-type]


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _other_comparison(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.Compare)
    return ast.Compare(node.left, [_COMPARISONS[type(node.ops[0])]()], node.comparators)


def _other_junction(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.BoolOp)
    return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)


def _other_sign(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.BinOp)
    return ast.BinOp(node.left, ast.Sub() if isinstance(node.op, ast.Add) else ast.Add(), node.right)
