// SPDX-License-Identifier: Apache-2.0
#include "cli/gpus.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/base/program_path.h"

// Asks the driver for the number of GPUs. The CUDA backend could tell the number too, but needs libraries that only
// nodes need.
static int gpus_ask_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) return 0;
    int (*init)(unsigned flags), (*count)(int *count_p), n;
    *(void **)&init = dlsym(driver, "cuInit");
    *(void **)&count = dlsym(driver, "cuDeviceGetCount");
    return init && count && init(0) == 0 && count(&n) == 0 ? n : 0;
}

int gpus_count(void)
{
    enum { GPUS_MAX = 255 }; // the count is the exit code of the child
    char *backend = program_path("libforepack_cuda.so");
    bool usable = access(backend, F_OK) == 0;
    free(backend);
    if (!usable) return 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        int n = gpus_ask_driver();
        _exit(n < GPUS_MAX ? n : GPUS_MAX);
    }
    int end;
    return child > 0 && waitpid(child, &end, 0) == child && WIFEXITED(end) ? WEXITSTATUS(end) : 0;
}

enum status gpus_check(const int *ranks, int n_nodes, int n_gpus)
{
    for (int i = 0; i < n_nodes; i++)
        if (ranks[i] > n_gpus)
            return status_fail(STATUS_INVALID, "a node has %d ranks, this machine %d GPUs: each rank needs its own GPU",
                               ranks[i], n_gpus);
    return STATUS_OK;
}

static int gpu_of(const struct gpu_set *set, int rank, int n_gpus)
{
    return (set->first + rank) % n_gpus;
}

void gpus_divide(const int *ranks, int n_nodes, int n_gpus, struct gpu_set *sets)
{
    int *nodes = mem_alloc_array((size_t)n_gpus, sizeof *nodes); // number of nodes on each GPU
    for (int i = 0, next = 0; i < n_nodes; next = (next + sets[i++].ranks) % n_gpus) {
        sets[i] = (struct gpu_set){.first = next, .ranks = ranks[i] < n_gpus ? ranks[i] : n_gpus};
        for (int r = 0; r < sets[i].ranks; r++)
            nodes[gpu_of(&sets[i], r, n_gpus)]++;
    }
    for (int i = 0; i < n_nodes; i++)
        for (int r = 0; r < sets[i].ranks; r++) {
            int on_gpu = nodes[gpu_of(&sets[i], r, n_gpus)];
            if (on_gpu > sets[i].nodes) sets[i].nodes = on_gpu;
        }
    free(nodes);
}

// Returns the n-th name of a comma-separated list, and its length in *length_p. Returns NULL if the list is shorter.
static const char *list_item(const char *list, int n, int *length_p)
{
    for (; n > 0 && list; n--) {
        list = strchr(list, ',');
        if (list) list++;
    }
    if (list) *length_p = (int)strcspn(list, ",");
    return list && *length_p ? list : NULL;
}

char *gpus_visible(const struct gpu_set *set, int n_gpus, const char *visible)
{
    if (set->first == 0 && set->ranks == n_gpus) return NULL;
    char *text = mem_string("");
    for (int r = 0; r < set->ranks && text; r++) {
        int gpu = gpu_of(set, r, n_gpus), length = 0;
        const char *name = visible ? list_item(visible, gpu, &length) : NULL, *comma = r ? "," : "";
        char *longer = !visible ? mem_format("%s%s%d", text, comma, gpu)
                       : name   ? mem_format("%s%s%.*s", text, comma, length, name)
                                : NULL;
        free(text);
        text = longer;
    }
    return text;
}
