"""From a file to a running pipeline: a declaration in TOML, a declared function in Python, or a whole program.

A declared function stays what it was, a function from DataFrames to a DataFrame, which tests call with frames of their
own. A whole program does everything itself, in a session that has been made for it. Which of the two a Python file is
is seen from its text, before anything of it runs.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from einmal.declare import pipeline as declarations
from einmal.declare.document import DeclarationError, flattened
from einmal.declare.pipeline import Declaration, Source, View, Watermark
from einmal.pipeline.errors import PipelineRefused
from einmal.security.properties import read_file
from einmal.spark.api.shared_view import SharedView, needed_behind, shared_view
from einmal.spark.api.sink import StreamWriter, write_stream
from einmal.spark.api.sink_rows import combined
from einmal.spark.decoding.decode import decode
from einmal.spark.writer.handover import STATE_CAVEAT

Function = Callable[..., Any]

_DECLARED: Final = "__einmal_pipeline__"


def pipeline(**declared: Any) -> Callable[[Function], Function]:
    """Declare a function to be a pipeline, for ``einmal run``: its parameters are the sources, by name.

    The arguments are the keys of a ``pipeline.toml``, with nested dicts for its tables and underscores for dots
    (``transactional_id``). A parameter ``spark`` receives the session. The function returns the rows of the only sink,
    or a dict of them by the sinks' names.
    """

    def remember(function: Function) -> Function:
        setattr(function, _DECLARED, declared)
        return function

    return remember


@dataclass(frozen=True, slots=True)
class Program:
    """A declared pipeline. ``function`` is None where SQL makes the rows."""

    declaration: Declaration
    function: Function | None = None


class ProgramKind(StrEnum):
    TABLES = "a declaration in TOML"
    FUNCTION = "a declared function"
    WHOLE = "a whole program"


def kind_of(path: Path) -> ProgramKind:
    """Return the kind of a file, from its text. Raises DeclarationError, OSError."""
    if path.suffix in (".yml", ".yaml"):
        raise DeclarationError(
            [
                f"{path} is no declaration of einmal's: projects of declarative pipelines are run by Spark\n"
                f'hint: spark-pipelines run --spec {path}; a flow into a sink of format("einmal") is exactly_once_v2, '
                f"with one limit. {STATE_CAVEAT}. einmal explain {path} reports what holds for each flow"
            ]
        )
    if path.suffix not in (".toml", ".py"):
        raise DeclarationError([f"{path} is neither a .toml nor a .py file"])
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DeclarationError([f"{path} is not UTF-8 text: {error.reason} at byte {error.start}"]) from error
    if path.suffix == ".toml":
        return ProgramKind.TABLES
    return ProgramKind.FUNCTION if _decorators(path, text) else ProgramKind.WHOLE


def session_settings(path: Path) -> dict[str, str]:
    """The ``spark`` settings of a declared function, from the text of its file: there may be functions of Spark's in
    it, which cannot be made before there is a session. Raises DeclarationError where they are no literal."""
    decorators = _decorators(path, path.read_text(encoding="utf-8"))
    given = [keyword.value for call in decorators for keyword in call.keywords if keyword.arg == "spark"]
    if not given:
        return {}
    if len(decorators) > 1:
        raise DeclarationError(
            [f"{len(decorators)} functions are declared, and spark is read before the file runs\nhint: use --conf"]
        )
    try:
        settings = ast.literal_eval(given[0])
        return {name: str(value) for name, value in flattened({"spark": settings}).items()}
    except (ValueError, AttributeError) as error:
        raise DeclarationError(
            ["spark is a dict of plain values: it is read before the file runs\nhint: or use --conf"]
        ) from error


def load(path: Path, overrides: Mapping[str, str]) -> Program:
    """The pipeline that a file declares. Of a Python file everything at its top is run.

    Raises DeclarationError, OSError, and whatever a Python file raises.
    """
    if kind_of(path) is ProgramKind.TABLES:
        return Program(declarations.parse(path.read_text(encoding="utf-8"), os.environ, overrides, read_file))
    functions = _declared_functions(vars(_module(path)))
    if not functions:
        raise DeclarationError(
            [
                f"{path} declares no pipeline when it is imported\n"
                'hint: the declared function is at the top of the file, and not behind if __name__ == "__main__"'
            ]
        )
    if len(functions) > 1:
        names = ", ".join(function.__name__ for function in functions)
        raise DeclarationError([f"{path} declares {len(functions)} pipelines ({names}), a file has one"])
    function = functions[0]
    declaration = declarations.declare(getattr(function, _DECLARED), overrides)
    _check_parameters(function, declaration)
    return Program(declaration, function)


def run_whole(path: Path) -> list[str]:
    """Run a whole program as Python would. Its ``session()`` finds the session that is there. Return the names of
    functions of its own that it has declared."""
    sys.path.insert(0, str(path.parent))
    left = runpy.run_path(str(path), run_name="__main__")
    return [function.__name__ for function in _declared_functions(left) if function.__module__ == "__main__"]


def _decorators(path: Path, text: str) -> list[ast.Call]:
    """The calls of ``pipeline``, under whichever name it is imported, that decorate a function of the file."""
    try:
        tree = ast.parse(text, str(path))
    except SyntaxError as error:
        raise DeclarationError([f"{path}, line {error.lineno}: {error.msg}"]) from error
    statements = list(_run_at_the_top(tree))
    names = {pipeline.__name__} | {
        alias.asname or alias.name
        for node in statements
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == pipeline.__name__
    }
    return [
        decorator
        for node in statements
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and _name(decorator.func) in names
    ]


def _run_at_the_top(tree: ast.AST) -> Iterator[ast.AST]:
    """The statements that are run with the file, those behind an ``if`` among them, and not the bodies of functions."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            yield from _run_at_the_top(node)


