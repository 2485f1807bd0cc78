"""Parse Python source for the tools and tests that look at the project's own code."""

from __future__ import annotations

import ast
import gc


def parse(text: str) -> ast.Module:
    """The syntax tree of a module.

    The garbage collector is off meanwhile. Before Python 3.11.8, a parser that runs inside another one makes the outer
    one fail with a SystemError (https://github.com/python/cpython/issues/106905), and a finalizer is enough: asyncio
    reports a lost exception of a task when it is collected, and formatting that traceback parses the lines in it.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if collecting:
            gc.enable()
