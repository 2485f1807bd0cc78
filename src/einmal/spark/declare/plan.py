"""Facts of a query's plan before it runs: its state, its functions. Read only, as far as Spark shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyspark.sql import DataFrame

from einmal.spark.declare.guarantees import PlanFacts
from einmal.spark.decoding.decode import is_decoder
from einmal.spark.environment.plans.plan_nodes import iterate, kind_of, plan_nodes, walk
from einmal.spark.protocol.execution import is_stateful_node, state_format

_SUBQUERIES: Final = ("ScalarSubquery", "ListQuery", "Exists", "LateralSubquery")
_CONSTANT: Final = ("LocalRelation", "OneRowRelation", "Range", "CTERelationRef")
"""Leaves that are the same in every run, and one that stands for another part of the plan."""


def plan_facts(frame: DataFrame) -> PlanFacts:
    """Return the facts of a streaming frame that is not started."""
    nodes = list(plan_nodes(frame))
    causes: dict[str, None] = {}
    python: dict[str, None] = {}
    for node in nodes:
        for expression in iterate(node.expressions()):
            for subexpression in walk(expression):
                if _is_python(subexpression) and not is_decoder(str(subexpression.name())):
                    (python if subexpression.deterministic() else causes)[str(subexpression.name())] = None
                elif not subexpression.deterministic() and all(
                    child.deterministic() for child in iterate(subexpression.children())
                ):
                    causes[str(subexpression.prettyName())] = None
    spark = frame.sparkSession
    return PlanFacts(
        static=tuple(dict.fromkeys(_relation(node) for node in _with_subqueries(nodes) if _is_static(node))),
        stateful=tuple(dict.fromkeys(_words(kind_of(node)) for node in nodes if is_stateful_node(node))),
        non_deterministic=tuple(causes),
        python=tuple(python),
        state_format=state_format(spark),
        speculation=(spark.sparkContext.getConf().get("spark.speculation") or "false") == "true",
    )


def _with_subqueries(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        yield node
        for expression in iterate(node.expressions()):
            for subexpression in walk(expression):
                if kind_of(subexpression) in _SUBQUERIES:
                    yield from _with_subqueries(walk(subexpression.plan()))


def _is_static(node: Any) -> bool:
    """Whether it reads something that can change between two runs of a batch, and is no source of the stream."""
    is_leaf = not any(iterate(node.children()))
    return is_leaf and not node.isStreaming() and kind_of(node) not in _CONSTANT


def _relation(node: Any) -> str:
    """Named as Spark names it in a plan: by the format of its files, its table in a database, or its kind."""
    match kind_of(node):
        case "LogicalRelation":
            return str(node.relation().toString())
        case "DataSourceV2Relation":
            return str(node.name())
        case "LogicalRDD":
            return "a frame of the session"
    return _words(kind_of(node))


def _is_python(expression: Any) -> bool:
    return kind_of(expression).startswith("PythonUD")


def _words(name: str) -> str:
    return "".join(_lower(name)).strip()


def _lower(name: str) -> Iterator[str]:
    for letter in name:
        yield f" {letter.lower()}" if letter.isupper() else letter
