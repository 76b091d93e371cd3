#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy/demo.sh: the table, the document with its kept tokens, the page, and the exit code. deploy/demo_speed.sh: its
# table, on small shapes, and why it is skipped. deploy/progress.sh: the lines of a build.
. "$(dirname "$0")/lib.sh"

mkdir -p "$work/built/bin"
ln -s "$bin"/forepack* "$work/built/bin/"
choose_ports

code=0
start demo "$source_dir/deploy/demo.sh" --bin "$work/built/bin" --port "$port" --prompts 2 --no-speed --record "$work/record"
wait "$last_pid" || code=$?
equal 0 "$code" "exit code"
sed '/^A page with/d' "$work/demo.log" >"$work/lines" # it ends with a path of any length
equal "" "$(awk 'length > 100' "$work/lines")" "lines of over 100 columns"
has() { [[ $(<"$work/demo.log") =~ $1 ]] || fail "the demo does not print $1"; }
has $'\nquestion +\| tokens \| answer +ms \| answer +kept +ms \| answer +kept +ms\n'
rest='[0-9]+ \| (right|wrong) +[0-9.]+ \| (right|wrong) +[0-9]+ % +[0-9.]+ \|'
has $'\n'"What is the garden code of Davi[.][.] +\\| +$rest"
equal 3 "$(grep -Ec '^2 questions: right, medians +\| +(9|1[89]|3[89])[0-9]+ \| [0-2]/2 ' "$work/demo.log")" "rows of medians"
has $'\nright answers: +[0-6] of 6 with all tokens kept, [0-6] at quality 0.99, [0-6] at keep rate 0.3\n'
has $'\nmedian TTFT: +divided by [0-9.]+, [0-9.]+, [0-9.]+ at quality 0.99 and by [0-9.]+, [0-9.]+, [0-9.]+ at keep rate 0.3\n'
has $'\\[.*\\].*\nkept [0-9]+ of [0-9]+ tokens; '
[[ $(<"$work/demo.log") != *"measured time of a forward pass"* ]] || fail "the demo prints the state of an idle cluster"
# The first question asks for a code. With llguidance, the answer in JSON is the right one.
if ! grep -q 'llguidance is not installed' "$work/demo.log"; then
    right=$(jq -r 'select(.task == "needle") | .answer | tonumber' "$source_dir/deploy/demo-model/prompts.jsonl" | sed -n 1p)
    answer=$(sed -n '/an answer that must match a JSON schema:$/{n;p}' "$work/demo.log")
    equal "{\"code\":$right}" "$answer" "answer that matches a JSON schema"
else
    echo "skipped: the answer that matches a JSON schema, since llguidance is not installed"
fi
page=$work/built/demo.html
has "A page with the kept tokens of every document: $page"
equal "6 1" "$(grep -c '<h1>Document [1-6]</h1>' "$page") $(grep -c '</html>' "$page")" "documents and ends of the page"

# A command that fails ends the demo.
cat >"$work/forepack" <<END
#!/usr/bin/env bash
case "\$*" in generate*"--keep-rate 0.3"*) exit 1 ;; esac
exec "$bin/forepack" "\$@"
END
chmod +x "$work/forepack"
ln -sf "$work/forepack" "$work/built/bin/forepack"
choose_ports
start refused "$source_dir/deploy/demo.sh" --bin "$work/built/bin" --port "$port" --prompts 1
code=0
wait "$last_pid" || code=$?
equal 1 "$code" "exit code if a request is not answered"
grep -q "a request was not answered" "$work/refused.log" || fail "the failed request is not named"
code=0
"$source_dir/deploy/demo.sh" --prompts none 2>/dev/null || code=$?
equal 2 "$code" "exit code of wrong usage"

# ---- speed at a real size ----

