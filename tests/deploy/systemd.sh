#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The packages in a booted systemd: an upgrade from 0.1.0 under load, units without and with a configuration, their
# sandboxes, a group of two ranks that drains, errors in a configuration, removal and purge.
# FOREPACK_OLD_PACKAGE: the package of 0.1.0; by default one of the same content is made from the build.
. "$(dirname "$0")/../integration/lib.sh"
. "$(dirname "$0")/machine.sh"
machine_needs

"$source_dir/deploy/debian/build.sh" --build "$FOREPACK_BUILD" --out "$work/packages" >"$work/packages.log"
old=$work/forepack_0.1.0.deb
if [ -n "${FOREPACK_OLD_PACKAGE:-}" ]; then cp "$FOREPACK_OLD_PACKAGE" "$old"; else
    "$source_dir/tests/deploy/old_package.sh" "$FOREPACK_BUILD" "$old"
fi
machine_root "$work/root" "$work"/packages/*.deb
cp "$old" "$work/root/root/"
mkdir "$work/root/root/packages"
cp "$work"/packages/*.deb "$work/root/root/packages/"
machine_boot "$work/root"

demo=/usr/share/forepack/demo-model
etc=$work/root/etc/forepack
attached() { [ "$(inside forepack status --json | jq "[.nodes[] | select(.state == \"ready\")] | length == $1")" = true ]; }
requests_running() { [ "$(inside forepack status --json | jq ".requests.running >= $1 or .queue.running >= $1")" = true ]; }
pid_of() { inside systemctl show --property MainPID --value "$1"; }
value_of() { inside systemctl show --property "$2" --value "$1"; }
journal() { inside journalctl --no-pager --output cat --unit "$1"; }

# ---- the single package of 0.1.0 with its own units, as its administrator had set it up ----

inside dpkg -i /root/forepack_0.1.0.deb >"$work/old.log" 2>&1 || fail "the old package is not installed"
mkdir -p "$etc"
cp "$source_dir"/tests/data/release-0.1.0/units/*.service "$work/root/etc/systemd/system/"
echo "model = $demo/main" >"$etc/forepack-router.conf"
printf 'model = %s\nthreads = 1\n' $demo/main >"$etc/forepack-worker.conf"
inside systemctl daemon-reload
inside systemctl enable --now forepack-router forepack-worker >"$work/enable.log" 2>&1 || fail "the old units do not start"
wait_until 60 "the old worker is attached" attached 1

# ---- an upgrade under load ----

# Each request is an HTTP request of its own, and one lost answer fails the test.
touch "$work/load"
send_requests() {
    while [ -e "$work/load" ]; do
        inside curl -sS --max-time 120 -o /dev/null -w '%{http_code}\n' http://127.0.0.1:8000/v1/completions \
            -H 'content-type: application/json' -d '{"prompt":"Hello","max_tokens":40,"ignore_eos":true}' 2>&1
    done
}
for i in 1 2 3; do start "load$i" send_requests; done
answers() { cat "$work"/load?.log | grep -c '^200$'; }
answered() { [ "$(answers)" -ge "$1" ]; }
wait_until 30 "the load has begun" answered 10

router_pid=$(pid_of forepack-router)
worker_pid=$(pid_of forepack-worker)
inside sh -c 'apt-get install -qq -y --no-install-recommends /root/packages/*.deb' >"$work/upgrade.log" 2>&1 || fail "the upgrade failed: $(tail -n 3 "$work/upgrade.log")"
equal "$router_pid" "$(pid_of forepack-router)" "the upgrade leaves the router running"
equal "$worker_pid" "$(pid_of forepack-worker)" "the upgrade leaves the worker running"
equal no "$(value_of forepack-router NeedDaemonReload)" "units that systemd must read again"
wait_until 30 "requests are answered after the upgrade" answered $(($(answers) + 10))
# The new worker first, next to the old one: then the old one drains.
printf 'model = %s\nthreads = 1\n' $demo/main >"$etc/worker-main.conf"
inside systemctl enable --now forepack-worker@main >>"$work/enable.log" 2>&1 || fail "the new worker does not start"
wait_until 60 "both workers are attached" attached 2
inside systemctl disable --now forepack-worker >>"$work/enable.log" 2>&1
wait_until 60 "the old worker is gone" attached 1
wait_until 30 "requests are answered by the new worker" answered $(($(answers) + 10))
rm "$work/load"
load_ended() { ! pgrep -f "127.0.0.1:8000/v1/completions" >/dev/null; }
wait_until 60 "the load has ended" load_ended
lost=$(cat "$work"/load?.log | grep -vc '^200$') || true
equal 0 "$lost" "requests that the upgrade lost of $(answers): $(cat "$work"/load?.log | grep -v '^200$' | head -n 1)"
echo "upgrade: $(answers) requests answered, none lost"

# The router is restarted under a client that sends lost requests again.
jq -nc 'range(60) | {id: "r\(.)", prompt: "Hello \(.)", max_tokens: 40, ignore_eos: true}' >"$work/root/root/batch.jsonl"
inside sh -c 'forepack batch --window 4 --input /root/batch.jsonl --output /root/answers.jsonl' >"$work/batch.log" 2>&1 &
batch=$!
started+=("$batch")
some_rows() { [ "$(wc -l <"$work/root/root/answers.jsonl")" -ge 3 ]; }
wait_until 60 "the batch has begun" some_rows
inside systemctl stop forepack-router
rm "$work"/root/etc/systemd/system/forepack-*.service
mv "$etc/forepack-router.conf" "$etc/router.conf" # the operator's choice, as dpkg would ask
inside systemctl daemon-reload
inside systemctl enable --now forepack-router >>"$work/enable.log" 2>&1 || fail "the new router does not start"
wait "$batch" || fail "the batch ended with $?: $(tail -n 2 "$work/batch.log")"
equal 60 "$(jq -r 'select(.finish_reason == "length") | .id' "$work/root/root/answers.jsonl" | sort -u | wc -l)" "answers of the batch"

# ---- units without a configuration ----

code=0
inside systemctl start forepack-speculator@main 2>/dev/null || code=$?
[ $code != 0 ] || fail "a speculator without a model starts"
grep -q "the directory of the .*model is required\|--model" <<<"$(journal forepack-speculator@main)" || fail "no reason: $(journal forepack-speculator@main | tail -n 3)"
inside systemctl start forepack-worker@none 2>/dev/null || true
equal "inactive no" "$(value_of forepack-worker@none ActiveState) $(value_of forepack-worker@none ConditionResult)" "a worker without a file"

# ---- sandboxes ----

printf 'model = %s\nthreads = 1\n' $demo/speculator >"$etc/speculator-main.conf"
printf 'model = %s\nthreads = 1\npacked-cache = /var/cache/forepack\n' $demo/main >"$etc/group-main.conf"
printf 'RANKS=2\nMPIRUN_OPTIONS=--oversubscribe\n' >"$etc/group-main.env"
inside systemctl start forepack-speculator@main forepack-group@main || fail "speculator and group do not start"
wait_until 60 "worker, group and speculator are attached" attached 3
for unit in forepack-router forepack-worker@main forepack-group@main forepack-speculator@main; do
    exposure=$(inside systemd-analyze security --no-pager "$unit" 2>/dev/null | sed -n 's/.*exposure level for .*: \([0-9.]*\) .*/\1/p')
    echo "$unit: exposure $exposure"
    awk -v x="$exposure" 'BEGIN { exit !(x != "" && x < 4) }' || fail "$unit: exposure '$exposure', must be below 4"
    equal yes "$(value_of $unit MemoryDenyWriteExecute)" "MemoryDenyWriteExecute of $unit"
    equal forepack "$(inside ps -o user= -p "$(pid_of $unit)" | tr -d ' ')" "user of $unit"
    inside sh -c "tr '\\0' '\\n' </proc/$(pid_of $unit)/environ" | grep -cx HOME=/var/lib/forepack >/dev/null || fail "$unit has no HOME"
