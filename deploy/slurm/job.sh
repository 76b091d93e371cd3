# SPDX-License-Identifier: Apache-2.0
# Functions of the jobs in this folder: one job step for each program, its end, its successor at the time limit.
# Sourced by router.sbatch, speculator.sbatch and group.sbatch, in the folder from which they were submitted.
# The folder belongs to one cluster and all hosts see it. Files there: settings.sh, router.conf, speculator.conf,
# group.conf; made by the jobs: `router` (address for nodes), `http` (address for clients), `cluster.token`.
#
# A job shows its state as its comment: squeue --me -o '%i %j %T %k'. Exit codes of a program decide what follows:
# 0 and 2 end the job, any other code requeues it.
set -uo pipefail
BIN=/usr/bin ADDRESS=$(hostname -f) NODE_PORT=50052 HTTP_PORT=8000 MPI=pmix STARTS=10
ending=0 succeeding=0 ready=0 step= successor=

say() { echo "$SLURM_JOB_NAME: $*" >&2; }
die() {
    say "${*:2}"
    exit "$1"
}

# Reads the settings, and makes the cluster token unless another job did.
job_begin() {
    [ -r settings.sh ] || die 2 "$PWD has no settings.sh: submit the job in a copy of deploy/slurm"
    . ./settings.sh
    if [ ! -e cluster.token ]; then
        local new
        new=$(umask 077 && mktemp .token-XXXXXX) || die 2 "$PWD: no file can be made here"
        head -c 32 /dev/urandom | sha256sum | cut -c 1-64 >"$new"
        ln "$new" cluster.token 2>/dev/null
        rm -f "$new"
    fi
    # Slurm sends SIGTERM to job and steps when the job is cancelled: the programs drain, and the job waits for them.
    trap 'ending=1' TERM INT
    trap '[ $succeeding != 0 ] || succeeding=1' USR2 # a job has one successor
}

# Replaces a file as a whole: readers see the old or the new line.
publish() {
    echo "$2" >".$1-$SLURM_JOB_ID" && mv -f ".$1-$SLURM_JOB_ID" "$1" || die 2 "$PWD/$1: cannot be written"
}

setting() { sed -n "s/^ *$1 *= *//p" "$2" | tail -n 1; } # setting KEY FILE

# step PROGRAM FILE [OPTION...]: checks what would fail, then starts the program as a job step of all tasks.
step() {
    local program=$BIN/$1 file=$2
    shift 2
    [ -x "$program" ] || die 2 "BIN=$BIN: $program is missing"
    [ -r "$file" ] || die 2 "$PWD/$file: cannot be read"
    local -a options=(--ntasks="${TASKS:-1}" --unbuffered --mpi=none)
    if [ "${TASKS:-1}" -gt 1 ]; then
        srun --mpi=list 2>&1 | grep -w "$MPI" >/dev/null ||
            die 2 "srun has no --mpi=$MPI, which a group of $TASKS ranks needs: install Slurm's PMIx plugin"
        options+=(--mpi="$MPI")
    fi
    [ -n "$(setting cluster-token-file "$file")" ] || set -- "$@" --cluster-token-file cluster.token
    # srun does not take this number from the job since Slurm 22.05.
    [ -z "${SLURM_CPUS_PER_TASK:-}" ] || options+=(--cpus-per-task="$SLURM_CPUS_PER_TASK")
    srun "${options[@]}" "$program" --config "$file" "$@" &
    step=$!
}

step_drain() { [ -z "$step" ] || kill -USR1 "$step" 2>/dev/null; } # srun passes the signal on to the tasks

