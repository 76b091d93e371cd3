#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Forepack, starts a local cluster with the demo models, and asks it questions about documents of up to 4,000
# tokens: with all tokens kept, with the tokens that the default quality of 0.99 needs, and at keep rate 0.3. Prints a
# table with the time to first token (TTFT) of each answer, and one document with its kept tokens; a page has all
# documents. Has a conversation of four turns, and gets an answer that matches a JSON schema. Then measures the gain at a
# real size (deploy/demo_speed.sh).
#
# Usage: deploy/demo.sh [--prompts N] [--port P] [--bin DIR] [--no-speed] [--record FILE] [--keep-running]
#   --prompts   questions about documents of each length, 1 to 8 (default 4)
#   --bin       programs to use, so that nothing is built
#   --no-speed  leave out the measurement at a real size, which takes up to a minute and 4 GB
#   --record    also write the medians of the table and the measurement to a file, as README.md shows them
# Exit code: 0 if every request was answered, 1 if not, 2 for wrong usage.
set -euo pipefail
export LC_ALL=C.UTF-8 # printf reads numbers with a decimal point
cd "$(dirname "$0")/.."

n_prompts=4
port=50051
speed=yes
record=
bin=
keep_running=no
while [ $# -gt 0 ]; do
    case "$1" in
    --prompts) n_prompts=${2:?--prompts: expected a number}; shift ;;
    --port) port=${2:?--port: expected a number}; shift ;;
    --bin) bin=${2:?--bin: expected a folder}; shift ;;
    --no-speed) speed=no ;;
    --record) record=$(cd "$OLDPWD" && realpath "${2:?--record: expected a file}"); shift ;;
    --keep-running) keep_running=yes ;;
    --help) sed -n '3,15s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "unknown flag $1 (--help lists all)" >&2; exit 2 ;;
    esac
    shift
done
[[ $n_prompts =~ ^[1-8]$ ]] || { echo "--prompts $n_prompts: expected a number from 1 to 8" >&2; exit 2; }

build() {
    local log=build/release/build.log
    ./deploy/packages.sh
    mkdir -p build/release
    bin=build/release/bin
    echo "configuring ..."
    cmake --preset release >"$log" 2>&1 && cmake --build --preset release 2>&1 | ./deploy/progress.sh "$log" && return
    tail -n 100 "$log" >&2
    echo "the build failed: $log" >&2
    exit 1
}
[ -n "$bin" ] || build

files=$(realpath "$bin/..")
log=$files/demo.log
page=$files/demo.html
pair=deploy/demo-model
work=$(mktemp -d)
. deploy/demo_cluster.sh
trap 'stop_cluster; rm -rf "$work"' EXIT

fail() {
    echo "$*; log of the cluster: $log" >&2
    exit 1
}

recorded() { tee -a "$work/record"; } # copies what --record writes

start() { # start FLAGS...
    start_cluster 60 "$@" && return
    kill -0 "$cluster" 2>/dev/null && fail "the cluster was not ready after 60 s"
    cat "$log" >&2
    exit 1
}

# --- questions about documents

ask() { # ask ROW-FILE OUTPUT-FILE FLAGS...
    local row=$1 output=$2
    shift 2
    jq -rj .prompt "$row" >"$work/prompt"
    "$bin/forepack" generate --server "$server" --prompt-file "$work/prompt" --max-tokens 64 --json "$@" >"$output" ||
        fail "a request was not answered"
}

row_format='%-33s | %6s | %-6s %6s | %-6s %5s %5s | %-6s %5s %5s\n'

print_legend() {
    echo "tokens: length of the document and its question"
    echo "kept:   share of the tokens that the main model reads; the last 128 are always kept"
    printf 'ms:     time to first token (TTFT)\n\n'
}

print_table_head() {
    printf '%-33s | %6s | %-13s | %-18s | %s\n' '' '' "all tokens" "quality 0.99" "keep rate 0.3"
    # shellcheck disable=SC2059
    printf "$row_format" question tokens answer ms answer kept ms answer kept ms
}

print_cells() { # reads rows with a tab between cells
    while IFS=$'\t' read -r -a cells; do
        # shellcheck disable=SC2059
        printf "$row_format" "${cells[@]}"
    done
}

# Functions of jq. `numbers` gives the cells of three runs, each {answer, kept, ttft}.
jq_cells='def ms: if . < 999.5 then . * 10 | round | "\(. / 10 | floor).\(. % 10)" else round end;
    def numbers: (.[0] | .answer, (.ttft | ms)), (.[1:][] | .answer, "\(.kept * 100 | round) %", (.ttft | ms));'

