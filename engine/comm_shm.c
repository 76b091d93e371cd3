// SPDX-License-Identifier: Apache-2.0
// See comm_shm.h. The protocol, of which every collective below is made:
//
// Step n of a rank is three things in this order: it writes its data of the step, if any, to piece n % 2 of its lane;
// it sets `posted` to n; it reads what others posted for step n, if it needs to. So posted == n says two things: the
// data of step n is there, and the rank is done with reading step n - 1. Hence what belongs to n % 2, last used in step
// n - 2, may be overwritten once all others have posted n - 1: every step begins with waiting for that. In a row of
// reductions it is so already, and no step needs a second barrier.
#include "engine/comm_shm.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

enum {
    PIECE_FLOATS = 1 << 16, // both pieces of a lane stay in a core's cache while they are written and read
    BLOCK_FLOATS = 1 << 10,
    // Up to here every rank adds up the whole (one step); beyond, each its slice (two steps, less to read).
    WHOLE_FLOATS = 1 << 11,
    // Ranks that do equal work come within tens of microseconds of each other, and waking up on a busy machine can take
    // a whole time slice: so look for a while. Measured: 20 costs a third of a small decode step, 100 to 300 are alike.
    SPIN_US = 200,
};

struct lane {
    _Alignas(64) atomic_uint posted; // the step, modulo 2^32; a futex
    atomic_uint sleepers;            // ranks that wait for `posted` in the kernel, or are about to
    atomic_int core;                 // where the rank ran when it posted; a hint, hence relaxed
    size_t size_bytes[2];            // of the collective that step n belongs to; ordered by `posted`, like the pieces
    _Alignas(4096) float piece[2][PIECE_FLOATS];
};

struct shm_comm {
    struct comm base;
    unsigned step;
    struct lane *lanes;  // [size], shared
    const float **parts; // [size], scratch of a reduction
};

static struct shm_comm *of(struct comm *c)
{
    return (struct shm_comm *)c;
}

// ---- steps ----

static void pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool has_posted(struct lane *lane, unsigned step)
{
    return (int)(atomic_load(&lane->posted) - step) >= 0;
}

static void futex(struct lane *lane, int operation, unsigned value)
{
    syscall(SYS_futex, &lane->posted, operation, value, NULL, NULL, 0);
}

static void sleep_until_posted(struct shm_comm *m, struct lane *lane, unsigned step)
{
    m->base.waits = true;
    // Whoever posts looks at `sleepers` after, whoever sleeps at `posted`: in one total order, one sees the other.
    atomic_fetch_add(&lane->sleepers, 1);
    unsigned posted;
    while ((int)((posted = atomic_load(&lane->posted)) - step) < 0)
        futex(lane, FUTEX_WAIT, posted);
    atomic_fetch_sub(&lane->sleepers, 1);
    m->base.waits = false;
}

// To spin on a core that another rank needs is to wait for oneself.
static bool has_own_core(const struct shm_comm *m)
{
    int core = sched_getcpu();
    for (int r = 0; r < m->base.size; r++)
        if (r != m->base.rank && atomic_load_explicit(&m->lanes[r].core, memory_order_relaxed) == core) return false;
    return true;
}

static void wait_until_posted(struct shm_comm *m, int rank, unsigned step)
{
    struct lane *lane = &m->lanes[rank];
    if (has_posted(lane, step)) return;
    if (has_own_core(m)) {
        int64_t until_us = clock_now_us() + SPIN_US;
        do {
            pause_core();
            if (has_posted(lane, step)) return;
        } while (clock_now_us() < until_us);
    }
    sleep_until_posted(m, lane, step);
}

// Starts the next step of a collective of this size: the piece to write, once all others are done with it.
static float *begin(struct shm_comm *m, size_t size_bytes)
{
    for (int r = 0; r < m->base.size; r++)
        if (r != m->base.rank) wait_until_posted(m, r, m->step);
    struct lane *mine = &m->lanes[m->base.rank];
    m->step++;
    mine->size_bytes[m->step % 2] = size_bytes;
    return mine->piece[m->step % 2];
}

static void post(struct shm_comm *m)
{
    struct lane *mine = &m->lanes[m->base.rank];
    atomic_store_explicit(&mine->core, sched_getcpu(), memory_order_relaxed);
    atomic_store(&mine->posted, m->step);
    if (atomic_load(&mine->sleepers)) futex(mine, FUTEX_WAKE, INT_MAX);
}

