"""Which Python runs the workers of a Spark on this machine: this one, with PySpark as it is installed.

Spark puts PySpark into a worker's path as a zip, out of which Python compiles every module anew: 0.7 s of CPU for each
daemon of workers and for each query's source. The installed package is the same, and compiled. So the workers are
started by a small script that removes the zip from ``PYTHONPATH``, wherever it is (behind Spark's jar for what plans,
in front of everything for what runs tasks), and starts our daemon in place of PySpark's, whatever it is to run: Spark
asks for its own where it plans.
"""

from __future__ import annotations

import os
import shlex
import site
import sys
from pathlib import Path
from typing import Final

import pyspark

from einmal.spark.environment.cache import kept

_SCRIPT: Final = """\
#!/bin/sh
# This Python, without Spark's zip of PySpark and its jar: a process that finds them first compiles PySpark again.
a={seen} b={real} kept= IFS=:
set -f
for each in $PYTHONPATH; do
  case $each in
  "$a"/python/lib/pyspark.zip | "$a"/python/lib/py4j-*-src.zip | "$a"/jars/spark-core_*.jar) ;;
  "$b"/python/lib/pyspark.zip | "$b"/python/lib/py4j-*-src.zip | "$b"/jars/spark-core_*.jar) ;;
  *) kept=$kept:$each ;;
  esac
done
unset IFS
set +f
export PYTHONPATH="${{kept#:}}"
if [ "$1 $2" = "-m pyspark.daemon" ]; then shift 2; set -- -m pyspark_einmal.daemon "$@"; fi
exec {python} "$@"
"""


def worker_python() -> str:
    """For ``PYSPARK_PYTHON``; the interpreter itself where it would not find this PySpark without the zip."""
    package = Path(pyspark.__file__).parent
    if package.parent not in map(Path, [*site.getsitepackages(), site.getusersitepackages()]):
        return sys.executable
    # Spark names itself by the real path, also where this Python sees it through a symbolic link.
    seen, real = (shlex.quote(str(path)) for path in (package, package.resolve()))
    text = _SCRIPT.format(seen=seen, real=real, python=shlex.quote(sys.executable))
    script = kept("python-{}", text, mode=0o755)
    # Not so on a file system that nothing may be run from.
    return str(script) if os.access(script, os.X_OK) else sys.executable
