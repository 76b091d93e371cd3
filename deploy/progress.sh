#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Reads the output of ninja and shows how much of a build is left: on a terminal a bar on one line, elsewhere a line
# after each tenth. Copies all lines to a file.
# Usage: cmake --build --preset release 2>&1 | deploy/progress.sh LOG-FILE
set -euo pipefail
log=${1:?expected a file for the output}
width=30
bar=$(printf '%*s' $width '' | tr ' ' '#')
rest=${bar//#/.}
shown=0 # tenths that were printed

show() { # show DONE TOTAL
    local filled=$((width * $1 / $2)) tenth=$((10 * $1 / $2)) left=$((SECONDS * ($2 - $1) / $1))
    local line="building [${bar:0:filled}${rest:filled}] $1 of $2 steps, about $left s left"
    if [ -t 1 ]; then
        printf '\r%s\033[K' "$line"
    elif [ $tenth -gt $shown ]; then
        echo "$line"
    fi
    shown=$tenth
}

while IFS= read -r line; do
    printf '%s\n' "$line" >>"$log"
    if [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]] && [ "${BASH_REMATCH[1]}" -gt 0 ]; then
        show "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
    fi
done
if [ -t 1 ] && [ $shown -gt 0 ]; then echo; fi
