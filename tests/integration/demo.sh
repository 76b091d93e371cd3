#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy/demo.sh: the table, the document with its kept tokens, the page, and the exit code. deploy/progress.sh: the lines
# of a build.
. "$(dirname "$0")/lib.sh"

mkdir -p "$work/built/bin"
ln -s "$bin"/forepack* "$work/built/bin/"
choose_ports

code=0
start demo "$source_dir/deploy/demo.sh" --bin "$work/built/bin" --port "$port" --prompts 2
wait "$last_pid" || code=$?
equal 0 "$code" "exit code"
sed '/^A page with/d' "$work/demo.log" >"$work/lines" # it ends with a path of any length
equal "" "$(awk 'length > 100' "$work/lines")" "lines of over 100 columns"
has() { [[ $(<"$work/demo.log") =~ $1 ]] || fail "the demo does not print $1"; }
has $'\nquestion +\| answer +ms \| answer +kept +ms \| answer +kept +ms\n'
has $'\nWhat is the permit number of Nena Morik[?] +\| (right|wrong) +[0-9.]+ \| (right|wrong) +[0-9]+ % +[0-9.]+ \|'
has $'\nright answers: +[0-2] of 2 with all tokens kept, [0-2] at quality 0.99, [0-2] at keep rate 0.3\n'
has $'\nmedian TTFT: +[0-9.]+ ms with all tokens kept, [0-9.]+ ms at quality 0.99, [0-9.]+ ms at keep rate 0.3\n'
has $'\\[.*\\].*\nkept [0-9]+ of [0-9]+ tokens; '
[[ $(<"$work/demo.log") != *"measured time of a forward pass"* ]] || fail "the demo prints the state of an idle cluster"
page=$work/built/demo.html
has "A page with the kept tokens of every document: $page"
equal "2 1" "$(grep -c '<h1>Document [12]</h1>' "$page") $(grep -c '</html>' "$page")" "documents and ends of the page"

# A command that fails ends the demo.
cat >"$work/forepack" <<END
#!/usr/bin/env bash
case "\$*" in generate*"--keep-rate 0.3"*) exit 1 ;; esac
exec "$bin/forepack" "\$@"
END
chmod +x "$work/forepack"
ln -sf "$work/forepack" "$work/built/bin/forepack"
choose_ports
start refused "$source_dir/deploy/demo.sh" --bin "$work/built/bin" --port "$port" --prompts 2
code=0
wait "$last_pid" || code=$?
equal 1 "$code" "exit code if a request is not answered"
grep -q "a request was not answered" "$work/refused.log" || fail "the failed request is not named"
code=0
"$source_dir/deploy/demo.sh" --prompts none 2>/dev/null || code=$?
equal 2 "$code" "exit code of wrong usage"

# Without a terminal, the progress of a build is a line after each tenth.
for i in {1..200}; do echo "[$i/200] Building C object $i"; done | "$source_dir/deploy/progress.sh" "$work/build.log" >"$work/progress"
equal "10 200" "$(wc -l <"$work/progress") $(wc -l <"$work/build.log")" "lines of progress and of the log"
equal "building [##############################] 200 of 200 steps" "$(tail -n 1 "$work/progress" | sed 's/,.*//')" "the last line"
echo "demo: all passed"
