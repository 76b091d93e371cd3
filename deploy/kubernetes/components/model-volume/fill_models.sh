#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fills a folder with models of a hub, each at a pinned commit, and checks every file against the hash that the hub lists
# for that commit: SHA-256 for large files, git's hash of the content for others. Files that are right are kept, so a
# second run only checks. Needs curl and jq.
# Usage: fill_models.sh LIST DIR
#   LIST  lines "NAME REPOSITORY COMMIT": DIR/NAME gets the files of the commit, of 40 hexadecimal digits
# HUB is the hub's address (default https://huggingface.co); TOKEN_FILE names a file with a token, which may be missing.
# Exit codes: 0 all files are there and right, 1 another run may succeed, 2 the list is wrong.
set -euo pipefail
[ $# = 2 ] || { sed -n '6,8s/^# //p' "$0" >&2; exit 2; }
list=$1 dir=$2 hub=${HUB:-https://huggingface.co}

headers=()
if [ -s "${TOKEN_FILE:-}" ]; then # curl reads the header from a file: arguments are visible in the list of processes
    (umask 077 && printf 'Authorization: Bearer %s\n' "$(tr -d '[:space:]' <"$TOKEN_FILE")" >"${HOME:-/tmp}/hub-header")
    headers=(-H "@${HOME:-/tmp}/hub-header")
fi
get() { curl --fail --silent --show-error --location --retry 5 --retry-connrefused "${headers[@]}" "$@"; }

# right FILE SIZE KIND HASH: the file has this size and hash; KIND is sha256 or git.
right() {
    [ -f "$1" ] && [ "$(stat -c %s "$1")" = "$2" ] || return 1
    local hash
    case $3 in
    sha256) hash=$(sha256sum <"$1") ;;
    git) hash=$({ printf 'blob %s\0' "$2" && cat "$1"; } | sha1sum) ;;
    esac
    [ "${hash%% *}" = "$4" ]
}

fill() { # fill NAME REPOSITORY COMMIT
    local target=$dir/$1 path size kind hash files
    files=$(get "$hub/api/models/$2/tree/$3?recursive=true" |
        jq -r '.[] | select(.type == "file" and (.path | test("^[A-Za-z0-9_][A-Za-z0-9_.-]*\\.(json|safetensors|model|jinja|txt)$")))
            | [.path, .size, if .lfs then "sha256" else "git" end, .lfs.oid // .oid] | @tsv') ||
        { echo "$2: the hub does not list the files of commit $3" >&2; return 1; }
    grep -q '\.safetensors' <<<"$files" || { echo "$2: commit $3 has no *.safetensors" >&2; return 2; }
    mkdir -p "$target"
    while IFS=$'\t' read -r path size kind hash; do
        if right "$target/$path" "$size" "$kind" "$hash"; then
            echo "$1/$path: right"
            continue
        fi
        # Continues a file that an earlier run left unfinished.
        get --continue-at - --output "$target/.$path.part" "$hub/$2/resolve/$3/$path"
        if ! right "$target/.$path.part" "$size" "$kind" "$hash"; then
            rm -f "$target/.$path.part"
            echo "$1/$path: the hash of the download is not that of commit $3" >&2
            return 1
        fi
        mv "$target/.$path.part" "$target/$path"
        echo "$1/$path: fetched"
    done <<<"$files"
    echo "$3" >"$target/.commit"
}

count=0
while read -r name repository commit rest; do
    [[ -n $name && $name != \#* ]] || continue
    [[ $name =~ ^[A-Za-z0-9][A-Za-z0-9_.-]*$ && $repository =~ ^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$ && $commit =~ ^[0-9a-f]{40}$ && -z $rest ]] || {
        echo "$list: '$name $repository $commit $rest': expected NAME REPOSITORY COMMIT, with a commit of 40 hexadecimal digits" >&2
        exit 2
    }
    fill "$name" "$repository" "$commit"
    count=$((count + 1))
done <"$list"
[ $count -gt 0 ] || { echo "$list: names no model" >&2; exit 2; }
echo "$count models are complete"
