#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the format of all C, C++ and CUDA files with clang-format 14 (.clang-format), and the product's C files with
# clang-tidy 14 (.clang-tidy) and cppcheck 2.10 (tests/cppcheck.cfg, tests/cppcheck.supp). Also checks that only
# lib/messages/unpack.c unpacks messages, that test files end with SUITE(), that each folder uses only lower folders,
# that no files call each other in a cycle, and that exported functions have callers (tests/structure.py).
# Checks links, paths and lines of the documents (tests/docs.py).
# Exit codes: 0 clean, 1 findings, 77 a tool is not installed.
# Usage: tests/lint.sh [BUILD_FOLDER]     a folder where the project was built; default build/dev
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/dev}

# tool NAME VERSION: the command that runs this version, NAME-VERSION (Debian's name) or NAME.
tool() {
    local name
    for name in "$1-$2" "$1"; do
        if command -v "$name" >/dev/null && [[ $("$name" --version) =~ (^|[^0-9.])$2([^0-9]|$) ]]; then
            echo "$name"
            return
        fi
    done
    echo "skipped: $1 $2 is not installed (deploy/packages.sh --lint)" >&2
    exit 77
}
format=$(tool clang-format 14)
tidy=$(tool clang-tidy 14)
cppcheck=$(tool cppcheck 2.10)
[ -e "$build/compile_commands.json" ] || { echo "$build: build the project there first" >&2; exit 1; }

code=0
tests/docs.py || code=1
git ls-files -z '*.c' '*.h' '*.cpp' '*.cu' | xargs -0 "$format" --dry-run -Werror || code=1

# Messages of peers are unpacked with a bound on memory. Tests, benches and the simulator unpack their own messages.
if git grep -nE '(__|protobuf_c_message_)unpack\(' -- '*.c' ':!lib/messages/unpack.c' ':!tests' ':!bench' ':!sim'; then
    echo "lint: use proto_unpack() of lib/messages/unpack.h" >&2
    code=1
fi

# Test files register their tests with tests/suite.h, which defines main(), and an assert has one condition.
if git grep -nE '^int main\(|\<srunner_|^ *ck_assert(_msg)?\([^|"]*&&' -- 'tests/check_*.c' 'tests/check_*.cpp'; then
    echo "lint: end the file with SUITE() of tests/suite.h, and divide asserts of several conditions" >&2
    code=1
fi

# With pipefail, a command that still writes when grep -q has ended fails: use grep -q PATTERN <<<"$(COMMAND)".
if git grep -nE '\| *grep -[a-zA-Z]*q' -- '*.sh' ':!tests/lint.sh'; then
    echo "lint: grep -q at the end of a pipe can fail though the text is there" >&2
    code=1
fi

tests/structure.py "$build" || code=1

# Files of this build, without kernels of GCC's vector extensions, the CUDA backend (compiled as C++ or by nvcc), tests.
files=$(git ls-files '*.c' ':!kernels/cpu' ':!kernels/cuda' ':!tests' |
    grep -Fxf <(jq -r --arg root "$PWD/" '.[].file | ltrimstr($root)' "$build/compile_commands.json"))
tr '\n' '\0' <<<"$files" |
    { xargs -0 -n 8 -P "$(nproc)" "$tidy" -p "$build" --quiet 2> >(grep -v 'warnings\? generated\.$' >&2); } || code=1

# The same files, each once.
mkdir -p "$build/cppcheck"
jq --arg root "$PWD/" --arg files "$files" '($files | split("\n")) as $names |
    map(select(.file | ltrimstr($root) | IN($names[]))) | unique_by(.file)' "$build/compile_commands.json" >"$build/cppcheck.json"
"$cppcheck" --project="$build/cppcheck.json" --cppcheck-build-dir="$build/cppcheck" -j "$(nproc)" --quiet --error-exitcode=1 \
    --enable=warning,performance,portability --inline-suppr --library=tests/cppcheck.cfg --suppressions-list=tests/cppcheck.supp || code=1
[ $code = 0 ] || echo "lint: see the findings above; clang-format -i mends the format" >&2
exit $code
