// SPDX-License-Identifier: Apache-2.0
// Which GPUs of this machine the nodes of a local cluster take.
#pragma once

#include "base/status.h"

// GPUs that CUDA shows to processes started from here; 0 if there are none, or if no CUDA backend is installed beside
// this program. A child process counts them, so that this one never uses CUDA. Call it before this process has threads.
int gpus_count(void);

// STATUS_INVALID, with both numbers, when a node has more ranks than there are GPUs: they take one each.
enum status gpus_check(const int *ranks, int n_nodes, int n_gpus);

// The GPUs first, first + 1, .. of a node, one a rank; after the last comes the first again.
struct gpu_share {
    int first, ranks;
    int nodes; // that one of them serves at most, this one included
};

// Nodes take GPUs in turn, each as many as it has ranks. None is shared as long as there are enough.
void gpus_divide(const int *ranks, int n_nodes, int n_gpus, struct gpu_share *shares);

// CUDA_VISIBLE_DEVICES of a node, where now it is `visible` (NULL: not set) and CUDA shows n_gpus; free() it. NULL
// where all are its own, or `visible` does not name as many: then it is to stay as it is.
char *gpus_visible(const struct gpu_share *share, int n_gpus, const char *visible);
