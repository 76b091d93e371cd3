// SPDX-License-Identifier: Apache-2.0
#include "engine/shm_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "lib/base/mem.h"

enum { NAME_BYTES = 64 };

static enum status segment_fail(const char *what)
{
    return status_fail(STATUS_UNAVAILABLE, "shared memory: %s: %s", what, strerror(errno));
}

// Returns STATUS_OK if all ranks succeeded. Otherwise returns this rank's failure. If only other ranks failed, returns
// their largest status, with an empty status_message().
static enum status segments_agree(struct comm *over, enum status mine)
{
    float worst = (float)mine;
    enum status status = over->ops->all_reduce_max(over, &worst, 1);
    if (mine != STATUS_OK || status != STATUS_OK) return mine != STATUS_OK ? mine : status;
    return worst == 0 ? STATUS_OK : status_fail((enum status)(int)worst, "%s", "");
}

// Creates an empty segment with a random name, which only this user can access.
static enum status segment_create(char name[NAME_BYTES])
{
    uint64_t random[2];
    if (getrandom(random, sizeof random, 0) != sizeof random) return segment_fail("getrandom");
    snprintf(name, NAME_BYTES, "/forepack-%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) {
        close(fd);
        return STATUS_OK;
    }
    name[0] = 0;
    return segment_fail("shm_open");
}

// Opens the segment by name and allocates the pages of this rank. So a full /dev/shm is an error now instead of a bus
// error later.
static enum status segment_map(const char *name, int rank, int size, size_t rank_bytes, void **memory_p)
{
    int fd = shm_open(name, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return segment_fail("shm_open");
    enum status status = STATUS_OK;
    errno = posix_fallocate(fd, (off_t)rank * (off_t)rank_bytes, (off_t)rank_bytes);
    if (errno != 0) status = segment_fail("posix_fallocate");
    void *memory = MAP_FAILED;
    if (status == STATUS_OK) {
        memory = mmap(NULL, (size_t)size * rank_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (memory == MAP_FAILED) status = segment_fail("mmap");
    }
    close(fd);
    if (status == STATUS_OK) *memory_p = memory;
    return status;
}

// Creates the segments on rank 0. A part whose segment could not be created gets an empty name.
static enum status segments_create(int n_parts, char (*names)[NAME_BYTES])
{
    enum status status = STATUS_OK;
    for (int i = 0; i < n_parts && status == STATUS_OK; i++)
        status = segment_create(names[i]);
    return status;
}

enum status shm_segments_open(struct comm *over, int n_parts, size_t rank_bytes, void **memory_p)
{
    const int size = over->size / n_parts;
    const size_t names_bytes = (size_t)n_parts * NAME_BYTES;
    char(*names)[NAME_BYTES] = mem_alloc(names_bytes);
    void *memory = NULL;
    enum status status = over->rank == 0 ? segments_create(n_parts, names) : STATUS_OK;
    enum status sent = over->ops->broadcast(over, names, names_bytes);
    if (status == STATUS_OK) status = sent;
    const char *mine = names[over->rank / size];
    if (status == STATUS_OK && mine[0]) status = segment_map(mine, over->rank % size, size, rank_bytes, &memory);
    enum status all = segments_agree(over, status); // from here on every rank that can map its segment has mapped it
    for (int i = 0; i < n_parts && over->rank == 0; i++)
        if (names[i][0]) shm_unlink(names[i]);
    free(names);
    if (all == STATUS_OK)
        *memory_p = memory;
    else if (memory)
        munmap(memory, (size_t)size * rank_bytes);
    return all;
}
