#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the GPU kit (bench/gpu-kit.sh) and tries it in a chroot with nothing but libc, bash, coreutils and Python: the sentence
# about missing libraries, the message that there is no GPU with NVIDIA's libraries from the toolkit or from Python's packages,
# and a trial of all measurements on the CPU. Needs root and the CUDA toolkit.
# Expects FOREPACK_SOURCE (repository) and FOREPACK_BUILD (a build folder; the kit is built in its subfolder kit).
set -euo pipefail

skip() {
    echo "skipped: $*"
    exit 77
}
fail() {
    echo "FAILED: $*" >&2
    exit 1
}
[ "$(id -u)" = 0 ] || skip "a chroot needs root"
unshare --mount true 2>/dev/null || skip "this machine does not allow mounts"
[ ! -e /dev/nvidiactl ] || skip "this machine has a GPU"
cuda=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
[ -x "$cuda" ] || skip "nvcc is not installed"
cuda=$(dirname "$(dirname "$(readlink -f "$cuda")")")
python=/usr/bin/python3
[ -x $python ] || skip "there is no $python"

work=$(mktemp -d "${TMPDIR:-/tmp}/forepack kit XXXXXX") # a path with a space, on purpose
trap 'rm -rf "$work"' EXIT
"$FOREPACK_SOURCE/bench/gpu-kit.sh" --out "$work/kit" --build "$FOREPACK_BUILD/kit" >"$work/build.log" 2>&1 ||
    { tail -30 "$work/build.log" >&2; fail "bench/gpu-kit.sh ended with an error"; }
[ -s "$work/kit.tar.gz" ] || fail "no kit.tar.gz"

# ---- a bare machine ----

bare=$work/bare
mkdir -p "$bare"/{proc,dev,tmp,etc,usr/bin,usr/lib,usr/lib64}
for folder in bin lib lib64; do
    [ -L /$folder ] && cp -P /$folder "$bare/"
done
# copy_library FILE: to the folder where ld.so looks for it.
copy_library() {
    mkdir -p "$bare$(dirname "$1")"
    cp -L "$1" "$bare$1"
}
for tool in bash sh env ls grep dirname ldd; do
    cp -L "$(command -v "$tool")" "$bare/usr/bin/"
done
cp -L $python "$bare/usr/bin/python3"
cp -r "$(dirname "$($python -c 'import os; print(os.__file__)')")" "$bare/usr/lib/"
rm -rf "$bare"/usr/lib/python3*/{test,site-packages,dist-packages,config-*}
{ ldd "$bare"/usr/bin/* "$bare"/usr/lib/python3*/lib-dynload/*.so 2>/dev/null || true; } |
    awk '$2 == "=>" { print $3 } $1 ~ "^/lib.*/ld-" { print $1 }' | sort -u | while read -r file; do copy_library "$file"; done
for file in /usr/lib/x86_64-linux-gnu/lib{resolv,nss_files,pthread,dl,rt}.so*; do
    [ ! -e "$file" ] || copy_library "$file"
done

tar -C "$bare" -xzf "$work/kit.tar.gz"

# bare COMMAND...: runs it in the chroot, which has /proc and /dev.
bare() {
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --kill-child sh -c 'mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" &&
        exec chroot "$0" /usr/bin/env -i PATH=/usr/bin HOME=/tmp "$@"' "$bare" "$@"
}
# expect CODE TEXT COMMAND...: the exit code, and a text in the output.
expect() {
    local code=0 expected=$1 text=$2
    shift 2
    bare "$@" >"$work/said" 2>&1 || code=$?
    [ $code = "$expected" ] || { cat "$work/said" >&2; fail "$*: ended with $code, expected $expected"; }
    grep -q "$text" "$work/said" || { cat "$work/said" >&2; fail "$*: does not say '$text'"; }
}

for gone in gcc jq nvcc nvidia-smi; do
    ! bare env "$gone" --version >"$work/said" 2>&1 || fail "the chroot has $gone"
done
expect 2 "libcublasLt.so.*: not found. Install CUDA" /kit/run.sh --out /tmp/none

# NVIDIA's libraries as Python's packages have them, then as the toolkit has them.
packages=$bare/usr/local/lib/python3.$($python -c 'import sys; print(sys.version_info[1])')/dist-packages/nvidia
mkdir -p "$packages"/{cu13,nccl}/lib "$bare/usr/local"
while read -r name; do
    folder=$packages/cu13/lib
    [[ $name != libnccl* ]] || folder=$packages/nccl/lib
    from=$cuda/lib64/$name
    [ -e "$from" ] || from=$(ldconfig -p | awk -v name="$name" '$1 == name { print $NF; exit }')
    cp -L "$from" "$folder/$name"
done <"$bare/kit/cuda-libraries"
expect 3 "no CUDA device" /kit/run.sh --out /tmp/packages
grep -q "dist-packages/nvidia/nccl/lib" "$work/said" || fail "NCCL of Python's packages was not found"
mkdir -p "$bare/usr/local/cuda-13.0/lib64"
mv "$packages"/*/lib/* "$bare/usr/local/cuda-13.0/lib64/"
expect 3 "no GPU can be used" /kit/run.sh --out /tmp/toolkit
for file in table.md report.html diagnosis.log first.log steps/first.json; do
    [ -s "$bare/tmp/toolkit/$file" ] || fail "a run without a GPU leaves no $file"
done
[ -s "$bare/tmp/toolkit.tar.gz" ] || fail "a run without a GPU leaves no tar file"

# ---- all measurements on the CPU ----

expect 0 "A trial on the CPU" /kit/run.sh --out /tmp/trial --trial
for name in prefill gemms attention-{128,64,cached} decode prepack score fp8 fp8-fast fp8-blocks ttft serve serve-alone attention-fp8 decode-without-graphs; do
    [ -s "$bare/tmp/trial/$name.json" ] || fail "the trial has no $name.json"
done
expect 0 "prefill: passed in an earlier run" /kit/run.sh --out /tmp/trial --trial
echo "gpu_kit: all passed"
