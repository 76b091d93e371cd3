// SPDX-License-Identifier: Apache-2.0
#include "cli/gpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "kernels/module.h"

int gpus_count(void)
{
    enum { MOST = 255 }; // in an exit code
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct cuda_module module;
        int n = cuda_module_load(&module) == STATUS_OK ? module.count_devices() : 0;
        _exit(n < MOST ? n : MOST);
    }
    int end;
    return child > 0 && waitpid(child, &end, 0) == child && WIFEXITED(end) ? WEXITSTATUS(end) : 0;
}

enum status gpus_check(const int *ranks, int n_nodes, int n_gpus)
{
    for (int i = 0; i < n_nodes; i++)
        if (ranks[i] > n_gpus)
            return status_fail(STATUS_INVALID, "a node of %d ranks on %d GPUs: each rank takes one of its own",
                               ranks[i], n_gpus);
    return STATUS_OK;
}

static int gpu_of(const struct gpu_share *share, int rank, int n_gpus)
{
    return (share->first + rank) % n_gpus;
}

void gpus_divide(const int *ranks, int n_nodes, int n_gpus, struct gpu_share *shares)
{
    int *nodes = mem_alloc_array((size_t)n_gpus, sizeof *nodes); // of each GPU
    for (int i = 0, next = 0; i < n_nodes; next = (next + shares[i++].ranks) % n_gpus) {
        shares[i] = (struct gpu_share){.first = next, .ranks = ranks[i] < n_gpus ? ranks[i] : n_gpus};
        for (int r = 0; r < shares[i].ranks; r++)
            nodes[gpu_of(&shares[i], r, n_gpus)]++;
    }
    for (int i = 0; i < n_nodes; i++)
        for (int r = 0; r < shares[i].ranks; r++) {
            int here = nodes[gpu_of(&shares[i], r, n_gpus)];
            if (here > shares[i].nodes) shares[i].nodes = here;
        }
    free(nodes);
}

// The n-th name in a list with commas, its length in *length_p; NULL: it is shorter.
static const char *name_of(const char *list, int n, int *length_p)
{
    for (; n > 0 && list; n--) {
        list = strchr(list, ',');
        if (list) list++;
    }
    if (list) *length_p = (int)strcspn(list, ",");
    return list && *length_p ? list : NULL;
}

char *gpus_visible(const struct gpu_share *share, int n_gpus, const char *visible)
{
    if (share->first == 0 && share->ranks == n_gpus) return NULL;
    char *text = mem_string("");
    for (int r = 0; r < share->ranks && text; r++) {
        int gpu = gpu_of(share, r, n_gpus), length = 0;
        const char *name = visible ? name_of(visible, gpu, &length) : NULL, *comma = r ? "," : "";
        char *longer = !visible ? mem_format("%s%s%d", text, comma, gpu)
                       : name   ? mem_format("%s%s%.*s", text, comma, length, name)
                                : NULL;
        free(text);
        text = longer;
    }
    return text;
}
