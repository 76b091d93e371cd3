#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One seed, one run, bit for bit: the same seeds give the same digest twice, one at a time and several at once, and in the
# builds of other presets, if they are as new as the sources. Argument: forepack-sim.
set -euo pipefail
sim=$1
root=$(cd "$(dirname "$0")/.." && pwd)
seeds=(--seed 1 --seeds 24 --log-level error)
first=$("$sim" "${seeds[@]}" 2>&1)
echo "$first"

compare() { # NAME COMMAND...
    local again
    again=$("${@:2}" "${seeds[@]}" 2>&1) # a scenario's process prints nothing, and neither do sanitizers
    [ "$first" = "$again" ] || { echo "$1 differs: $again"; exit 1; }
}

compare "a second run" "$sim" --jobs 3
for other in "$root"/build/{dev,release,tsan}/bin/forepack-sim; do
    [ -x "$other" ] && [ ! "$other" -ef "$sim" ] || continue
    newer=$(cd "$root" && find engine lib proto router sim speculator worker -name '*.[ch]' -newer "$other")
    [ -n "$newer" ] || compare "$other" "$other" --jobs 2
done
