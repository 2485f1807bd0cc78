"""A project of Spark's declarative pipelines without a run: what its files declare, and the plan of each flow.

Spark's command lets the definition files register their sinks and flows with a server of Spark Connect. Here they
register with a registry of our own, and the functions of the flows are called in a session that shows its plans.
"""

from __future__ import annotations

import contextlib
import importlib.util
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.pipelines.flow import Flow
from pyspark.pipelines.graph_element_registry import GraphElementRegistry, graph_element_registration_context
from pyspark.pipelines.output import MaterializedView, Output, Sink, TemporaryView
from pyspark.sql import DataFrame, SparkSession

from einmal.declare.document import DeclarationError
from einmal.spark.errors import SparkUnsupported, reason_of

if TYPE_CHECKING:
    from pyspark.pipelines.cli import PipelineSpec

_KINDS: Final = ((Sink, "sink"), (TemporaryView, "temporary view"), (MaterializedView, "materialized view"))


class DataflowGraph(GraphElementRegistry):
    """Outputs and flows that the definition files declare. ``unread``: a sentence about each part that only Spark's
    command can read."""

    def __init__(self) -> None:
        self.outputs: dict[str, Output] = {}
        self.flows: list[Flow] = []
        self.unread: list[str] = []

    def register_output(self, output: Output) -> None:
        self.outputs[output.name] = output

    def register_flow(self, flow: Flow) -> None:
        self.flows.append(flow)

    def register_auto_cdc_flow(self, flow: Any) -> None:
        self.unread.append(f"the flow from {flow.source} into {flow.target}: Spark makes the query of an Auto CDC flow")

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        self.unread.append(f"{file_path}: only Spark's command reads the flows of an SQL file")

    def kind(self, name: str) -> str:
        """Spark's word for an output, "" where none has this name."""
        output = self.outputs.get(name)
        return "" if output is None else next((kind for cls, kind in _KINDS if isinstance(output, cls)), "table")

    def is_view(self, flow: Flow) -> bool:
        return isinstance(self.outputs.get(flow.target), TemporaryView)


@dataclass(frozen=True, slots=True)
class FlowQuery:
    """A flow that writes. ``frame``: what its function returns; None: it could not be called, ``problem`` has the
    reason."""

    flow: Flow
    frame: DataFrame | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Project:
    """``storage``: the directory of the checkpoints. ``settings``: of the session. ``queries``: in the order of the
    files."""

    name: str
    storage: str
    graph: DataflowGraph
    settings: dict[str, str]
    queries: tuple[FlowQuery, ...]


def spec_of(path: Path) -> PipelineSpec:
    """Return a spark-pipeline.yml as Spark reads it. Raises DeclarationError, OSError, SparkUnsupported."""
    try:
        from pyspark.pipelines.cli import load_pipeline_spec
        from yaml import YAMLError
    except ImportError as error:
        raise SparkUnsupported(
            f"Spark's declarative pipelines need packages that are missing: {str(error).splitlines()[0]}\n"
            "hint: pip install 'pyspark[pipelines]'"
        ) from error
    try:
        return load_pipeline_spec(path)
    except PySparkException as error:
        raise DeclarationError([reason_of(error)]) from error
    except (YAMLError, UnicodeDecodeError, TypeError, KeyError, AttributeError) as error:
        # Spark takes the file to be a mapping, with lists of mappings.
        shown = " ".join(str(error).split())
        raise DeclarationError(
            [
                f"not the spec of a pipeline: {shown}\n"
                "hint: it has name, storage and libraries, as spark-pipelines init writes them"
            ]
        ) from error


def load(path: Path, spec: PipelineSpec, spark: SparkSession | None, problem: str = "") -> Project:
    """Run the definition files of a project, and call the functions of its flows, as Spark's command does. ``spark``:
    the global of this name in the files; None without Java, ``problem`` is then the reason. Raises DeclarationError."""
    graph, folder = DataflowGraph(), path.parent.resolve()
    with contextlib.chdir(folder), graph_element_registration_context(graph):
        for library in spec.libraries:
            for file in _files(folder, library.include, graph):
                if file.suffix == ".sql":
                    graph.register_sql("", file.relative_to(folder))
                elif file.suffix == ".py":
                    _run(file, spark)
                else:
                    raise DeclarationError([f"{file} is neither a .py nor a .sql file: spark-pipelines refuses it"])
        made = _queries(graph, spark, problem)
    return Project(str(spec.name), str(spec.storage), graph, dict(spec.configuration), made)


def _files(folder: Path, include: str, graph: DataflowGraph) -> list[Path]:
    try:
        paths = sorted(folder.glob(include))
    except (ValueError, NotImplementedError) as error:
        raise DeclarationError(
            [f"libraries: include {include!r} names no files: {error}\nhint: write it as flows/**, below {folder}"]
        ) from error
    files = [file for file in paths if file.is_file() and "__pycache__" not in file.parts]
    if not files:
        graph.unread.append(f"libraries: there is no file {include} below {folder}")
    return files


def _run(file: Path, spark: SparkSession | None) -> None:
    module_spec = importlib.util.spec_from_file_location(file.stem, file)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    vars(module)["spark"] = spark
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        hint = "" if spark is not None else "\nhint: a file that uses the session where it is imported needs Java"
        raise DeclarationError([f"{_where(file, error)}: {_reason(error)}{hint}"]) from error


def _queries(graph: DataflowGraph, spark: SparkSession | None, problem: str) -> tuple[FlowQuery, ...]:
    """Those of the flows that write; the views that they read are made before."""
    writing = [flow for flow in graph.flows if not graph.is_view(flow)]
    if spark is None:
        return tuple(FlowQuery(flow, problem=problem) for flow in writing)
    views = [flow for flow in graph.flows if graph.is_view(flow)]
    # A view may be declared before another one that it reads.
    while made := [flow for flow in views if _is_made(flow, spark)]:
        views = [flow for flow in views if flow not in made]
    return tuple(_query(flow) for flow in writing)


def _is_made(view: Flow, spark: SparkSession) -> bool:
    frame = _query(view).frame
    if frame is None:
        return False
    # Spark refuses some names, and then what reads the view.
    with contextlib.suppress(PySparkException):
        frame.createOrReplaceTempView(view.target)
    return True


def _query(flow: Flow) -> FlowQuery:
    try:
        frame: object = flow.func()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a function of the user's: its reason is part of the explanation
        return FlowQuery(flow, problem=f"{flow.name}() has failed: {_reason(error)}")
    if not isinstance(frame, DataFrame):
        return FlowQuery(flow, problem=f"{flow.name}() returns no DataFrame: {type(frame).__name__}")
    return FlowQuery(flow, frame)


def _reason(error: BaseException) -> str:
    return reason_of(error) if isinstance(error, PySparkException) else f"{type(error).__name__}: {error}"


def _where(file: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{file}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    return f"{file}, line {lines[-1]}" if lines else str(file)
