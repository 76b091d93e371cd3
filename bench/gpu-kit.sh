#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the GPU kit: a folder that tests and measures the CUDA backend on a machine with an NVIDIA driver, cuBLASLt, NCCL and
# Python 3.8, but without compiler, jq or network. It holds the programs and GPU tests, their libraries except libc, the
# driver's and CUDA's, test data, model shapes and run.sh. Needs the CUDA toolkit and the packages of ./deploy/packages.sh,
# no GPU. The kit's build has no MPI, so it uses one GPU. It has only the portable CPU kernels, to stay small.
# Usage: bench/gpu-kit.sh --out DIR [--build DIR] [--architectures LIST] [--jobs N]
#   --out DIR             folder to create; DIR.tar.gz is the same as one file
#   --build DIR           build folder (default build/kit); an interrupted build continues
#   --architectures LIST  CUDA architectures, separated by semicolons (default 90a-real: H100 and H200)
#   --jobs N              parallel compile jobs (default: the number of cores)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
size_limit_kib=$((60 * 1024))

out='' build=$root/build/kit architectures=90a-real jobs=$(nproc)
while [ $# -gt 0 ]; do
    case $1 in
    --out | --build | --architectures | --jobs)
        [ $# -gt 1 ] || { echo "$1: needs a value" >&2; exit 2; }
        printf -v "${1#--}" %s "$2"
        shift 2
        ;;
    *)
        echo "unknown option '$1': see the head of $0" >&2
        exit 2
        ;;
    esac
done
[ -n "$out" ] || { echo "--out DIR: is required" >&2; exit 2; }
[ ! -e "$out" ] || [ -e "$out/run.sh" ] || { echo "--out '$out': exists and is no kit" >&2; exit 2; }

# ---- build ----

programs=(forepack forepack-bench forepack-router forepack-worker forepack-speculator)
cmake -S "$root" --preset cuda -B "$build" -DFOREPACK_MPI=OFF -DFOREPACK_X86_LEVELS=OFF -DFOREPACK_CUDA_COMPRESS=ON \
    -DCMAKE_SKIP_BUILD_RPATH=ON \
    -DCMAKE_CUDA_ARCHITECTURES="$architectures" >&2
cmake --build "$build" --target "${programs[@]}" forepack_cuda gpu_tests -j "$jobs" >&2

# ---- copy ----

rm -rf "$out"
mkdir -p "$out"/{bin,lib,bench/shapes,tests/data,licenses}
for program in "${programs[@]}" libforepack_cuda.so; do
    strip -o "$out/bin/$program" "$build/bin/$program"
done
for test in "$build"/bin/check_*_gpu; do
    strip -o "$out/tests/${test##*/}" "$test"
done
strip -o "$out/lib/libforepack_cuda_tested.so" "$build/bin/libforepack_cuda_tested.so"
cp -r "$root"/tests/data/{golden,lengths,models,shapes} "$out/tests/data/"
cp "$root"/bench/shapes/*.json "$out/bench/shapes/"
cp "$root"/bench/gpu-kit/*.* "$root/bench/transformers_padded.py" "$out/"
cp "$root/LICENSE" "$out/licenses/forepack"

# needed FILE...: name and path of every shared library that the files need; the path is empty if it is not found.
needed() {
    LD_LIBRARY_PATH=$build/bin ldd "$@" | awk '$2 == "=>" { print $1, ($3 ~ "^/" ? $3 : "") }' | sort -u
}
is_libc='^(libc|libm|libdl|librt|libpthread|libresolv|ld-linux[^ ]*)\.so'
is_cuda='^lib(cuda|cudart|cublas|cublasLt|nccl|nv[^ ]*)\.so'
while read -r name path; do
    [ -n "$path" ] || { echo "$name: needed by the programs, but not found here" >&2; exit 1; }
    [ -e "$out/lib/$name" ] || cp "$(readlink -f "$path")" "$out/lib/$name"
    real=$(readlink -f "$path")
    package=$({ dpkg -S "$real" || dpkg -S "${real#/usr}"; } 2>/dev/null | sed 's/:.*//;q') || true
    [ ! -e "/usr/share/doc/$package/copyright" ] || cp "/usr/share/doc/$package/copyright" "$out/licenses/$package"
done < <(needed "$out"/bin/* "$out"/tests/check_*_gpu | grep -vE "$is_libc|$is_cuda")

# The libraries that run.sh must find on the machine.
needed "$out/bin/libforepack_cuda.so" | grep -oE "${is_cuda}[^ ]*" >"$out/cuda-libraries"
[ -s "$out/cuda-libraries" ] || { echo "libforepack_cuda.so needs no CUDA library: was it linked?" >&2; exit 1; }
{
    echo "commit $(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)"
    echo "architectures $architectures"
    echo "libc $(ldd --version | awk 'NR == 1 { print $NF }')"
    echo "CUDA $(sed -n 's/^set(CMAKE_CUDA_COMPILER_VERSION "\(.*\)")$/\1/p' "$build"/CMakeFiles/*/CMakeCUDACompiler.cmake)"
} >"$out/version"

size_kib=$(du -sk "$out" | cut -f 1)
[ "$size_kib" -le $size_limit_kib ] || { echo "$out: $size_kib KiB, more than $size_limit_kib" >&2; exit 1; }
tar -C "$(dirname "$out")" -czf "$out.tar.gz" "$(basename "$out")"
echo "$out: $size_kib KiB; as one file: $out.tar.gz, $(du -k "$out.tar.gz" | cut -f 1) KiB"
