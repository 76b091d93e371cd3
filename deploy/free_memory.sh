#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints how many MiB a process that starts here can use: the memory that the kernel calls available, or less if a
# control group (v1 or v2) of this process has a limit. Page cache that a group can give back counts as free.
# Usage: deploy/free_memory.sh [ROOT]     ROOT: a folder that has proc and sys, for tests
set -euo pipefail
root=${1:-}
least=$(awk '$1 == "MemAvailable:" {print int($2 / 1024)}' "$root/proc/meminfo")

apply_limit() { # apply_limit FOLDER LIMIT-FILE USAGE-FILE: the files of one group
    local limit cache left
    [ -r "$1/$2" ] && [ -r "$1/$3" ] || return 0
    limit=$(<"$1/$2")
    [[ $limit =~ ^[0-9]+$ ]] || return 0 # "max"
    cache=$(awk '$1 ~ /^(total_)?inactive_file$/ {n = $2} END {printf "%.0f", n}' "$1/memory.stat")
    left=$(((limit - $(<"$1/$3") + cache) >> 20))
    if [ $left -lt "$least" ]; then least=$left; fi
}

# Applies the limits of a group and of the groups that contain it.
apply_limits() { # apply_limits MOUNT PATH LIMIT-FILE USAGE-FILE
    local path=$2
    while apply_limit "$1$path" "$3" "$4"; [ -n "$path" ]; do path=${path%/*}; done
}

while IFS=: read -r _ controllers path; do
    case ,$controllers, in
    ,,) apply_limits "$root/sys/fs/cgroup" "${path%/}" memory.max memory.current ;;
    *,memory,*) apply_limits "$root/sys/fs/cgroup/memory" "${path%/}" memory.limit_in_bytes memory.usage_in_bytes ;;
    esac
done <"$root/proc/self/cgroup"
echo "$least"
