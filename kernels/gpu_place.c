// SPDX-License-Identifier: Apache-2.0
// See gpu_place.h.
#include "kernels/gpu_place.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/comm.h"
#include "kernels/module.h"
#include "lib/base/mem.h"

// ---- the choice -----------------------------------------------------------------------------------------------------

// Returns the rank below `rank` that uses this GPU, or -1. chosen[r] is the device of rank r.
static int user_of(const struct gpus_seen *ranks, const int *chosen, int rank, const struct gpu_id *id)
{
    for (int r = 0; r < rank; r++)
        if (chosen[r] < ranks[r].n && memcmp(&ranks[r].id[chosen[r]], id, sizeof *id) == 0) return r;
    return -1;
}

// Returns the first GPU that `rank` sees and no lower rank uses, or the number of GPUs that it sees if there is none.
static int choose_next(const struct gpus_seen *ranks, const int *chosen, int rank)
{
    int device = 0;
    while (device < ranks[rank].n && user_of(ranks, chosen, rank, &ranks[rank].id[device]) >= 0)
        device++;
    return device;
}

struct gpu_place gpu_place_choose(const struct gpus_seen *ranks, int rank)
{
    int *chosen = mem_alloc_array((size_t)rank + 1, sizeof *chosen);
    for (int r = 0; r <= rank; r++)
        chosen[r] = choose_next(ranks, chosen, r);
    struct gpu_place place = {.device = chosen[rank], .seen = ranks[rank].n};
    if (place.seen && place.device == place.seen) {
        place.device = GPU_NONE;
        place.used_by = user_of(ranks, chosen, rank, &ranks[rank].id[0]);
    }
    free(chosen);
    return place;
}

// ---- the exchange ---------------------------------------------------------------------------------------------------

// Converts bytes to floats, which a comm gathers: one float per byte.
enum { SEEN_BYTES = sizeof(struct gpus_seen) };

static void bytes_to_floats(const void *bytes, float floats[SEEN_BYTES])
{
    for (int i = 0; i < SEEN_BYTES; i++)
        floats[i] = ((const uint8_t *)bytes)[i];
}

static void floats_to_bytes(const float floats[SEEN_BYTES], void *bytes)
{
    for (int i = 0; i < SEEN_BYTES; i++)
        ((uint8_t *)bytes)[i] = (uint8_t)floats[i];
}

// Sends the GPUs that each rank sees to all ranks.
static enum status seen_exchange(struct comm *comm, const struct gpus_seen *mine, struct gpus_seen *all)
{
    float floats[SEEN_BYTES], *gathered = mem_alloc_array((size_t)comm->size * SEEN_BYTES, sizeof *gathered);
    bytes_to_floats(mine, floats);
    enum status status = comm->ops->gather(comm, floats, SEEN_BYTES, gathered);
    for (int r = 0; status == STATUS_OK && comm->rank == 0 && r < comm->size; r++)
        floats_to_bytes(gathered + (size_t)r * SEEN_BYTES, &all[r]);
    free(gathered);
    return status == STATUS_OK ? comm->ops->broadcast(comm, all, (size_t)comm->size * sizeof *all) : status;
}

enum status gpu_place_agree(struct comm *comm, const char *backend, struct gpu_place *place_p)
{
    struct gpus_seen mine = {0}, *all = mem_alloc_array((size_t)comm->size, sizeof *all);
    struct cuda_module module;
    const bool may_use_gpu = strcmp(backend, "cuda") == 0 || strcmp(backend, "auto") == 0;
    if (may_use_gpu && cuda_module_load(&module) == STATUS_OK) mine.n = module.list_devices(mine.id, GPUS_SEEN_MAX);
    enum status status = seen_exchange(comm, &mine, all);
    if (status == STATUS_OK) *place_p = gpu_place_choose(all, comm->rank);
    free(all);
    return status;
}
