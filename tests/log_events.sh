#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# docs/operating.md names every event that a program logs at info, warn or error, and its tables of events name no others.
# Argument: the repository.
set -euo pipefail
cd "$1"
programs=(cli engine kernels lib router speculator worker)
bad=0

# Calls of log_event() and of its variants, some of which take more than one line. lib/base/log.h has an example.
logged=$(find "${programs[@]}" -name '*.c' -exec perl -0777 -ne \
    'print "$1\n" while /log_event\w*\([^"]*LOG_(?:INFO|WARN|ERROR)[^",]*,\s*"(\w+)"/g' {} + | sort -u)
[ "$(wc -l <<<"$logged")" -gt 80 ] || { echo "only $(wc -l <<<"$logged") events were found"; exit 1; }
for event in $logged; do
    grep -q "\`$event\`" docs/operating.md || { echo "docs/operating.md does not name the event $event"; bad=1; }
done

# The tables, except text in parentheses: fields and values.
listed=$(sed -n '/^| process | other events/,/^## /p' docs/operating.md | sed 's/([^)]*)//g' | grep -o '`[a-z_]*`' | tr -d '`')
for event in $listed; do
    grep -rq "\"$event\"" --include='*.c' "${programs[@]}" || { echo "no program logs the event $event"; bad=1; }
done
exit $bad
