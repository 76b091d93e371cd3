#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# docs/watching.md names every event that a program logs at info, warn or error, and its section "Events" names no others.
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
    grep -q "\`$event\`" docs/watching.md || { echo "docs/watching.md does not name the event $event"; bad=1; }
done

# The section without text in parentheses: fields and values.
section=$(sed -n '/^## Events/,/^## Tracing/p' docs/watching.md | tr '\n' ' ')
listed=$(sed 's/([^)]*)//g' <<<"$section" | grep -o '`[a-z_]*`' | tr -d '`')
[ "$(wc -l <<<"$listed")" -gt 80 ] || { echo "docs/watching.md lists only $(wc -l <<<"$listed") events"; exit 1; }
for event in $listed; do
    grep -rq "\"$event\"" --include='*.c' "${programs[@]}" || { echo "no program logs the event $event"; bad=1; }
done
exit $bad