def _name(called: ast.expr) -> str | None:
    return called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else None


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    # Not among sys.modules: so a function of the file travels to the workers by value, which do not have the file.
    spec.loader.exec_module(module)
    return module


def _declared_functions(names: Mapping[str, Any]) -> list[Function]:
    """Each once, however many names it has."""
    declared = {id(value): value for value in names.values() if callable(value) and hasattr(value, _DECLARED)}
    return list(declared.values())


def _check_parameters(function: Function, declaration: Declaration) -> None:
    wanted = {name for name in inspect.signature(function).parameters if name != "spark"}
    known = {source.name for source in declaration.sources}
    if wanted != known:
        raise DeclarationError(
            [
                f"{function.__name__} takes {', '.join(sorted(wanted)) or 'nothing'}, but the declared sources are "
                f"{', '.join(sorted(known))}\nhint: each source is the parameter of its name"
            ]
        )


# --- frames -----------------------------------------------------------------------------------------------------


def writer(program: Program, spark: SparkSession) -> StreamWriter:
    """Return the stream to start: the declared frames, with the declared options. Raises PipelineRefused,
    OptionError."""
    declaration = program.declaration
    frames = _frames(program, spark)
    combine = partial(combined, declaration)
    origins = [str(sink.origin) for sink in declaration.sinks]
    shared = shared_view(frames, origins) if program.function is None and len(origins) > 1 else None
    if shared is None:
        started = write_stream(combine(frames))
    else:
        needed = needed_behind(shared, frames, origins)
        behind = [view for view in declaration.views if view.name.lower() in needed and view.name != shared]
        transform = SharedView(shared, behind, combine).transform
        started = write_stream(frames[shared]).each_batch(transform, combine(frames).schema)
    started = started.options(**declaration.writer)
    topics = [sink for sink in declaration.sinks if sink.is_topic]
    others = [sink for sink in declaration.sinks if not sink.is_topic]
    if len(topics) == 1 and not others and topics[0].topic is not None:
        started = started.option("topic", topics[0].topic)
    else:
        started = started.topics(*(sink.topic for sink in topics if sink.topic is not None))
    if len(others) == 1 and not topics:
        started = started.format(others[0].kind).options(**others[0].options)
    elif others:
        started = started.sinks({sink.name: (sink.kind, sink.options) for sink in others}, topics=bool(topics))
    if declaration.output_mode is not None:
        started = started.outputMode(declaration.output_mode)
    if declaration.trigger:
        started = started.trigger(**declaration.trigger)
    return started.queryName(declaration.name)


def rows(program: Program, spark: SparkSession) -> DataFrame:
    """Everything that the pipeline writes, as one frame; of several sinks with a topic column. Raises
    PipelineRefused."""
    return combined(program.declaration, _frames(program, spark))


def _frames(program: Program, spark: SparkSession) -> dict[str, DataFrame]:
    """Return the frames of the sources and views; where code makes the rows, of the sinks."""
    declaration = program.declaration
    frames = {source.name: _read(source, spark) for source in declaration.sources}
    if program.function is not None:
        return _call(program.function, frames, declaration, spark)
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    for view in declaration.views:
        frames[view.name] = _query(view, spark)
    return frames


def _read(source: Source, spark: SparkSession) -> DataFrame:
    where = f"sources.{source.name}"
    try:
        frame = spark.readStream.format(source.format).options(**source.options).load()
    except PySparkException as error:
        raise _refused(where, error, "a format of others is a jar or a package of theirs") from error
    if source.decoding:
        frame = decode(frame, source.decoding, name=source.name)
    return _watermarked(where, frame, source.watermark)


def _query(view: View, spark: SparkSession) -> DataFrame:
    where = f"views.{view.name}"
    try:
        frame = spark.sql(view.sql)
    except PySparkException as error:
        raise _refused(where, error, "a view knows the sources, and the views before it") from error
    frame = _watermarked(where, frame, view.watermark)
    frame.createOrReplaceTempView(view.name)
    return frame


def _watermarked(where: str, frame: DataFrame, watermark: Watermark | None) -> DataFrame:
    if watermark is None:
        return frame
    try:
        return frame.withWatermark(watermark.column, watermark.delay)
    except PySparkException as error:
        hint = 'column is a timestamp of these rows, and delay an interval such as "10 seconds"'
        raise _refused(f"{where}: watermark", error, hint) from error


def _call(
    function: Function, frames: Mapping[str, DataFrame], declaration: Declaration, spark: SparkSession
) -> dict[str, DataFrame]:
    wants_session = "spark" in inspect.signature(function).parameters
    try:
        made = function(**frames, **({"spark": spark} if wants_session else {}))
    except (AnalysisException, IllegalArgumentException) as error:
        raise _refused(function.__name__, error, "the columns of each source are Spark's for Kafka") from error
    names = [sink.name for sink in declaration.sinks]
    if isinstance(made, DataFrame) and len(names) == 1:
        return {names[0]: made}
    if isinstance(made, dict) and set(made) == set(names):
        return made
    wanted = "a DataFrame" if len(names) == 1 else f"a dict with a DataFrame for each of {', '.join(names)}"
    raise PipelineRefused(f"{function.__name__} returns {wanted}, not {made!r}")


def _refused(where: str, error: PySparkException, hint: str) -> PipelineRefused:
    return PipelineRefused(f"{where}: {str(error).strip().splitlines()[0]}", hint)
