"""One Spark session per worker, and both brokers for all Spark tests of a run: each costs seconds to start.

Apache Kafka needs Java and Maven; where one is missing its tests are skipped with a reason. A plugin, which
``tests/conftest.py`` names: Spark tests are in several folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.spark.programs.few_rows import FEW_ROWS
from tests.suite import warm
from tests.suite.shared import shared

if TYPE_CHECKING:
    from tests.interop.einmal_broker import EinmalBroker
    from tests.spark.conftest import NodeOf

_TESTS: Final = Path(__file__).parent.parent
_FOLDERS: Final = tuple(f"{_TESTS / name}{os.sep}" for name in ("sinks", "spark"))
_WORKERS: Final = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
"""Variables for the Python of Spark's workers."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Of all tests, for there is one list of them: thousands, which makes comparing paths expensive.
    for item in items:
        if not str(item.path).startswith(_FOLDERS):
            continue
        # pyspark warns of the pandas that it finds, also where it needs none.
        item.add_marker(pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"))
        # A battery names its tests for the long run.
        names = getattr(getattr(item, "cls", None), "in_the_long_run", ())
        if isinstance(item, pytest.Function) and item.originalname in names:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def two_phase() -> EinmalBroker:
    """Our broker, on which transactions can be prepared (KIP-939)."""
    node: EinmalBroker = shared("einmal-two-phase")
    return node


@pytest.fixture(scope="session")
def node_of() -> NodeOf:
    """The broker of a kind, which the whole run shares: "einmal" or "apache", or with "-TV1" one without KIP-890 part
    2."""
    return shared


@pytest.fixture
def bootstrap(request: pytest.FixtureRequest, node_of: NodeOf) -> str:
    """The address of our broker, or of each of those that the test is marked for in turn."""
    return node_of(getattr(request, "param", "einmal")).bootstrap


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    from einmal.spark import session
    from einmal.spark.environment import spark_session
    from einmal.spark.environment.interpreter import worker_python

    local = tmp_path_factory.mktemp("spark-local")
    python = warm.stream_python(Path(worker_python()), local)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(spark_session, "worker_python", lambda: str(python))
        os.environ |= dict.fromkeys(_WORKERS, str(python))
        spark = session(
            "einmal-tests",
            master="local[4]",
            quick=True,
            config={
                "spark.local.dir": local,
                "spark.sql.warehouse.dir": local / "warehouse",
                **FEW_ROWS,
                "spark.sql.session.timeZone": "UTC",
            },
        )
    # Other processes of a test have the Python that they would have without it.
    os.environ |= dict.fromkeys(_WORKERS, worker_python())
    yield spark
    spark.stop()