# Prints a row of the table for the answers in full, quality and rate, and appends it to rows.
print_row() {
    jq -c -s --slurpfile row "$work/row" '
        def trim: gsub("^\\s+|\\s+$"; "");
        ($row[0].answer | trim) as $expected |
        {question: ($row[0].prompt | trim | split("\n") | map(select(startswith("Question: "))) | last | ltrimstr("Question: ")),
         tokens: .[0].usage.prompt_tokens, length: $row[0].length,
         runs: map({answer: (if (.text | trim) == $expected then "right" else "wrong" end), ttft: .timing.ttft_ms,
                    kept: (.usage.kept_tokens / .usage.prompt_tokens)})}' "$work/full" "$work/quality" "$work/rate" |
        tee -a "$work/rows" |
        jq -r "$jq_cells"'[(.question | if length > 33 then .[0:31] + ".." else . end), .tokens, (.runs | numbers)] | @tsv' |
        print_cells
}

# Prints a row for each length of the documents: right answers and medians.
print_sums() {
    jq -r -s "$jq_cells"'
        def median: sort | .[length / 2 | floor];
        group_by(.length)[] | . as $rows |
        ["\(length) question\(if length > 1 then "s" else "" end): right, medians", (map(.tokens) | median),
         ([range(3) as $i | $rows | map(.runs[$i]) |
           {answer: "\(map(select(.answer == "right")) | length)/\(length)",
            kept: (map(.kept) | median), ttft: (map(.ttft) | median)}] | numbers)] | @tsv' "$work/rows" | print_cells
}

print_conclusion() {
    jq -r -s '
        def tenths: . * 10 | round | "\(. / 10 | floor).\(. % 10)";
        def median($i): map(.runs[$i].ttft) | sort | .[length / 2 | floor];
        def gains($i): [group_by(.length)[] | median(0) / median($i) | tenths] | join(", ");
        def right($i): map(select(.runs[$i].answer == "right")) | length;
        "right answers:  \(right(0)) of \(length) with all tokens kept, \(right(1)) at quality 0.99, \(right(2)) at keep rate 0.3",
        "median TTFT:    divided by \(gains(1)) at quality 0.99 and by \(gains(2)) at keep rate 0.3",
        "                for documents of \([group_by(.length)[][0].length] | join(", ")) tokens"' "$work/rows"
    jq -r '"accuracy on \(.documents) unseen documents of \(.tokens) tokens, measured earlier:\n" +
        "                \(.accuracy.full * 1000 | round / 10) % with all tokens kept, " +
        "\(.accuracy["0.3"] * 1000 | round / 10) % at keep rate 0.3 (all classes of questions)"' \
        "$pair/accuracy.json"
}

# Writes documents of all lengths, each length with other classes of questions. They are none that the models learnt.
write_documents() {
    local length first=0
    for length in 1000 2000 4000; do
        "$bin/forepack" bench documents --count "$n_prompts" --first $first --tokens $length --seed 18 |
            jq -c ".length = $length"
        first=$((first + n_prompts))
    done >"$work/documents"
}

# Each question is asked three times; the prefix cache would speed up the second and the third.
write_documents
choose_ports "$port"
start --no-enable-prefix-caching
echo "A router, a worker group and a speculator run the demo models. Each question is about a document."

# A warm-up, so that the first question is not measured with cold caches.
tail -n 1 "$work/documents" >"$work/row"
ask "$work/row" "$work/warm" --prefill off
ask "$work/row" "$work/warm" --prefill on

print_legend
print_table_head | recorded
while read -r line; do
    printf '%s\n' "$line" >"$work/row"
    ask "$work/row" "$work/full" --prefill off
    ask "$work/row" "$work/quality" --prefill on
    ask "$work/row" "$work/rate" --prefill on --keep-rate 0.3
    print_row
done <"$work/documents"
echo
print_sums | recorded
{ echo && print_conclusion; } | recorded

# --- kept tokens

score() { # score FLAGS...
    "$bin/forepack" score --server "$server" --prompt-file "$work/prompt" --keep-rate 0.3 "$@" 2>"$work/kept" ||
        { cat "$work/kept" >&2; fail "a prompt was not scored"; }
}

# On a terminal, `forepack score` marks kept tokens by colour; elsewhere it puts them between brackets.
print_picture() {
    jq -rj .prompt <(head -n 1 "$work/documents") >"$work/prompt"
    printf '\nThe first document at keep rate 0.3. %s:\n\n' \
        "$([ -t 1 ] && echo "Kept tokens are green" || echo "Kept tokens are between [ and ]")"
    if [ -t 1 ]; then score; else score | fold -s -w 100; fi
    cat "$work/kept"
}

