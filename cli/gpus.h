// SPDX-License-Identifier: Apache-2.0
// Divides the GPUs of this machine among the nodes of a local cluster.
#pragma once

#include "lib/base/status.h"

// Returns the number of GPUs that children of this process would see. This is the driver's count, which respects
// CUDA_VISIBLE_DEVICES. Returns 0 if there is no driver, or no CUDA backend in this program's folder. A child process
// asks the driver, so that this process never uses CUDA. Call it before this process has threads.
int gpus_count(void);

// Fails with STATUS_INVALID if a node has more ranks than there are GPUs, because each rank needs its own GPU.
enum status gpus_check(const int *ranks, int n_nodes, int n_gpus);

// The GPUs of a node, one per rank: first, first + 1, .., modulo the number of GPUs.
struct gpu_set {
    int first, ranks;
    int nodes; // largest number of nodes on any of these GPUs, including this node
};

// Assigns GPUs to the nodes round robin, one per rank. Nodes share a GPU only if there are fewer GPUs than ranks.
void gpus_divide(const int *ranks, int n_nodes, int n_gpus, struct gpu_set *sets);

// Returns the value of CUDA_VISIBLE_DEVICES for a node; the caller frees it. `visible` is the current value of the
// variable (NULL: not set), with which the driver counts n_gpus. Returns NULL if the variable must not change: the node
// has all GPUs, or `visible` lists fewer than n_gpus.
char *gpus_visible(const struct gpu_set *set, int n_gpus, const char *visible);
