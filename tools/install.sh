#!/bin/sh
# Usage: sh tools/install.sh BIN ARGUMENTS: install packages, checked by their hashes, into the environment of BIN.
# uv needs a third of pip's time. It reads no settings of pip's (an index, a proxy): where it fails, pip tries, too.
bin=$1
shift
echo "installing Python packages, which takes half a minute ..." >&2
"$bin/uv" pip install -q --python "$bin/python" --require-hashes --no-build-isolation "$@" && exit
echo "uv could not install these packages; trying with pip, which takes longer" >&2
exec "$bin/python" -m pip install -q --require-hashes --no-build-isolation "$@"
