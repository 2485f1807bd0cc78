"""The interpreted twin of a module that may be compiled."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

_SOURCES: Final = Path(__file__).parents[2] / "src"


def interpreted(module: ModuleType) -> ModuleType:
    """The module, run once more from its source; its functions and classes are other ones."""
    spec = spec_from_file_location(module.__name__, _SOURCES.joinpath(*module.__name__.split(".")).with_suffix(".py"))
    assert spec is not None and spec.loader is not None
    twin = module_from_spec(spec)
    spec.loader.exec_module(twin)
    return twin
