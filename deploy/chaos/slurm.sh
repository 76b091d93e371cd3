#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Plants faults in jobs of deploy/slurm. --help lists them.
. "$(dirname "$0")/common.sh"
platform="jobs of Slurm"
faults="  kill        SIGKILL to rank 0 of job T, which is then requeued
  freeze      SIGSTOP to the ranks of job T, later SIGCONT
$FILE_FAULTS
  drain       job T finishes its requests and ends
  roll        each of the jobs T submits a successor, and drains when this is ready"

check_job() {
    command -v scancel >/dev/null || wrong "Slurm's commands are not installed"
    local job
    for job in "${targets[@]}"; do
        [ "$(squeue -h -j "$job" -o %T 2>/dev/null)" = RUNNING ] || wrong "--target '$job': is no running job"
    done
}
over() { [ -z "$(squeue -h -j "$1" 2>/dev/null)" ]; }
runs() { [[ "$(squeue -h -j "$1" -o '%T %k' 2>/dev/null)" = "RUNNING ready" ]]; }
check_kill() { check_job; }
plant_kill() {
    # scancel --signal=KILL would end the job. Step 0 has the ranks.
    srun --jobid="$(squeue -h -j "${targets[0]}" -o %A)" --overlap --nodes=1 --ntasks=1 --mpi=none bash -c \
        'kill -KILL $(scontrol listpids "$SLURM_JOB_ID" | awk '\''$3 == 0 && $4 == 0 { print $1 }'\'')'
    requeued() { ! runs "${targets[0]}"; }
    wait_for 60 "job ${targets[0]} has lost its ranks" requeued
    wait_for 3600 "job ${targets[0]} is ready again" runs "${targets[0]}"
}
check_freeze() { check_job; }
plant_freeze() { scancel --signal=STOP "${targets[0]}"; }
heal_freeze() { scancel --signal=CONT "${targets[0]}"; }
check_cut() { wrong "cut: needs the firewall of the job's host, or processes.sh with proxy.py"; }
plant_cut() { :; }
check_clock() { wrong "clock: jobs have the clock of their host; use processes.sh with libfaketime"; }
plant_clock() { :; }
check_drain() { check_job; }
plant_drain() {
    scancel --signal=USR1 "${targets[0]}"
    wait_for 3600 "job ${targets[0]} has ended" over "${targets[0]}"
}
check_roll() { check_job; }
plant_roll() {
    local job
    for job in "${targets[@]}"; do
        scancel --batch --signal=USR2 "$job"
        wait_for 3600 "job $job has ended" over "$job"
    done
}
chaos_main "$@"