ln -sf "$bin/forepack" "$work/built/bin/forepack"
jq '.vocab_size = 1536 | .max_position_embeddings = 4096' "$source_dir/tests/data/shapes/tiny.json" >"$work/llama-3.2-1b.json"
jq '.num_hidden_layers = 1' "$work/llama-3.2-1b.json" >"$work/llama-110m-128k.json"
speed() { "$source_dir/deploy/demo_speed.sh" --bin "$work/built/bin" --shape "$work/llama-3.2-1b.json" --spec-shape "$work/llama-110m-128k.json" "$@" >"$work/speed.log"; }
has_row() { grep -Eq "$1" "$work/speed.log" || fail "no line '$1': $(cat "$work/speed.log")"; }
speed --seconds 600 --memory-mib 1
has_row '^The weights are random: '
has_row '^all tokens +\| +2048 \| +- \| +[0-9]+\.[0-9]{2} \| +[0-9]+\.[0-9]{2} \| -$'
for rate in 0.3 0.1; do
    has_row "^keep rate $rate +\\| +[0-9]+ \\([0-9]+ %\\) \\| +[0-9.]+ \\| +[0-9.]+ \\| +[0-9.]+ \\| [0-9.]+ times sooner\$"
done
equal "" "$(awk 'length > 100' "$work/speed.log")" "lines of over 100 columns"

# README.md shows what the programs print, with other numbers.
masked() { sed -E 's/[0-9][0-9.,]*/N/g; s/ +/ /g'; }
awk '/^<!-- test: output of deploy.demo.sh --record/ {found = 1; next} found && /^```/ {if (inside) exit; inside = 1; next} inside' \
    "$source_dir/README.md" >"$work/shown"
diff <(masked <"$work/shown") <({ cat "$work/record" && echo && cat "$work/speed.log"; } | masked) >"$work/difference" ||
    fail "README.md does not show what the demo prints (deploy/demo.sh --record): $(cat "$work/difference")"

speed --memory-mib 100000000
has_row '^skipped: 100000000 MiB of memory are needed, and [0-9]+ MiB are free$'
! grep -q '^all tokens' "$work/speed.log" || fail "measured without enough memory"
speed --seconds 5 --memory-mib 1 # none is left for the first request
has_row '^skipped: .* 5 s'
code=0
ln -sf "$work/forepack" "$work/built/bin/forepack"
sed -i 's/generate\*.*)/up*)/' "$work/forepack"
speed --seconds 600 --memory-mib 1 || code=$?
equal 1 "$code" "exit code if the cluster does not start"

# Free memory: the kernel's number, or less by the limit of a group and of those that contain it.
free_memory() { "$source_dir/deploy/free_memory.sh" "$work/root"; }
mkdir -p "$work/root/proc/self" "$work/root/sys/fs/cgroup/pod/box" "$work/root/sys/fs/cgroup/memory/box"
echo "MemAvailable: 8388608 kB" >"$work/root/proc/meminfo"
echo "0::/pod/box" >"$work/root/proc/self/cgroup"
equal 8192 "$(free_memory)" "MiB without a limit"
group=$work/root/sys/fs/cgroup/pod/box
echo max >"$group/memory.max" && echo 0 >"$group/memory.current" && echo "inactive_file 0" >"$group/memory.stat"
equal 8192 "$(free_memory)" "MiB in a group without a limit"
group=$work/root/sys/fs/cgroup/pod
echo 4294967296 >"$group/memory.max" && echo 2147483648 >"$group/memory.current" && echo "inactive_file 1073741824" >"$group/memory.stat"
equal 3072 "$(free_memory)" "MiB in a limited pod with page cache"
echo "5:cpu,memory:/box" >"$work/root/proc/self/cgroup"
group=$work/root/sys/fs/cgroup/memory/box
echo 9223372036854771712 >"$group/memory.limit_in_bytes" && echo 1048576 >"$group/memory.usage_in_bytes" && echo "total_inactive_file 0" >"$group/memory.stat"
equal 8192 "$(free_memory)" "MiB in a group of v1 without a limit"
echo 2097152 >"$group/memory.limit_in_bytes"
equal 1 "$(free_memory)" "MiB in a limited group of v1"

# Without a terminal, the progress of a build is a line after each tenth.
for i in {1..200}; do echo "[$i/200] Building C object $i"; done | "$source_dir/deploy/progress.sh" "$work/build.log" >"$work/progress"
equal "10 200" "$(wc -l <"$work/progress") $(wc -l <"$work/build.log")" "lines of progress and of the log"
equal "building [##############################] 200 of 200 steps" "$(tail -n 1 "$work/progress" | sed 's/,.*//')" "the last line"
echo "demo: all passed"