// What rank r posted for the current step. Ranks that differ in what they are about are a bug in the caller.
static enum status take(struct shm_comm *m, int r, size_t size_bytes, const float **piece_p)
{
    struct lane *lane = &m->lanes[r];
    wait_until_posted(m, r, m->step);
    size_t theirs = lane->size_bytes[m->step % 2];
    if (theirs != size_bytes) {
        return status_fail(STATUS_INTERNAL, "collective: rank %d brings %zu bytes, rank %d %zu", r, theirs,
                           m->base.rank, size_bytes);
    }
    *piece_p = lane->piece[m->step % 2];
    return STATUS_OK;
}

// ---- reductions ----

typedef void fold_fn(float *restrict sum, const float *restrict part, size_t count);

static void fold_sum(float *restrict sum, const float *restrict part, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sum[i] += part[i];
}

static void fold_max(float *restrict max, const float *restrict part, size_t count)
{
    for (size_t i = 0; i < count; i++)
        max[i] = part[i] > max[i] ? part[i] : max[i];
}

// out = parts[0] + parts[1] + ... in this order; `out` may be one of them. A block at a time, in the nearest cache.
static void fold_parts(float *out, const float *const *parts, int n_parts, size_t count, fold_fn *fold)
{
    float block[BLOCK_FLOATS];
    for (size_t at = 0; at < count; at += BLOCK_FLOATS) {
        size_t n = count - at < BLOCK_FLOATS ? count - at : BLOCK_FLOATS;
        memcpy(block, parts[0] + at, n * sizeof *block);
        for (int r = 1; r < n_parts; r++)
            fold(block, parts[r] + at, n);
        memcpy(out + at, block, n * sizeof *block);
    }
}

