#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Writes the man pages of programs and of their commands: from the option tables (the hidden flag --man), or from --help
# where a program only lists commands.
# Usage: man_pages.sh FOLDER PROGRAM...
set -euo pipefail

folder=$1
shift
mkdir -p "$folder"
rm -f "$folder"/*.1.gz

# page SUMMARY PROGRAM [COMMAND...]
page() {
    local summary=$1 name=${2##*/} help commands word
    shift
    for word in "${@:2}"; do name+=-$word; done
    help=$("$@" --help </dev/null)
    # A help text that starts with a quote refers to a command that has its own page.
    commands=$(sed -nE '/^(Commands|Measurements):$/,/^$/s/^  ([a-z][a-z-]*) +[^[:punct:] ].*/\1/p' <<<"$help")
    if [ -n "$commands" ]; then
        {
            printf '.TH "%s" 1\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.nf\n' "${name^^}" "${name//-/\\-}" "$summary"
            sed 's/\\/\\e/g; s/-/\\-/g; s/^[.'\'']/\\\&&/; s/^Usage: //; s/^\([A-Z][a-z]*\):$/.SH \U\1/' <<<"$help"
            printf '.fi\n.SH SEE ALSO\n'
            for word in $commands; do printf '%s(1) ' "${name//-/\\-}\\-${word//-/\\-}"; done
            echo
        } | gzip -9n >"$folder/$name.1.gz"
        for word in $commands; do page "$(sed -n "s/^  $word  *//p" <<<"$help")" "$@" "$word"; done
    else
        "$@" --man </dev/null | gzip -9n >"$folder/$name.1.gz"
    fi
}
for program; do page "starts, asks and measures a Forepack cluster" "$program"; done
