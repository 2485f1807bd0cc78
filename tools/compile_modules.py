"""Compile the hot modules with mypyc.

Usage: python -m tools.compile_modules [--into FOLDER]. Without a folder they are those of this source tree, which uses
them until one of their sources changes (``einmal.compiled``).
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from mypyc.build import mypycify
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

from einmal.compiled import FOLDER, ROOT, SOURCES, SUFFIX, stamp_of

MODULES: Final = (
    "einmal.wire.fetch",
    "einmal.wire.message_writer",
    "einmal.wire.metadata",
    "einmal.wire.primitives",
    "einmal.wire.produce",
    "einmal.wire.record_batch",
    "einmal.wire.record_scan",
    "einmal.wire.request_reader",
    "einmal.log.admission",
    "einmal.log.partition_log",
    "einmal.log.producer_state",
    "einmal.log.segment",
    "einmal.log.segments",
    "einmal.client.cores.partition_reading",
    "einmal.client.cores.producer_batch",
    "einmal.client.cores.producer_core",
    "einmal.client.cores.record_router",
)
"""Each runs for every record, batch or request, and gains by it (docs/benchmarks.md)."""
_PROCESSORS: Final = os.cpu_count() or 1


class _ParallelBuild(build_ext):  # type: ignore[misc]
    """Also compiles the C files of one extension at the same time: nearly all of them are one extension's."""

    def build_extension(self, ext: Extension) -> None:
        with ThreadPoolExecutor(_PROCESSORS) as pool:
            objects = pool.map(partial(self._compile_file, ext), ext.sources)
            ext.extra_objects = [object_file for compiled in objects for object_file in compiled]
        ext.sources = []
        super().build_extension(ext)

    def _compile_file(self, ext: Extension, source: str) -> list[str]:
        compiled: list[str] = self.compiler.compile(
            [source],
            output_dir=self.build_temp,
            # mypyc writes the headers of a group into the folder that its name begins with, and looks above it.
            include_dirs=[*ext.include_dirs, str(Path(source).parent / "einmal")],
            extra_postargs=ext.extra_compile_args,
        )
        return compiled


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile the hot modules.")
    parser.add_argument("--into", type=Path, help="the folder for the compiled modules, each under its whole name")
    into = parser.parse_args().into
    if into is not None:
        compile_modules(into)
        return
    new = FOLDER.with_name(f"{FOLDER.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    # As they are before they are read: what changes meanwhile counts as changed.
    stamps = [stamp_of(source) for source in sorted(sources_of(MODULES))]
    compile_modules(new)
    (new / SOURCES).write_text("\n".join(stamps))
    shutil.rmtree(FOLDER, ignore_errors=True)
    new.rename(FOLDER)


def compile_modules(into: Path) -> None:
    """Raises SystemExit or an error of setuptools."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="einmal-compiled-") as folder:
        paths = [str(_path_of(module)) for module in MODULES]
        # More optimization takes longer to compile, and makes the scan of records slower (gcc 12).
        extensions = mypycify(
            paths,
            group_name="einmal.compiled",
            opt_level="1",
            debug_level="0",
            multi_file=True,
            target_dir=f"{folder}/c",
        )
        command = _ParallelBuild(Distribution({"name": "einmal", "ext_modules": extensions}))
        command.build_lib, command.build_temp = f"{folder}/lib", f"{folder}/o"
        command.parallel = _PROCESSORS
        command.ensure_finalized()
        command.run()
        for path in Path(folder, "lib").rglob(f"*{SUFFIX}"):
            shutil.copy(path, into / ".".join(path.relative_to(folder, "lib").parts))


def sources_of(modules: tuple[str, ...]) -> set[str]:
    """The paths of modules and of what they import, directly or not, from the root of the tree.

    The compiler takes constants and types out of all of them.
    """
    sources: set[str] = set()
    waiting = list(modules)
    while waiting:
        path = _path_of(waiting.pop())
        source = path.relative_to(ROOT).as_posix()
        if source not in sources:
            sources.add(source)
            waiting += _imported(path)
    return sources


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("einmal."):
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                if _path_of(name).exists():
                    yield name


def _path_of(module: str) -> Path:
    """A module's file, or its package's."""
    path = ROOT / "src" / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


if __name__ == "__main__":
    main()