# A page has the head of the first document's page, and the body of each.
write_page() {
    local n=0
    while read -r line; do
        jq -rj .prompt <<<"$line" >"$work/prompt"
        score --html "$work/document.html"
        [ $((n++)) -gt 0 ] || sed '/^<h1>/,$d' "$work/document.html" >"$work/page.html"
        sed -n "/^<h1>/,\$p" "$work/document.html" | sed -e "s/^<h1>[^<]*/<h1>Document $n/" -e '$d' >>"$work/page.html"
    done <"$work/documents"
    echo '</body></html>' >>"$work/page.html"
    cp "$work/page.html" "$page"
}
print_picture
write_page
printf '\nA page with the kept tokens of every document: %s\n' "$page"

# --- a conversation: each turn has another document and a question about one of the documents so far

turn_format='%-40s | %-6s %9s %6s %8s %6s %7s\n'

take_turn() { # take_turn TURN QUESTION-ABOUT-DOCUMENT
    jq -c -s --slurpfile talk "$work/talk" --argjson turn "$1" --argjson about "$2" '
        [.[] | select(.task == "needle")] as $rows |
        ($rows[$turn].prompt | split("Question: ")[0] | .[0:2400]) as $text |
        ($rows[$about].prompt | split("\nQuestion: ") | last | rtrimstr("\nAnswer:")) as $question |
        {messages: ($talk[0] + [{role: "user", content: $text}, {role: "user", content: ("Question: " + $question)}])}' \
        "$pair/prompts.jsonl" >"$work/turn"
    rm -f "$work/said"
    "$bin/forepack" batch --server "$server" --input "$work/turn" --output "$work/said" --max-tokens 16 --prefill on \
        --keep-rate 0.3 2>/dev/null || fail "a turn was not answered"
    jq -c --slurpfile said "$work/said" '.messages + [{role: "assistant", content: $said[0].text}]' "$work/turn" >"$work/talk"
}

print_turn() { # print_turn QUESTION-ABOUT-DOCUMENT
    jq -r --slurpfile turn "$work/turn" --arg expected "$(jq -r -s --argjson about "$1" \
        '[.[] | select(.task == "needle")][$about].answer | ltrimstr(" ")' "$pair/prompts.jsonl")" '.usage as $u |
        [($turn[0].messages | last | .content | ltrimstr("Question: ") | .[0:40]),
         (if (.text | gsub("^\\s+|\\s+$"; "")) == $expected then "right" else "wrong" end),
         "\($u.kept_tokens)/\($u.prompt_tokens)", $u.frozen_tokens, $u.recalled_tokens, $u.cached_tokens,
         (.timing.ttft_ms * 10 | round | "\(. / 10 | floor).\(. % 10)")] | @tsv' \
        "$work/said" | while IFS=$'\t' read -r -a cells; do
            # shellcheck disable=SC2059
            printf "$turn_format" "${cells[@]}"
        done
}

stop_cluster
start
printf '\nA conversation at keep rate 0.3; its tokens are those of all turns.\n'
printf 'frozen: kept by an earlier turn; recalled: pruned then and kept now; cached: not computed again\n\n'
# shellcheck disable=SC2059
printf "$turn_format" question answer kept frozen recalled cached ms
echo '[]' >"$work/talk"
for turn in 0 1 2 3; do
    about=$((turn ? turn - 1 : 0)) # the document of the previous turn
    take_turn $turn $about
    print_turn $about
done

# --- an answer that matches a JSON schema

print_schema_answer() {
    local schema='{"type": "object", "properties": {"code": {"type": "integer", "minimum": 0, "maximum": 9999}},
        "required": ["code"], "additionalProperties": false}' text
    jq -rjs '[.[] | select(.task == "needle")][0].prompt' "$pair/prompts.jsonl" >"$work/prompt"
    if text=$("$bin/forepack" generate --server "$server" --prompt-file "$work/prompt" --max-tokens 64 --prefill off \
        --guided-json "$schema" 2>"$work/refused"); then
        printf '\nThe question of the first turn, all tokens kept, with an answer that must match a JSON schema:\n%s\n' "$(jq -c . <<<"$text")"
    elif grep -q 'llguidance is not installed' "$work/refused"; then
        printf '\nNo answer that matches a JSON schema: llguidance is not installed (deploy/llguidance.sh installs it).\n'
    else
        fail "a guided request was not answered: $(cat "$work/refused")"
    fi
}
print_schema_answer

# --- speed at a real size, in a cluster of its own

if [ "$speed" = yes ]; then
    stop_cluster
    { echo && deploy/demo_speed.sh --bin "$bin"; } | recorded || true
fi
if [ -n "$record" ]; then cp "$work/record" "$record"; fi

if [ "$keep_running" = yes ]; then
    [ -n "$cluster" ] || start
    echo
    echo "The cluster keeps running, log in $log. Commands:"
    echo "  $bin/forepack generate --server $server --prompt-file FILE --prefill on"
    echo "  $bin/forepack chat --server $server"
    echo "  $bin/forepack status --server $server"
    echo "  curl http://127.0.0.1:$http_port/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'"
    echo "Stop it: kill $cluster"
    cluster=
fi
