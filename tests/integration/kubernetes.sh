#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy/kubernetes: every overlay renders; its objects are valid in the last three releases of Kubernetes and by the
# definitions of the other kinds; names, ports, files and options resolve; the alert rules are those of
# deploy/monitoring. The script that fills the model volume fetches, continues, checks and repairs.
. "$(dirname "$0")/lib.sh"
packages=$source_dir/tests/integration/kubernetes/packages.txt
. "$source_dir/tests/integration/venv.sh"
tests=$source_dir/tests/integration/kubernetes
manifests=$source_dir/deploy/kubernetes

"$manifests/alerts.sh" "$work/rule.yaml"
cmp "$work/rule.yaml" "$manifests/components/monitoring/prometheus-rule.yaml" || fail "run deploy/kubernetes/alerts.sh"

for overlay in demo-cpu 70b-tp8 405b-fp8-2x8; do
    "$venv/bin/kubectl" kustomize "$manifests/overlays/$overlay" >"$work/$overlay.yaml" || fail "$overlay does not render"
    "$python" "$tests/run.py" "$bin" "$work/$overlay.yaml" || fail "$overlay: see the findings above"
done
# Secrets that the operator makes are described.
for secret in forepack-api-keys forepack-operator-key forepack-cluster-token forepack-hub-token; do
    grep -q "$secret" "$source_dir/docs/kubernetes.md" || fail "docs/kubernetes.md does not say how to make the Secret $secret"
done

# A hub of one model: list of files with hashes, and the files. Files of more than a megabyte have SHA-256, as in LFS.
fill=$manifests/components/model-volume/fill_models.sh
commit=0123456789abcdef0123456789abcdef01234567
start hub "$python" "$tests/hub.py" "$spec_model" acme/small "$commit" "$work/hub.port"
wait_until 20 "the hub listens" test -s "$work/hub.port"
HUB=http://127.0.0.1:$(cat "$work/hub.port")
export HUB TOKEN_FILE=$work/token HOME=$work
echo secret-token >"$work/token"
echo "small acme/small $commit # comment" >"$work/bad.txt"
printf '# a comment\nsmall acme/small %s\n' "$commit" >"$work/models.txt"
filled() { bash "$fill" "$work/models.txt" "$work/models" >"$work/fill.log" 2>&1; }

code=0
bash "$fill" "$work/bad.txt" "$work/models" >/dev/null 2>"$work/error" || code=$?
equal 2 $code "a malformed list"
sed "s/$commit/main/" "$work/models.txt" >"$work/branch.txt"
code=0
bash "$fill" "$work/branch.txt" "$work/models" >/dev/null 2>"$work/error" || code=$?
equal 2 $code "a branch instead of a commit"

filled || fail "the volume is not filled: $(cat "$work/fill.log")"
for file in config.json tokenizer.json model.safetensors chat_template.jinja; do
    cmp "$spec_model/$file" "$work/models/small/$file" || fail "$file differs"
done
[ ! -e "$work/models/small/escape.json" ] || fail "a file outside the folder was fetched"
filled || fail "a second run fails: $(cat "$work/fill.log")"
grep -q fetched "$work/fill.log" && fail "a second run fetched files again: $(cat "$work/fill.log")"
# A damaged file is fetched again, a cut one is continued, and wrong content of the hub is refused.
printf x | dd of="$work/models/small/model.safetensors" bs=1 seek=1000 conv=notrunc 2>/dev/null
filled || fail "a damaged file is not repaired: $(cat "$work/fill.log")"
cmp "$spec_model/model.safetensors" "$work/models/small/model.safetensors" || fail "the file is still damaged"
head -c 500000 "$spec_model/model.safetensors" >"$work/models/small/.model.safetensors.part"
rm "$work/models/small/model.safetensors"
filled || fail "a cut file is not continued: $(cat "$work/fill.log")"
cmp "$spec_model/model.safetensors" "$work/models/small/model.safetensors" || fail "the continued file differs"
grep -q 'range=500000' "$work/hub.log" || fail "the cut file was fetched from its start: $(tail -n 3 "$work/hub.log")"
touch "$work/hub.port.lie"
rm "$work/models/small/config.json"
code=0
filled || code=$?
equal 1 $code "wrong content"
grep -q "config.json: the hash of the download is not that of commit" "$work/fill.log" || fail "wrong reason: $(cat "$work/fill.log")"
[ ! -e "$work/models/small/config.json" ] || fail "a wrong file was kept"
