// SPDX-License-Identifier: Apache-2.0
// Divides the GPUs of this machine among the nodes of a local cluster.
#pragma once

#include "lib/base/status.h"

// Number of GPUs that processes started by this one would see: the driver's count, which respects CUDA_VISIBLE_DEVICES.
// 0 without a driver and without the CUDA backend beside this program. A child process asks the driver, so that this
// process never uses CUDA. Call it before this process has threads.
int gpus_count(void);

// STATUS_INVALID when a node has more ranks than there are GPUs: each rank needs its own.
enum status gpus_check(const int *ranks, int n_nodes, int n_gpus);

// The GPUs of a node, one per rank: first, first + 1, .., modulo the number of GPUs.
struct gpu_set {
    int first, ranks;
    int nodes; // maximum over these GPUs of the number of nodes on one GPU, this node included
};

// Assigns GPUs to the nodes round robin, one per rank. Nodes share a GPU only when there are fewer GPUs than ranks.
void gpus_divide(const int *ranks, int n_nodes, int n_gpus, struct gpu_set *sets);

// The value of CUDA_VISIBLE_DEVICES for a node; free() it. `visible` is its present value (NULL: not set), with which
// the driver counts n_gpus. NULL: leave it, because the node has all GPUs or `visible` lists fewer than n_gpus.
char *gpus_visible(const struct gpu_set *set, int n_gpus, const char *visible);
