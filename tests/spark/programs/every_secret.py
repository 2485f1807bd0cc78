"""A complete program whose pipelines have a secret in every option that can hold one, for ``einmal run``.

$EINMAL_SECRETS names its plan, in JSON: ``ways``, the client's settings by name; ``source``, the topic to read;
``artefacts``, a directory for everything that can be seen of the program while it runs: pages of Spark's UI and its
REST API, the arguments of its processes, plans, and the temporary files.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import traceback
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from pyspark.sql import SparkSession

from einmal.chaos.processes import session_of
from einmal.pipeline.events import OutputWritten
from einmal.spark import StreamWriter, session, write, write_stream

_API = ("environment", "jobs", "stages", "executors", "sql?details=true", "storage/rdd", "streaming/statistics")
_PAGES = ("jobs/", "stages/", "environment/", "executors/", "SQL/", "StreamingQuery/")


def _kept(directory: Path, name: str, text: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name.replace("/", "_")).write_text(text)


def _keep_processes(artefacts: Path) -> None:
    lines = []
    for pid in session_of(os.getsid(0)):
        with contextlib.suppress(OSError):
            lines.append(f"{pid} {Path(f'/proc/{pid}/cmdline').read_text()}")
    _kept(artefacts, "arguments.txt", "\n".join(lines))


def _keep_pages(spark: SparkSession, artefacts: Path) -> None:
    root = spark.sparkContext.uiWebUrl
    assert root is not None, "the UI is on"
    with urlopen(f"{root}/api/v1/applications", timeout=60) as response:
        (application,) = json.load(response)
    paths = [f"api/v1/applications/{application['id']}/{each}" for each in _API]
    paths += [*_PAGES, *(f"SQL/execution/?id={number}" for number in range(12))]
    for path in paths:
        with contextlib.suppress(HTTPError), urlopen(f"{root}/{path}", timeout=60) as response:
            _kept(artefacts / "ui", path, response.read().decode())


def _stream(spark: SparkSession, plan: dict[str, Any], way: str) -> StreamWriter:
    options = {f"kafka.{name}": value for name, value in plan["ways"][way].items()}
    reader = spark.readStream.format("einmal").options(**options).option("subscribe", plan["source"])
    frame = reader.option("startingOffsets", "earliest").load().select("key", "value")
    _kept(Path(plan["artefacts"]), f"plan-{way}.txt", f"{frame._jdf.queryExecution()} {frame!r} {reader!r}")
    writer = write_stream(frame).format("kafka").options(**options).option("topic", f"{plan['source']}-{way}")
    writer = writer.option("checkpointLocation", str(Path(plan["artefacts"], "checkpoints", way)))
    return writer.option("transactional.id", f"{plan['source']}-{way}").trigger(availableNow=True)


def main() -> None:
    plan = json.loads(Path(os.environ["EINMAL_SECRETS"]).read_text())
    artefacts = Path(plan["artefacts"])
    spark = session()

    def look(event: object) -> None:
        # Claims are open, and the tasks have just run.
        if isinstance(event, OutputWritten):
            _keep_processes(artefacts)
            for name in ("local", "tmp"):
                # Some of the files are gone, or are sockets; the others are copied all the same.
                with contextlib.suppress(shutil.Error):
                    shutil.copytree(artefacts / name, artefacts / f"during-{name}", dirs_exist_ok=True)

    for way in plan["ways"]:
        query = _stream(spark, plan, way).listener(look).start()
        query.awaitTermination()
        options = {f"kafka.{name}": value for name, value in plan["ways"][way].items()}
        frame = spark.read.format("einmal").options(**options).option("subscribe", plan["source"]).load()
        frame.explain("extended")
        write(frame.select("value")).options(**options).option("topic", f"{plan['source']}-{way}").save()
    plan["ways"]["wrong"] = plan["wrong"]
    try:
        _stream(spark, plan, "wrong").start().awaitTermination()
    except Exception:  # noqa: BLE001 - whatever it is, it is printed
        traceback.print_exc()
    _keep_pages(spark, artefacts)
    print("all is kept")


main()
