#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy/slurm on a Slurm of its own: munge, slurmctld and slurmd on this host, with ports and files of their own. Router,
# speculator and groups as jobs; cancelled under 20 streams; a killed rank is requeued; a time limit passes without a
# failed request; a router that moves; wrong configurations.
# Needs root and deploy/packages.sh --deploy.
skip() {
    echo "skipped: slurm needs $1"
    exit 77
}
[ "$(id -u)" = 0 ] || skip root
for tool in munged slurmctld slurmd sbatch jq curl; do command -v $tool >/dev/null || skip "$tool (deploy/packages.sh --deploy)"; done
. "$(dirname "$0")/../integration/lib.sh"

slurm=$(mktemp -d /tmp/fs-XXXXXX) # sockets need a short path
export SLURM_CONF=$slurm/slurm.conf
end_slurm() {
    local status=$? pid
    set +e
    scancel --user root 2>/dev/null
    for _ in $(seq 100); do [ -n "$(squeue -h 2>/dev/null)" ] || break; sleep 0.1; done
    for pid in slurmctld slurmd munged; do
        pid=$(cat "$slurm/$pid.pid" 2>/dev/null) && kill -TERM "$pid" 2>/dev/null && while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    done
    cp "$slurm"/*.log "$slurm"/cluster/*.log "$work/" 2>/dev/null
    rm -rf "$slurm"
    (exit $status)
    clean_up
}
trap end_slurm EXIT

host=$(hostname -s)
controller_port=$(free_port)
daemon_port=$(free_port)
mkdir "$slurm/state" "$slurm/spool" "$slurm/cluster"
head -c 32 /dev/urandom >"$slurm/munge.key"
chmod 0400 "$slurm/munge.key"
cat >"$SLURM_CONF" <<END
ClusterName=forepack
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller_port
SlurmdPort=$daemon_port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits until its old credential has expired, 120 s by default.
AuthInfo=socket=$slurm/munge.socket,cred_expire=5
StateSaveLocation=$slurm/state
SlurmdSpoolDir=$slurm/spool
SlurmctldPidFile=$slurm/slurmctld.pid
SlurmdPidFile=$slurm/slurmd.pid
SlurmctldLogFile=$slurm/slurmctld.log
SlurmdLogFile=$slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=5,batch_sched_delay=0,sched_min_interval=1000
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=300
MinJobAge=3600
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=32 State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
END
munged --force --socket="$slurm/munge.socket" --key-file="$slurm/munge.key" --pid-file="$slurm/munged.pid" \
    --log-file="$slurm/munged.log" --seed-file="$slurm/munge.seed" >"$work/munged.out" 2>&1 || fail "munged does not start"
slurmctld >"$work/slurmctld.out" 2>&1 || fail "slurmctld does not start"
slurmd >"$work/slurmd.out" 2>&1 || fail "slurmd does not start"
slurm_up() { [ "$(sinfo -h -o %T)" = idle ]; }
wait_until 30 "Slurm is up" slurm_up

cluster=$slurm/cluster
cp "$source_dir"/deploy/slurm/* "$cluster/"
cd "$cluster"
choose_ports
cat >settings.sh <<END
BIN='$bin' ADDRESS=127.0.0.1 LISTEN=127.0.0.1 NODE_PORT=$node_port HTTP_PORT=$http_port
END
printf 'model = %s\nport = %s\ndrain-ms = 25000\ninsecure = true\nworker-grace-ms = 120000\n' "$main_model" "$port" >router.conf
printf 'model = %s\nthreads = 1\n' "$spec_model" >speculator.conf
printf 'model = %s\nthreads = 1\n' "$main_model" >group.conf

job_state() { squeue -h -t all -j "$1" -o '%T'; }
state_is() { [ "$(job_state "$1")" = "$2" ]; }
shows() { [ "$(squeue -h -j "$1" -o '%T %k')" = "RUNNING $2" ]; }
job_field() { scontrol show job "$1" | tr ' ' '\n' | sed -n "s/^$2=//p" | head -n 1; }
submit() { sbatch --parsable "$@"; }
load_begin() { # load_begin NAME STREAMS TOKENS
    start "load-$1" python3 "$source_dir/deploy/chaos/load.py" --url "http://$(cat http)" --streams "$2" --tokens "$3" --json "$work/$1.json"
    load=$last_pid load_log=$work/load-$1.log
    is_calm() { grep -q calm "$load_log" || ! kill -0 "$load" 2>/dev/null; }
    wait_until 60 "the answers in calm" is_calm
    kill -0 "$load" 2>/dev/null || fail "no calm answers: $(tail -n 1 "$load_log")"
}
load_end() { # load_end NAME: every request was answered as in calm
    kill -TERM "$load"
    wait "$load" || fail "load.py ended with $?"
    sed "s/^/$1: /" "$load_log"
    equal "0 0 0 0" "$(jq -r '"\(.refused) \(.lost) \(.repeated) \(.different)"' "$work/$1.json")" "refused, lost, repeated, different of $1"
}

# ---- submitted in any order, ready, answers ----
first=$(submit --array=1-2 group.sbatch)
speculator=$(submit speculator.sbatch)
router=$(submit router.sbatch)
wait_until 60 "both groups are ready" nodes worker 2
wait_until 60 "the speculator is ready" nodes speculator 1
wait_until 60 "the job of group 1 says so" shows "${first}_1" ready
grep -q 4892 <<<"$(generate --prompt-file "$source_dir/deploy/demo-model/report.txt")" || fail "a wrong answer"
equal 400 "$(stat -c %a cluster.token | sed 's/600/400/')" "mode of the token" # only the owner reads it

# ---- scancel under 20 streams: all are drained ----
jq -nc 'range(20) | {id: "s\(.)", prompt: "Hello \(.)", max_tokens: 600, ignore_eos: true}' >"$work/rows.jsonl"
scancel --signal=USR1 "${first}_2" # without KillWait: the ranks drain, and the job ends with 0
wait_until 60 "group 2 has drained" state_is "${first}_2" COMPLETED
start batch "$bin/forepack" batch --server "$server" --reconnect-s 0 --input "$work/rows.jsonl" --output "$work/drained.jsonl"
batch=$last_pid
wait_until 60 "20 streams run" status_is '.queue.running == 20'
scancel "${first}_1"
wait "$batch" || fail "the streams of a cancelled group: $(tail -n 2 "$work/batch.log")"
equal "20 0" "$(jq -rs '"\([.[] | select(.finish_reason == "length" and .usage.completion_tokens == 600)] | length) \([.[].usage.replays] | add)"' "$work/drained.jsonl")" "drained streams and replays"
wait_until 60 "the job is cancelled" state_is "${first}_1" CANCELLED
echo "scancel: 20 of 20 streams drained"

# ---- more groups by another array; a killed rank is requeued, requests are replayed ----
second=$(submit --array=3-4 group.sbatch)
wait_until 60 "groups 3 and 4 are ready" nodes worker 2
load_begin kill 8 100
victim=$(job_field "${second}_3" JobId)
kill -KILL "$(scontrol listpids "$victim" | awk '$3 == 0 && $4 == 1 { print $1; exit }')"
wait_until 60 "the job is requeued" grep -q "the job is requeued" "group-${second}_3.log"
restarted() { [ "$(job_field "${second}_3" Restarts)" = 1 ] && shows "${second}_3" ready; }
wait_until 60 "the group runs again" restarted
load_end kill

# ---- a router on another port, as on another host: nodes follow its file ----
scancel "$router"
wait_until 60 "the router has ended" state_is "$router" CANCELLED
choose_ports
sed -i "s/^port = .*/port = $port/" router.conf
sed -i "s/NODE_PORT=.*/NODE_PORT=$node_port HTTP_PORT=$http_port/" settings.sh
router=$(submit router.sbatch)
wait_until 60 "the nodes are at the new router" nodes worker 2
wait_until 60 "so is the speculator" nodes speculator 1

# ---- a time limit of two minutes under load: the successor is ready before the old group drains ----
scancel --signal=USR1 "${second}_3"
scancel --signal=USR1 "${second}_4"
limited=$(submit --array=5 --time=2 --signal=B:USR2@60 group.sbatch)
wait_until 60 "groups 3 and 4 have left" state_is "${second}_4" COMPLETED
wait_until 60 "the group with a limit is ready" shows "${limited}_5" ready
load_begin limit 8 200
limit_passed() { state_is "${limited}_5" COMPLETED; }
wait_until 60 "the old group has drained" limit_passed
successor=$(squeue -h -n group -t RUNNING -o %i)
shows "$successor" ready || fail "there is no ready successor: $successor"
equal 120 "$(($(date -d "1970-01-01 UTC $(squeue -h -j "$successor" -o %l | sed 's/^\([0-9]*:[0-9]*\)$/0:\1/')" +%s)))" "limit of the successor"
load_end limit

# ---- faults of deploy/chaos: a job replaced by its successor, a job killed ----
chaos() { # chaos FAULT JOB
    "$source_dir/deploy/chaos/slurm.sh" "$1" --target "$2" --url "http://$(cat http)" --streams 4 --tokens 100 --json "$work/chaos-$1.json" \
        >"$work/chaos-$1.log" 2>&1 || fail "deploy/chaos/slurm.sh $1 ended with $?"
    equal "0 0 0 0" "$(jq -r '"\(.refused) \(.lost) \(.repeated) \(.different)"' "$work/chaos-$1.json")" "refused, lost, repeated, different of $1"
    sed "s/^/chaos $1: /" "$work/chaos-$1.log"
}
group=$(submit --array=6 group.sbatch)
wait_until 60 "a group with a day's limit is ready" shows "${group}_6" ready
limited_ended() { # each of them may have submitted a successor
    local limited
    limited=$(squeue -h -n group -o '%l %i' | sed -n 's/^2:00 //p')
    [ -z "$limited" ] || { scancel $limited; false; }
}
wait_until 60 "the groups with a limit of two minutes have ended" limited_ended
chaos roll "${group}_6"
successor=$(squeue -h -n group -t RUNNING -o %i)
shows "$successor" ready || fail "no group after the replacement: $successor"
chaos kill "$successor"

# ---- wrong configurations: one sentence in the job's log, no requeue ----
wrong() { # wrong NAME CODE TEXT: submits group.sbatch, which must fail
    local job
    job=$(submit --array=9 --output="wrong-$1.log" group.sbatch)
    wait_until 60 "the job with $1 has failed" state_is "${job}_9" FAILED
    equal "$2:0 0" "$(job_field "${job}_9" ExitCode) $(job_field "${job}_9" Restarts)" "exit code and restarts with $1"
    grep -q -- "$3" "wrong-$1.log" || fail "no reason with $1: $(cat "wrong-$1.log")"
    equal 1 "$(grep -vc ' info \|^srun: error: .* Exited with\|is not requeued' "wrong-$1.log")" "sentences with $1"
}
cp group.conf good.conf
cp settings.sh good.sh
echo 'model = /nothing' >group.conf
wrong model 2 "/nothing/tokenizer.json\|/nothing/config.json\|/nothing:"
cp good.conf group.conf
echo 'MPI=pmix_missing' >>settings.sh
wrong pmix 2 "srun has no --mpi=pmix_missing"
cp good.sh settings.sh
echo 'BIN=/nothing' >>settings.sh
wrong programs 2 "/nothing/forepack-worker is missing"
cp good.sh settings.sh
(umask 077 && openssl rand -hex 32 >other.token)
echo "cluster-token-file = other.token" >>group.conf
job=$(submit --array=9 --output=wrong-token.log group.sbatch)
wait_until 60 "the router refuses the token" grep -q "router_refused.*token" wrong-token.log
equal "RUNNING 0" "$(job_state "${job}_9") $(job_field "${job}_9" Restarts)" "the job with a wrong token"
cp -p cluster.token other.token
wait_until 60 "the node attaches once the token is right" nodes worker 2

# ---- all jobs end ----
scancel --user root
no_jobs() { [ -z "$(squeue -h)" ]; }
wait_until 60 "all jobs have ended" no_jobs
echo "slurm: all passed"