// Everybody's values of the current step; the own ones are still in `data`.
static enum status take_parts(struct shm_comm *m, const float *data, size_t size_bytes)
{
    for (int r = 0; r < m->base.size; r++) {
        m->parts[r] = data;
        if (r == m->base.rank) continue;
        enum status status = take(m, r, size_bytes, &m->parts[r]);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

static size_t slice_start(const struct shm_comm *m, int rank, size_t count)
{
    return count * (size_t)rank / (size_t)m->base.size;
}

// Rank r reduces slice r of everybody's values, then takes the other slices from who reduced them.
static enum status share_slices(struct shm_comm *m, float *data, size_t count, size_t size_bytes, fold_fn *fold)
{
    size_t start = slice_start(m, m->base.rank, count), end = slice_start(m, m->base.rank + 1, count);
    for (int r = 0; r < m->base.size; r++)
        m->parts[r] += start;
    fold_parts(begin(m, size_bytes) + start, m->parts, m->base.size, end - start, fold);
    post(m);
    for (int r = 0; r < m->base.size; r++) {
        const float *piece = NULL;
        enum status status = take(m, r, size_bytes, &piece);
        if (status != STATUS_OK) return status;
        start = slice_start(m, r, count), end = slice_start(m, r + 1, count);
        memcpy(data + start, piece + start, (end - start) * sizeof *data);
    }
    return STATUS_OK;
}

static enum status reduce_piece(struct shm_comm *m, float *data, size_t count, size_t size_bytes, fold_fn *fold)
{
    memcpy(begin(m, size_bytes), data, count * sizeof *data);
    post(m);
    enum status status = take_parts(m, data, size_bytes);
    if (status != STATUS_OK) return status;
    // Of two ranks each reads one lane either way.
    if (m->base.size > 2 && count > WHOLE_FLOATS) return share_slices(m, data, count, size_bytes, fold);
    fold_parts(data, m->parts, m->base.size, count, fold);
    return STATUS_OK;
}

static enum status reduce(struct comm *c, float *data, size_t count, fold_fn *fold)
{
    enum status status = STATUS_OK;
    for (size_t at = 0; at < count && status == STATUS_OK; at += PIECE_FLOATS) {
        size_t n = count - at < PIECE_FLOATS ? count - at : PIECE_FLOATS;
        status = reduce_piece(of(c), data + at, n, count * sizeof *data, fold);
    }
    return status;
}

static enum status all_reduce_sum(struct comm *c, float *data, size_t count)
{
    return reduce(c, data, count, fold_sum);
}

static enum status all_reduce_max(struct comm *c, float *data, size_t count)
{
    return reduce(c, data, count, fold_max);
}

// ---- one to all, all to one ----

static enum status gather(struct comm *c, const float *data, size_t count, float *out)
{
    struct shm_comm *m = of(c);
    if (c->rank == 0 && count && out != data) memcpy(out, data, count * sizeof *out);
    for (size_t at = 0; at < count; at += PIECE_FLOATS) {
        size_t n = count - at < PIECE_FLOATS ? count - at : PIECE_FLOATS;
        float *piece = begin(m, count * sizeof *data);
        if (c->rank != 0) memcpy(piece, data + at, n * sizeof *data);
        post(m);
        for (int r = 1; r < c->size && c->rank == 0; r++) {
            const float *theirs = NULL;
            enum status status = take(m, r, count * sizeof *data, &theirs);
            if (status != STATUS_OK) return status;
            memcpy(out + (size_t)r * count + at, theirs, n * sizeof *out);
        }
    }
    return STATUS_OK;
}

static enum status broadcast(struct comm *c, void *bytes, size_t size_bytes)
{
    struct shm_comm *m = of(c);
    const size_t piece_bytes = sizeof m->lanes[0].piece[0];
    for (size_t at = 0; at < size_bytes; at += piece_bytes) {
        size_t n = size_bytes - at < piece_bytes ? size_bytes - at : piece_bytes;
        float *piece = begin(m, size_bytes);
        if (c->rank == 0) memcpy(piece, (char *)bytes + at, n);
        post(m);
        if (c->rank == 0) continue;
        const float *theirs = NULL;
        enum status status = take(m, 0, size_bytes, &theirs);
        if (status != STATUS_OK) return status;
        memcpy((char *)bytes + at, theirs, n);
    }
    return STATUS_OK;
}

// ---- opening ----

static void close_shm(struct comm *c)
{
    struct shm_comm *m = of(c);
    munmap(m->lanes, (size_t)c->size * sizeof *m->lanes);
    free(m->parts);
    free(m);
}

static const struct comm_ops shm_ops = {all_reduce_sum, all_reduce_max, gather, broadcast, close_shm, NULL};

static enum status failed(const char *what)
{
    return status_fail(STATUS_UNAVAILABLE, "shared memory: %s: %s", what, strerror(errno));
}

// STATUS_OK when all are; elsewise the own status, or the worst one's without its sentence.
static enum status agree(struct comm *over, enum status mine)
{
    float worst = (float)mine;
    enum status status = over->ops->all_reduce_max(over, &worst, 1);
    if (mine != STATUS_OK || status != STATUS_OK) return mine != STATUS_OK ? mine : status;
    return worst == 0 ? STATUS_OK : status_fail((enum status)(int)worst, "%s", "");
}

// Opens the segment by name and gives the own lane its pages: allocated here they lie on this rank's memory node, and
// a full /dev/shm is an error now instead of a bus error later.
static enum status map_lanes(const char *name, int rank, int size, struct lane **lanes_p)
{
    int fd = shm_open(name, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return failed("shm_open");
    enum status status = STATUS_OK;
    errno = posix_fallocate(fd, (off_t)rank * (off_t)sizeof(struct lane), sizeof(struct lane));
    if (errno != 0) status = failed("posix_fallocate");
    void *lanes = MAP_FAILED;
    if (status == STATUS_OK) {
        lanes = mmap(NULL, (size_t)size * sizeof(struct lane), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (lanes == MAP_FAILED) status = failed("mmap");
    }
    close(fd);
    if (status == STATUS_OK) *lanes_p = lanes;
    return status;
}

// A new, empty segment of a name nobody can guess, readable by this user alone.
static enum status create_segment(char *name, size_t size)
{
    uint64_t random[2];
    if (getrandom(random, sizeof random, 0) != sizeof random) return failed("getrandom");
    snprintf(name, size, "/forepack-%016llx%016llx", (unsigned long long)random[0], (unsigned long long)random[1]);
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return failed("shm_open");
    close(fd);
    return STATUS_OK;
}

enum status comm_open_shm(struct comm *over, struct comm **comm_p)
{
    char name[64] = ""; // stays empty when rank 0 cannot make the segment
    struct lane *lanes = NULL;
    enum status status = STATUS_OK;
    bool created = false;
    if (over->rank == 0) {
        status = create_segment(name, sizeof name);
        created = status == STATUS_OK;
        if (!created) name[0] = 0;
    }
    enum status told = over->ops->broadcast(over, name, sizeof name);
    if (status == STATUS_OK) status = told;
    if (status == STATUS_OK && name[0]) status = map_lanes(name, over->rank, over->size, &lanes);
    enum status all = agree(over, status); // every rank that can has it by now
    if (created) shm_unlink(name);         // the memory lives as long as somebody maps it, and nothing is left behind
    if (all != STATUS_OK) {
        if (lanes) munmap(lanes, (size_t)over->size * sizeof *lanes);
        return all;
    }
    struct shm_comm *m = mem_alloc(sizeof *m);
    *m = (struct shm_comm){.base = {.rank = over->rank, .size = over->size, .ops = &shm_ops}, .lanes = lanes};
    m->parts = mem_alloc_array((size_t)over->size, sizeof *m->parts);
    *comm_p = &m->base;
    return STATUS_OK;
}
