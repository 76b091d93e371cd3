// SPDX-License-Identifier: Apache-2.0
// Every collective is a sequence of steps. In step n a rank:
//   1. writes its data of the step, if any, to piece n % 2 of its lane,
//   2. sets `posted` to n,
//   3. reads the data that other ranks posted for step n, if it needs them.
// So posted == n means that the rank's data of step n is complete and that the rank has finished reading step n - 1.
// The piece of step n was last used in step n - 2. It may be overwritten when all other ranks have posted n - 1, so
// every step first waits for these posts. After a reduction all ranks have posted already, so no step needs a second
// barrier.
#include "engine/comm_shm.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/shm_mail.h"
#include "engine/shm_segment.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"

enum {
    PIECE_FLOATS = 1 << 16, // so small that both pieces of a lane stay in a core's cache
    BLOCK_FLOATS = 1 << 10,
    // Up to this many floats, every rank reduces the whole piece in one step. For more floats, each rank reduces one
    // slice, in two steps.
    WHOLE_FLOATS = 1 << 11,
    // Ranks spin before they sleep: with equal work they arrive within tens of microseconds of each other, and waking
    // up on a busy machine can take a whole time slice. Measured: 20 costs a third of a small decode step; 100 to 300
    // perform alike.
    SPIN_US = 200,
};

struct lane {
    _Alignas(64) atomic_uint posted; // last step posted, modulo 2^32; a futex
    atomic_uint sleepers;            // number of ranks that sleep, or are about to sleep, until `posted` changes
    atomic_int core;                 // core on which the rank posted. Relaxed is enough, because this is only a hint
    size_t size_bytes[2]; // [n % 2] size of the collective of step n. `posted` orders accesses, as for `piece`
    _Alignas(4096) float piece[2][PIECE_FLOATS];
};

struct shm_comm {
    struct comm base;
    unsigned step;
    struct lane *lanes;    // [size] in shared memory
    const float **parts;   // [size] values that one reduction reads
    struct shm_mail *mail; // NULL: not split
};

static struct shm_comm *shm_comm_of(struct comm *c)
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

static bool lane_has_posted(struct lane *lane, unsigned step)
{
    return (int)(atomic_load(&lane->posted) - step) >= 0;
}

static void lane_futex(struct lane *lane, int operation, unsigned value)
{
    syscall(SYS_futex, &lane->posted, operation, value, NULL, NULL, 0);
}

static void lane_sleep(struct shm_comm *m, struct lane *lane, unsigned step)
{
    m->base.waits = true;
    // The posting rank reads `sleepers` after it wrote `posted`, and the sleeping rank reads `posted` after it wrote
    // `sleepers`. Both accesses are sequentially consistent, so at least one rank sees the other's write.
    atomic_fetch_add(&lane->sleepers, 1);
    unsigned posted;
    while ((int)((posted = atomic_load(&lane->posted)) - step) < 0)
        lane_futex(lane, FUTEX_WAIT, posted);
    atomic_fetch_sub(&lane->sleepers, 1);
    m->base.waits = false;
}

// Returns false if another rank posted from this core: spinning would delay that rank.
static bool shm_has_own_core(const struct shm_comm *m)
{
    int core = sched_getcpu();
    for (int r = 0; r < m->base.size; r++)
        if (r != m->base.rank && atomic_load_explicit(&m->lanes[r].core, memory_order_relaxed) == core) return false;
    return true;
}

static void step_wait(struct shm_comm *m, int rank, unsigned step)
{
    struct lane *lane = &m->lanes[rank];
    if (lane_has_posted(lane, step)) return;
    if (shm_has_own_core(m)) {
        int64_t until_us = clock_now_us() + SPIN_US;
        do {
            pause_core();
            if (lane_has_posted(lane, step)) return;
        } while (clock_now_us() < until_us);
    }
    lane_sleep(m, lane, step);
}

// Begins the next step of a collective of `size_bytes`. Returns the piece to write, which no rank is reading any more.
static float *step_begin(struct shm_comm *m, size_t size_bytes)
{
    for (int r = 0; r < m->base.size; r++)
        if (r != m->base.rank) step_wait(m, r, m->step);
    struct lane *mine = &m->lanes[m->base.rank];
    m->step++;
    mine->size_bytes[m->step % 2] = size_bytes;
    return mine->piece[m->step % 2];
}

