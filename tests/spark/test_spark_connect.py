"""Spark Connect is refused in so many words. Its client (grpcio) is not among our packages: no server runs here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkAttributeError
from pyspark.sql import DataFrame

from einmal.spark import PipelineRefused, session, write, write_stream


class ConnectSession:
    """What a Connect session raises where a classic one has its JVM."""

    def __getattr__(self, name: str) -> Any:
        raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": name})


def frame(*, streaming: bool) -> DataFrame:
    return cast(DataFrame, SimpleNamespace(isStreaming=streaming, sparkSession=ConnectSession()))


def test_a_connect_session_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PipelineRefused, match="Spark Connect, whose driver runs elsewhere"):
        session(master="sc://127.0.0.1:15002")
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:15002")
    with pytest.raises(PipelineRefused, match="spark-submit"):
        session()


def test_a_frame_of_a_connect_session_is_not_written() -> None:
    bootstrap = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    with pytest.raises(PipelineRefused, match="Spark Connect"):
        write(frame(streaming=False)).options(**bootstrap).save()
    stream = write_stream(frame(streaming=True)).options(**bootstrap, **{"transactional.id": "t"})
    with pytest.raises(PipelineRefused, match="Spark Connect"):
        stream.option("checkpointLocation", "/nowhere").start()
