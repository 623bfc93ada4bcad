#!/bin/sh
# Pins every requirement. The files name no registry; what torch itself needs on a
# machine with CUDA (nvidia-*, triton) is left to torch, because it differs by build.
set -eu
cd "$(dirname "$0")/.."
uv=.venv/bin/uv
[ -x "$uv" ] || { echo "lock: run make check once: it installs uv" >&2; exit 1; }
options="--python-version 3.11 --no-header --no-annotate --quiet $*"
# shellcheck disable=SC2086
for name in requirements-web requirements requirements-ldap requirements-saml requirements-otel requirements-dev; do
    "$uv" pip compile "$name.in" -o "$name.txt" $options
    sed -i -e 's/^\(torch==[0-9.]*\)+.*/\1/' \
        -e '/^nvidia-ml-py/!{/^nvidia-/d}' -e '/^cuda-/d' -e '/^triton==/d' \
        "$name.txt"
done
