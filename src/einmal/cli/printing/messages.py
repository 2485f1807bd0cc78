"""Messages on stderr that ``-q`` leaves out: notes and progress. Errors, hints and warnings are printed anyway."""

from __future__ import annotations

import sys


class _Choice:
    """The choice that the options of this command make."""

    is_quiet = False


def be_quiet(quiet: bool) -> None:
    """Whether ``note`` prints nothing from now on."""
    _Choice.is_quiet = quiet


def is_quiet() -> bool:
    return _Choice.is_quiet


def note(text: str, end: str = "\n") -> None:
    """Print what nobody needs to act on."""
    if not _Choice.is_quiet:
        print(text, end=end, file=sys.stderr, flush=True)
