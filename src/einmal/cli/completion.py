"""Names of the cluster for a shell's completion: topics, groups, transactional ids.

A cluster is asked for a second. One that does not answer completes nothing, and nothing is reported: the shell would
show it in the middle of the line that is typed.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, suppress
from typing import TYPE_CHECKING, Any, Final

import typer

from einmal.cli.clients import config_of

if TYPE_CHECKING:
    from einmal.client import Admin

_WITHIN_S: Final = 1.0


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """Topics that begin with what is typed; internal ones once an underscore is."""
    is_internal = incomplete.startswith("_")
    return _names(context, incomplete, lambda admin: admin.list_topics(include_internal=is_internal))


def group_names(context: typer.Context, incomplete: str) -> list[str]:
    """Groups that begin with what is typed."""
    return _names(context, incomplete, lambda admin: (group.group_id for group in admin.list_groups()))


def transactional_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Transactional ids that begin with what is typed."""
    return _names(
        context, incomplete, lambda admin: (transaction.transactional_id for transaction in admin.list_transactions())
    )


def _names(context: typer.Context, incomplete: str, ask: Callable[[Admin], Iterable[str]]) -> list[str]:
    names: list[str] = []
    # The line may have the options of a cluster by now.
    options: dict[str, Any] = {name: context.params.get(name) for name in ("brokers", "settings", "command_config")}

    def look() -> None:
        from einmal.client import Admin
        from einmal.client.errors import KafkaError

        with suppress(KafkaError, typer.BadParameter):
            milliseconds = int(_WITHIN_S * 1000)
            limits = {"default.api.timeout.ms": milliseconds, "bootstrap.timeout.ms": milliseconds}
            with Admin({**config_of(**options), **limits}) as admin:
                names.extend(name for name in ask(admin) if name.startswith(incomplete))

    with redirect_stderr(io.StringIO()):
        thread = threading.Thread(target=look, name="einmal-completion", daemon=True)
        thread.start()
        thread.join(_WITHIN_S)
    return sorted(names)
