"""The program ``einmal``: Ctrl-C ends it without a traceback also while it still imports its modules.

It is outside the package ``einmal``, whose own import takes half of that time, and imports only what Python has loaded
at its start.
"""

# signal imports enum: Ctrl-C would come meanwhile, too.
import _signal  # type: ignore[import-not-found]
import os


def end_on_interrupt() -> None:
    """From now on Ctrl-C ends the process at once, with status 130. Where SIGINT is ignored, it remains so."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _end)


def main() -> None:
    """The command: from where its modules are imported it has SIGINT as Python gives it."""
    end_on_interrupt()
    from einmal.cli.app import main as run

    if _signal.getsignal(_signal.SIGINT) is _end:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    run()


def _end(_number: int, _frame: object) -> None:
    # Nothing is written yet that would have to be flushed.
    os._exit(130)
