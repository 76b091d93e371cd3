// SPDX-License-Identifier: Apache-2.0
// Times the gemms of one layer with oneDNN, as a contender (bench/rounds.h). They run in the program
// forepack-bench-onednn (bench/onednn.c), a child process. The program exists only if oneDNN was installed when
// Forepack was built. Only one thread uses a process.
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#include "bench/rounds.h"

struct onednn_gemm {
    int n, k; // outputs and inputs
};

struct onednn_process { // starts as zero
    pid_t pid;          // 0: not running
    FILE *to, *from;
    int m; // rows of the next run
};

// Returns true if forepack-bench-onednn is in the folder of this program.
bool onednn_is_installed(void);
// Starts the program with `copies` copies of the weights. The runs cycle through the copies, so that each run reads its
// weights from memory. If no process can be created, p->pid stays 0. If the program cannot be run,
// onednn_process_run() fails.
void onednn_process_start(struct onednn_process *p, const char *dtype, int threads, int copies,
                          const struct onednn_gemm *gemms, int n_gemms);
void onednn_process_stop(struct onednn_process *p);

// Runs the gemms once, with `m` rows. self->context is a struct onednn_process.
enum status onednn_process_run(struct contender *self, double *seconds_p);