done
ls "$work"/root/var/cache/forepack/*rank1of2* >/dev/null || fail "the group keeps no packed weights"

# ---- a group drains ----

inside systemctl stop forepack-worker@main
wait_until 60 "only the group and the speculator are attached" attached 2
jq -nc 'range(8) | {id: "d\(.)", prompt: "Hello \(.)", max_tokens: 400, ignore_eos: true}' >"$work/root/root/drain.jsonl"
inside sh -c 'forepack batch --reconnect-s 0 --input /root/drain.jsonl --output /root/drained.jsonl' >"$work/drain.log" 2>&1 &
batch=$!
started+=("$batch")
wait_until 60 "the group runs eight requests" requests_running 8
inside systemctl stop forepack-group@main
wait "$batch" || fail "the streams of a group that drains: $(tail -n 2 "$work/drain.log")"
equal "8 0" "$(jq -rs '"\([.[] | select(.finish_reason == "length" and .usage.completion_tokens == 400)] | length) \([.[].usage.replays] | add)"' "$work/root/root/drained.jsonl")" "whole answers and replays of the group"
equal success "$(value_of forepack-group@main Result)" "result of the group"
! grep -q "running work is lost" <<<"$(journal forepack-group@main)" || fail "the group lost work"
echo "group: 8 of 8 streams drained"

# ---- errors in the configuration ----

inside systemctl start forepack-worker@main
wait_until 60 "the worker is back" attached 2
router_pid=$(pid_of forepack-router)
cp "$etc/router.conf" "$work/router.conf"
echo "drain-msec = 5" >>"$etc/router.conf"
! inside systemctl reload forepack-router 2>/dev/null || fail "a reload with a typo succeeds"
equal "$router_pid" "$(pid_of forepack-router)" "a reload with a typo keeps the router"
equal active "$(value_of forepack-router ActiveState)" "state after a reload with a typo"
attached 2 || fail "the router does not serve after a refused reload"
! inside forepack-router --config /etc/forepack/router.conf --check-config 2>/dev/null || fail "the check accepts a typo"
! inside systemctl restart forepack-router 2>/dev/null || fail "a restart with a typo succeeds"
equal failed "$(value_of forepack-router ActiveState)" "state after a restart with a typo"
grep -q "drain-msec" <<<"$(journal forepack-router)" || fail "the reason of the failed restart is not in the journal"
cp "$work/router.conf" "$etc/router.conf"
inside systemctl restart forepack-router || fail "the router does not start after the typo is gone"
wait_until 60 "the nodes are back" attached 2

# ---- removal and purge ----

inside sh -c 'mkdir -p /var/lib/forepack/batches && touch /var/lib/forepack/batches/kept'
packages=$(inside dpkg-query -W -f '${Package} ' 'forepack*')
inside sh -c "apt-get -qq remove -y $packages" >"$work/remove.log" 2>&1 || fail "removal: $(tail -n 3 "$work/remove.log")"
! inside pgrep forepack >/dev/null || fail "programs run after their removal"
for file in var/lib/forepack/batches/kept etc/forepack/router.conf; do
    [ -e "$work/root/$file" ] || fail "removal deletes /$file"
done
inside sh -c "dpkg --purge $packages" >"$work/purge.log" 2>&1 || fail "purge: $(tail -n 3 "$work/purge.log")"
for file in var/lib/forepack var/cache/forepack etc/forepack/router.conf etc/systemd/system/multi-user.target.wants/forepack-router.service; do
    [ ! -e "$work/root/$file" ] && [ ! -L "$work/root/$file" ] || fail "purge keeps /$file"
done
echo "systemd: all passed"
