#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# stubs.sh VENV: makes stand-ins in VENV/stubs for the CUDA libraries that PyPI's torch links but that are not installed.
# Does nothing if they are complete. Their functions do nothing: on the CPU torch calls none of them, and the real
# libraries take 2 GB.
set -euo pipefail
stubs=$1/stubs
exec 7>"$1.lock"
flock 7 # another test may be making them
[ ! -e "$stubs/real" ] || exit 0
libraries=("$1"/lib/python3*/site-packages/torch/lib/*.so)
real=("$1"/lib/python3*/site-packages/nvidia/*/lib)
rm -rf "$stubs"
mkdir "$stubs"
prefixes='nvshmem|cublas|cudnn|nccl|cusparse|cufft|cuFile|nvrtc|cusolver'
nm -D --undefined-only "${libraries[@]}" | sed -En "s/.* U (($prefixes)[A-Za-z0-9_]*)(@(.*))?/\1 \4/p" | sort -u >"$stubs/symbols"
awk '{ print "void " $1 "(void) {}" }' "$stubs/symbols" >"$stubs/stubs.c"
# torch needs some symbols with a version. A stand-in without it would be refused by the loader.
awk '$2 { of[$2] = of[$2] $1 ";" } END { for (v in of) print v " { " of[v] " };" }' "$stubs/symbols" >"$stubs/versions"
cc -w -shared -fPIC -fno-builtin "$stubs/stubs.c" -o "$stubs/stubs.so" -Wl,--version-script="$stubs/versions"
for name in $(readelf -d "${libraries[@]}" | sed -En 's/.*NEEDED.*\[(lib(cu|nv|nccl)[^]]*)\]/\1/p' | sort -u); do
    [ -e "${real[0]}/$name" ] || ln -s stubs.so "$stubs/$name"
done
ln -s "${real[0]}" "$stubs/real"
