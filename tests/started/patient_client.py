"""Our client, as tests use it, does not take a process that stands still for one that is not there.

On a busy machine each process may stand still for ten seconds, at any moment. That is what the client gives a broker to
accept a connection and to tell its versions; and then it has not met a broker within ``bootstrap.timeout.ms``. All its
other times are longer, or are settings of the test. For what must be reported soon a test has no silent broker.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

PATIENCE_MS = 100_000


def _of_settings(module: Any) -> None:
    for kind in (module.AdminSettings, module.ConsumerSettings, module.ProducerSettings):
        # What the generated __init__ takes; the documented default stays as it is.
        kind.__init__.__kwdefaults__["socket_connection_setup_timeout_ms"] = PATIENCE_MS


def _of_connections(module: Any) -> None:
    module._CHECK_VERSIONS_MS = PATIENCE_MS


_CHANGES = {"einmal.client.config": _of_settings, "einmal.client.aio.connections": _of_connections}


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        change = _CHANGES.get(name)
        if change is None:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            change(module)

        loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder)