static void step_post(struct shm_comm *m)
{
    struct lane *mine = &m->lanes[m->base.rank];
    atomic_store_explicit(&mine->core, sched_getcpu(), memory_order_relaxed);
    atomic_store(&mine->posted, m->step);
    if (atomic_load(&mine->sleepers)) lane_futex(mine, FUTEX_WAKE, INT_MAX);
}

// Waits for the data of rank r for the current step. Fails if the ranks call different collectives, which is a bug of
// the caller.
static enum status step_read(struct shm_comm *m, int r, size_t size_bytes, const float **piece_p)
{
    struct lane *lane = &m->lanes[r];
    step_wait(m, r, m->step);
    size_t theirs = lane->size_bytes[m->step % 2];
    if (theirs != size_bytes) {
        return status_fail(STATUS_INTERNAL, "collective: rank %d sends %zu bytes, rank %d %zu", r, theirs, m->base.rank,
                           size_bytes);
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

// Computes out = parts[0] + parts[1] + ... in this order, in blocks that stay in the nearest cache. `out` may be one of
// the parts.
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

// Points m->parts at the values of every rank in the current step. This rank's values are still in `data`.
static enum status step_read_all(struct shm_comm *m, const float *data, size_t size_bytes)
{
    for (int r = 0; r < m->base.size; r++) {
        m->parts[r] = data;
        if (r == m->base.rank) continue;
        enum status status = step_read(m, r, size_bytes, &m->parts[r]);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

static size_t shm_slice_start(const struct shm_comm *m, int rank, size_t count)
{
    return count * (size_t)rank / (size_t)m->base.size;
}

// Rank r reduces slice r of all ranks' values, then copies the other slices from the ranks that reduced them.
static enum status reduce_slices(struct shm_comm *m, float *data, size_t count, size_t size_bytes, fold_fn *fold)
{
    size_t start = shm_slice_start(m, m->base.rank, count), end = shm_slice_start(m, m->base.rank + 1, count);
    for (int r = 0; r < m->base.size; r++)
        m->parts[r] += start;
    fold_parts(step_begin(m, size_bytes) + start, m->parts, m->base.size, end - start, fold);
    step_post(m);
    for (int r = 0; r < m->base.size; r++) {
        const float *piece = NULL;
        enum status status = step_read(m, r, size_bytes, &piece);
        if (status != STATUS_OK) return status;
        start = shm_slice_start(m, r, count), end = shm_slice_start(m, r + 1, count);
        memcpy(data + start, piece + start, (end - start) * sizeof *data);
    }
    return STATUS_OK;
}

static enum status reduce_piece(struct shm_comm *m, float *data, size_t count, size_t size_bytes, fold_fn *fold)
{
    memcpy(step_begin(m, size_bytes), data, count * sizeof *data);
    step_post(m);
    enum status status = step_read_all(m, data, size_bytes);
    if (status != STATUS_OK) return status;
    // With two ranks, slices save no reads.
    if (m->base.size > 2 && count > WHOLE_FLOATS) return reduce_slices(m, data, count, size_bytes, fold);
    fold_parts(data, m->parts, m->base.size, count, fold);
    return STATUS_OK;
}

static enum status shm_reduce(struct comm *c, float *data, size_t count, fold_fn *fold)
{
    enum status status = STATUS_OK;
    for (size_t at = 0; at < count && status == STATUS_OK; at += PIECE_FLOATS) {
        size_t n = count - at < PIECE_FLOATS ? count - at : PIECE_FLOATS;
        status = reduce_piece(shm_comm_of(c), data + at, n, count * sizeof *data, fold);
    }
    return status;
}

static enum status shm_all_reduce_sum(struct comm *c, float *data, size_t count)
{
    return shm_reduce(c, data, count, fold_sum);
}

static enum status shm_all_reduce_max(struct comm *c, float *data, size_t count)
{
    return shm_reduce(c, data, count, fold_max);
}

// ---- gather and broadcast ----

static enum status shm_gather(struct comm *c, const float *data, size_t count, float *out)
{
    struct shm_comm *m = shm_comm_of(c);
    if (c->rank == 0 && count && out != data) memcpy(out, data, count * sizeof *out);
    for (size_t at = 0; at < count; at += PIECE_FLOATS) {
        size_t n = count - at < PIECE_FLOATS ? count - at : PIECE_FLOATS;
        float *piece = step_begin(m, count * sizeof *data);
        if (c->rank != 0) memcpy(piece, data + at, n * sizeof *data);
        step_post(m);
        for (int r = 1; r < c->size && c->rank == 0; r++) {
            const float *theirs = NULL;
            enum status status = step_read(m, r, count * sizeof *data, &theirs);
            if (status != STATUS_OK) return status;
            memcpy(out + (size_t)r * count + at, theirs, n * sizeof *out);
        }
    }
    return STATUS_OK;
}

static enum status shm_broadcast(struct comm *c, void *bytes, size_t size_bytes)
{
    struct shm_comm *m = shm_comm_of(c);
    const size_t piece_bytes = sizeof m->lanes[0].piece[0];
    for (size_t at = 0; at < size_bytes; at += piece_bytes) {
        size_t n = size_bytes - at < piece_bytes ? size_bytes - at : piece_bytes;
        float *piece = step_begin(m, size_bytes);
        if (c->rank == 0) memcpy(piece, (char *)bytes + at, n);
        step_post(m);
        if (c->rank == 0) continue;
        const float *theirs = NULL;
        enum status status = step_read(m, 0, size_bytes, &theirs);
        if (status != STATUS_OK) return status;
        memcpy((char *)bytes + at, theirs, n);
    }
    return STATUS_OK;
}

// ---- messages between two ranks ----

static enum status shm_send(struct comm *c, int rank, const float *data, size_t count)
{
    shm_mail_send(shm_comm_of(c)->mail, data, count);
    return STATUS_OK;
}

static enum status shm_receive(struct comm *c, int rank, float *data, size_t count)
{
    return shm_mail_receive(shm_comm_of(c)->mail, rank, data, count);
}

// ---- opening ----

static enum status shm_split(struct comm *c, int n_parts);

static void shm_close(struct comm *c)
{
    struct shm_comm *m = shm_comm_of(c);
    struct comm *part = c->part;
    if (part) part->ops->close(part);
    shm_mail_close(m->mail);
    munmap(m->lanes, (size_t)c->size * sizeof *m->lanes);
    free(m->parts);
    free(m);
}

static const struct comm_ops shm_ops = {.all_reduce_sum = shm_all_reduce_sum,
                                        .all_reduce_max = shm_all_reduce_max,
                                        .gather = shm_gather,
                                        .broadcast = shm_broadcast,
                                        .close = shm_close,
                                        .split = shm_split,
                                        .send = shm_send,
                                        .receive = shm_receive};

// Opens a comm of this rank's part of `over`: one of `n_parts` equal parts of consecutive ranks. Called by all ranks.
static enum status part_open(struct comm *over, int n_parts, struct comm **comm_p)
{
    void *lanes = NULL;
    TRY(shm_segments_open(over, n_parts, sizeof(struct lane), &lanes));
    const int size = over->size / n_parts;
    struct shm_comm *m = mem_alloc(sizeof *m);
    *m = (struct shm_comm){.base = {.rank = over->rank % size, .size = size, .ops = &shm_ops}, .lanes = lanes};
    m->parts = mem_alloc_array((size_t)size, sizeof *m->parts);
    *comm_p = &m->base;
    return STATUS_OK;
}

static enum status shm_split(struct comm *c, int n_parts)
{
    struct comm *part;
    TRY(shm_mail_open(c, &shm_comm_of(c)->mail));
    TRY(c->size == n_parts ? comm_open_self(&part) : part_open(c, n_parts, &part));
    c->part = part;
    return STATUS_OK;
}

enum status comm_open_shm(struct comm *over, struct comm **comm_p)
{
    return part_open(over, 1, comm_p);
}