# node PROGRAM FILE: runs a worker group or a speculator until it ends, and sets $code.
node() {
    local probe
    probe=$(setting probe-listen "$2")
    probe=${probe##*:}
    : "${probe:=$(free_port)}"
    step "$1" "$2" --router "file:$PWD/router" --node-id "$SLURM_JOB_NAME-$SLURM_JOB_ID" \
        --probe-listen "127.0.0.1:$probe"
    watch_ready "$probe"
    step_wait
}

free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 12000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

# Rank 0 runs on the host of this script. Its probe port says when the node is attached; the job's comment tells others.
watch_ready() {
    local line end=$((SECONDS + ${READY_S:-86400}))
    comment starting
    while kill -0 "$step" 2>/dev/null && [ $SECONDS -lt $end ] && [ $ending = 0 ]; do
        if { exec 3<>"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null; then
            printf 'GET /ready HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n' >&3
            read -r -t 4 line <&3
            exec 3<&-
            [[ ! $line =~ \ 200\  ]] || { ready=1; comment ready; return; }
        fi
        [ $succeeding = 0 ] || break
        sleep 1
    done
}

comment() { scontrol update JobId="$SLURM_JOB_ID" Comment="$1" 2>/dev/null; }

# Waits for the end of the step and sets $code. A signal to the job ends `wait` early.
step_wait() {
    code=0
    while :; do
        if [ $succeeding = 1 ]; then
            succeeding=2
            succeed
        fi
        code=0
        wait "$step" || code=$?
        kill -0 "$step" 2>/dev/null || break
    done
}

# Near the time limit: starts another job, and drains this one when the other is ready. Without a successor it drains when
# half of the remaining time is over.
succeed() {
    local end state
    end=$(date -d "$(squeue -h -j "$SLURM_JOB_ID" -o %e)" +%s) || end=$(date +%s)
    local until=$((($(date +%s) + end) / 2))
    successor=$(resubmit) || { say "no successor can be submitted: $successor"; until=0 successor=; }
    comment "successor ${successor:-none}"
    while [ "$(date +%s)" -lt $until ] && [ $ending = 0 ] && kill -0 "$step" 2>/dev/null; do
        state=$(squeue -h -j "$successor" -o '%T %k' 2>/dev/null)
        [ "$state" != "RUNNING ready" ] || break
        [ -n "$state" ] || { say "the successor $successor has ended"; break; }
        sleep 1
    done
    [ "${state:-}" = "RUNNING ready" ] || say "the job drains although its successor $successor is not ready"
    step_drain
}

# Submits this job's script again, with the limits of this job. Variables of this job would confuse the other one.
resubmit() {
    local -a clean=(env) same
    local name
    for name in $(compgen -e | grep '^SLURM_' | grep -vx SLURM_CONF); do clean+=(-u "$name"); done
    same=(--parsable --partition="$SLURM_JOB_PARTITION" --time="$(squeue -h -j "$SLURM_JOB_ID" -o %l)")
    [ -z "${SLURM_ARRAY_TASK_ID:-}" ] || same+=(--array="$SLURM_ARRAY_TASK_ID")
    [ -z "${SLURM_JOB_ACCOUNT:-}" ] || same+=(--account="$SLURM_JOB_ACCOUNT")
    [ -z "${SLURM_JOB_QOS:-}" ] || same+=(--qos="$SLURM_JOB_QOS")
    "${clean[@]}" sbatch "${same[@]}" "$SLURM_SUBMIT_DIR/${SCRIPT:?}" 2>&1
}

# Ends the job with $code, or puts it back into the queue. A job that is never ready must not start for ever.
job_end() {
    case $code in
    0) exit 0 ;;
    2) die 2 "the configuration is wrong, see above; the job is not requeued" ;;
    esac
    [ $ending = 0 ] || exit "$code"
    [ -z "$successor" ] || [ -z "$(squeue -h -j "$successor" 2>/dev/null)" ] ||
        die "$code" "ended with code $code; its successor $successor takes over, so the job is not requeued"
    [ $ready = 1 ] || [ "${SLURM_RESTART_COUNT:-0}" -lt "$STARTS" ] || die 1 "not ready in $STARTS starts; the job is not requeued"
    say "ended with code $code; the job is requeued"
    scontrol requeue "$SLURM_JOB_ID" || exit "$code"
    sleep 60 # Slurm ends this script
    exit "$code"
}

# The router says in files where it is, so that nodes and clients find it after a move to another host.
router() {
    step forepack-router router.conf --host "${LISTEN:-0.0.0.0}" --node-listen "${LISTEN:-0.0.0.0}:$NODE_PORT" \
        --http-port "$HTTP_PORT"
    publish router "$ADDRESS:$NODE_PORT"
    publish http "$ADDRESS:$HTTP_PORT"
    comment router
}
