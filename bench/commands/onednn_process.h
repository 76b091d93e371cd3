// SPDX-License-Identifier: Apache-2.0
// The program forepack-bench-onednn (bench/onednn.c) as a contender: a child process that runs the gemms of one layer
// with oneDNN. It exists only if oneDNN was installed when Forepack was built. Each process is used by one thread.
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

// Returns true if the program is installed next to this program.
bool onednn_is_installed(void);
// Starts the program with `copies` copies of the weights. The runs cycle through the copies, so that each run reads its
// weights from memory. On failure p->pid stays 0.
void onednn_process_start(struct onednn_process *p, const char *dtype, int threads, int copies,
                          const struct onednn_gemm *gemms, int n_gemms);
void onednn_process_stop(struct onednn_process *p);

// Runs the gemms once with p->m rows, where the contender's context is the process `p`.
enum status onednn_process_run(struct contender *self, double *seconds_p);
