"""A pytest plugin that imports one module with a mutation in it; no file is changed.

``EINMAL_MUTATION`` names the module, its file and the number of the mutation. Load it with ``-p``, before anything
imports the module.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

from tests.mutation.operators import mutate

VARIABLE: Final = "EINMAL_MUTATION"


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, number: int) -> None:
        super().__init__(name, path)
        self._number = number

    def get_code(self, fullname: str) -> CodeType | None:
        # Never from a cache, and never into one.
        return compile(mutate(Path(self.path).read_text(), self._number), self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, name: str, path: str, number: int) -> None:
        self._name = name
        self._loader = _Loader(name, path, number)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._loader.path, loader=self._loader)


def _install(setting: str) -> None:
    name, path, number = setting.split(",")
    assert name not in sys.modules, f"{name} is imported already"
    sys.meta_path.insert(0, _Finder(name, path, int(number)))


if VARIABLE in os.environ:
    _install(os.environ[VARIABLE])
