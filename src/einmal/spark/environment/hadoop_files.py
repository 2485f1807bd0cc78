"""The files of a directory, through Hadoop's FileSystem, as Spark accesses them: local, on HDFS, or in an object store.

A file appears under its name whole or not at all, and never replaces another.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopFiles:
    """``uri``: of the directory, in full: two spellings of one location are one name."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        jvm = spark._jvm
        assert jvm is not None
        # A class is looked up once: each part of a package's name is a question to the JVM.
        self._new_path: Any = jvm.org.apache.hadoop.fs.Path
        self._text_of: Any = jvm.org.apache.commons.io.IOUtils
        self._rename: Any = jvm.org.apache.hadoop.fs.Options.Rename
        configuration = spark._jsparkSession.sessionState().newHadoopConf()
        path = self._new_path(location)
        self._fs = path.getFileSystem(configuration)
        self._root = self._fs.makeQualified(path)
        self._context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._fs.getUri(), configuration)
        self._gateway: Any = spark.sparkContext._gateway
        self.uri = str(self._root.toString())

    def exists(self, name: str) -> bool:
        return bool(self._fs.exists(self._path(name)))

    def read(self, name: str) -> str | None:
        """The text of a file; None where there is none."""
        path = self._path(name)
        if not self._fs.exists(path):
            return None
        stream = self._fs.open(path)
        try:
            return str(self._text_of.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def names(self, directory: str) -> list[str]:
        """The names in a directory."""
        path = self._path(directory)
        if not self._fs.exists(path):
            return []
        return [str(status.getPath().getName()) for status in self._fs.listStatus(path)]

    def names_below(self, directory: str) -> list[str]:
        """The names of all files below a directory."""
        path = self._path(directory)
        if not self._fs.exists(path):
            return []
        files, names = self._fs.listFiles(path, True), []
        while files.hasNext():
            names.append(str(files.next().getPath().getName()))
        return names

    def delete(self, name: str) -> None:
        self._fs.delete(self._path(name), False)

    def create(self, name: str, text: str) -> None:
        """Raises FileExistsError."""
        target = self._path(name)
        self._fs.mkdirs(target.getParent())
        temporary = self._new_path(target.getParent(), f".{target.getName()}.{uuid.uuid4()}.tmp")
        stream = self._fs.create(temporary, True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        if self._fs.exists(target):
            self._fs.delete(temporary, False)
            raise FileExistsError(f"{target.toString()} exists already")
        # Without a flag: a file that has appeared since is an error, not replaced.
        try:
            self._context.rename(temporary, target, self._gateway.new_array(self._rename, 0))
        except Py4JJavaError as error:
            if "FileAlreadyExists" not in str(error):
                raise
            self._fs.delete(temporary, False)
            raise FileExistsError(f"{target.toString()} exists already") from error

    def _path(self, name: str) -> Any:
        return self._new_path(self._root, name)
