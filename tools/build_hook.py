"""hatchling's hook: a wheel contains compiled modules; an editable install compiles those of its source tree.

Without a C compiler, and with ``EINMAL_PURE=1``, nothing is compiled, and the sources run as they are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

REQUIREMENTS: Final = ("mypy[mypyc]~=2.4", "setuptools>=80")


class CompilingHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles in a process of its own, whose failure leaves the sources."""

    def dependencies(self) -> list[str]:
        """The compiler's, and the project's own, whose types it needs."""
        return [*REQUIREMENTS, *self.metadata.core.dependencies] if _is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile. ``version``: "standard" or "editable"."""
        if not _is_wanted():
            return
        if version == "editable":
            self._compile()
            return
        self._folder = tempfile.TemporaryDirectory(prefix="einmal-wheel-")
        if self._compile("--into", self._folder.name):
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            for path in Path(self._folder.name).iterdir():
                name, _dot, suffix = path.name.partition(".cpython")
                build_data["force_include"][str(path)] = f"{name.replace('.', '/')}.cpython{suffix}"

    def _compile(self, *arguments: str) -> bool:
        paths = [str(Path(self.root, "src")), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [sys.executable, "-m", "tools.compile_modules", *arguments],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            self.app.display_warning(f"einmal runs interpreted, the compiler has failed:\n{done.stdout}{done.stderr}")
        return done.returncode == 0


def _is_wanted() -> bool:
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or ""
    is_pure = os.environ.get("EINMAL_PURE", "0") not in ("", "0")
    return not is_pure and shutil.which(compiler.split(" ")[0]) is not None
