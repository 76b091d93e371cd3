// SPDX-License-Identifier: Apache-2.0
// Uses a duplicate of MPI_COMM_WORLD, so that these messages cannot mix with other messages.
#include "engine/comm_mpi.h"

#include <limits.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "engine/comm_shm.h"
#include "kernels/convert.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/no_alloc.h"

// Counts are in floats. Up to GATHER_WHOLE_MAX floats, one Allgather of whole buffers is faster than two exchanges of
// slices.
enum { GATHER_WHOLE_MAX = 4096, SUM_PIECE_MAX = 4 << 20 };

struct mpi_comm {
    struct comm base;
    MPI_Comm world;
    bool bf16;      // addends are sent as bf16
    float *scratch; // [scratch_floats] addends of all ranks, see mpi_reserve()
    size_t scratch_floats;
    int *counts, *starts, *mine, *places; // [size] each: arguments of Alltoallv
};

static struct mpi_comm *mpi_comm_of(struct comm *c)
{
    return (struct mpi_comm *)c;
}

static enum status mpi_check(const char *call, int code)
{
    if (code == MPI_SUCCESS) return STATUS_OK;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(code, text, &length);
    return status_fail(STATUS_UNAVAILABLE, "%s: %s", call, text);
}

// Calls an MPI function. If it fails, the enclosing function returns a status with MPI's text. MPI may allocate memory,
// even in the token loop.
#define TRY_MPI(name, ...)                                                                                             \
    do {                                                                                                               \
        int suspended = no_alloc_suspend();                                                                            \
        enum status mpi_status = mpi_check(#name, name(__VA_ARGS__));                                                  \
        no_alloc_resume(suspended);                                                                                    \
        TRY(mpi_status);                                                                                               \
    } while (0)

// Like TRY_MPI, but for a function that waits for other ranks.
#define WAIT_MPI(m, name, ...)                                                                                         \
    do {                                                                                                               \
        (m)->base.waits = true;                                                                                        \
        TRY_MPI(name, __VA_ARGS__);                                                                                    \
        (m)->base.waits = false;                                                                                       \
    } while (0)

static enum status mpi_check_count(size_t count)
{
    if (count <= INT_MAX) return STATUS_OK;
    return status_fail(STATUS_INTERNAL, "collective of %zu items: the largest count of MPI is %d", count, INT_MAX);
}

static float *mpi_scratch(struct mpi_comm *m, size_t floats)
{
    if (floats > m->scratch_floats) {
        m->scratch = mem_resize(m->scratch, floats, sizeof *m->scratch);
        m->scratch_floats = floats;
    }
    return m->scratch;
}

// Computes out[i] = parts[0][i] + parts[1][i] + ... Consecutive parts are `count` floats apart.
static void sum_in_rank_order(float *restrict out, const float *restrict parts, int n_parts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = parts[i] + parts[count + i];
    for (int r = 2; r < n_parts; r++) {
        const float *part = parts + (size_t)r * count;
        for (size_t i = 0; i < count; i++)
            out[i] += part[i];
    }
}

static void round_to_bf16(uint16_t *restrict out, const float *restrict data, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = bf16_from_f32(data[i]);
}

static void sum_bf16_in_rank_order(float *restrict out, const uint16_t *restrict parts, int n_parts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = bf16_to_f32(parts[i]) + bf16_to_f32(parts[count + i]);
    for (int r = 2; r < n_parts; r++) {
        const uint16_t *part = parts + (size_t)r * count;
        for (size_t i = 0; i < count; i++)
            out[i] += bf16_to_f32(part[i]);
    }
}

// Returns scratch for `received` bf16 values. Stores the `count` values of `data` after them, rounded to bf16 for
// sending, and points *own_p at the first stored value.
static uint16_t *mpi_bf16_scratch(struct mpi_comm *m, size_t received, const float *data, size_t count,
                                  uint16_t **own_p)
{
    uint16_t *all = (uint16_t *)mpi_scratch(m, (received + count + 1) / 2);
    *own_p = all + received;
    round_to_bf16(*own_p, data, count);
    return all;
}

static enum status mpi_sum_whole_bf16(struct mpi_comm *m, float *data, int count)
{
    uint16_t *own, *all = mpi_bf16_scratch(m, (size_t)count * (size_t)m->base.size, data, (size_t)count, &own);
    WAIT_MPI(m, MPI_Allgather, own, count, MPI_UINT16_T, all, count, MPI_UINT16_T, m->world);
    sum_bf16_in_rank_order(data, all, m->base.size, (size_t)count);
    return STATUS_OK;
}

static enum status mpi_sum_whole(struct mpi_comm *m, float *data, int count)
{
    float *all = mpi_scratch(m, (size_t)count * (size_t)m->base.size);
    WAIT_MPI(m, MPI_Allgather, data, count, MPI_FLOAT, all, count, MPI_FLOAT, m->world);
    sum_in_rank_order(data, all, m->base.size, (size_t)count);
    return STATUS_OK;
}

// Rank r sums slice r of all ranks, then every rank gathers the sums. So each value is sent twice instead of `size`
// times.
static enum status mpi_sum_slices(struct mpi_comm *m, float *data, int count)
{
    int size = m->base.size;
    for (int r = 0; r < size; r++) {
        m->starts[r] = (int)((int64_t)count * r / size);
        m->counts[r] = (int)((int64_t)count * (r + 1) / size) - m->starts[r];
    }
    int slice = m->counts[m->base.rank];
    for (int r = 0; r < size; r++) {
        m->mine[r] = slice;
        m->places[r] = slice * r;
    }
    float *sum = data + m->starts[m->base.rank];
    if (m->bf16) {
        uint16_t *own, *all = mpi_bf16_scratch(m, (size_t)slice * (size_t)size, data, (size_t)count, &own);
        WAIT_MPI(m, MPI_Alltoallv, own, m->counts, m->starts, MPI_UINT16_T, all, m->mine, m->places, MPI_UINT16_T,
                 m->world);
        sum_bf16_in_rank_order(sum, all, size, (size_t)slice);
    } else {
        float *all = mpi_scratch(m, (size_t)slice * (size_t)size);
        WAIT_MPI(m, MPI_Alltoallv, data, m->counts, m->starts, MPI_FLOAT, all, m->mine, m->places, MPI_FLOAT, m->world);
        sum_in_rank_order(sum, all, size, (size_t)slice);
    }
    WAIT_MPI(m, MPI_Allgatherv, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, m->counts, m->starts, MPI_FLOAT, m->world);
    return STATUS_OK;
}

static enum status mpi_sum_piece(struct mpi_comm *m, float *data, int count)
{
    if (m->base.size > 2 && count > GATHER_WHOLE_MAX) return mpi_sum_slices(m, data, count);
    return m->bf16 ? mpi_sum_whole_bf16(m, data, count) : mpi_sum_whole(m, data, count);
}

// Sums in pieces, so that a piece fits MPI's largest count and the scratch memory is bounded.
static enum status mpi_all_reduce_sum(struct comm *c, float *data, size_t count)
{
    if (c->size == 1) return STATUS_OK;
    for (size_t at = 0; at < count; at += SUM_PIECE_MAX)
        TRY(mpi_sum_piece(mpi_comm_of(c), data + at, (int)(count - at < SUM_PIECE_MAX ? count - at : SUM_PIECE_MAX)));
    return STATUS_OK;
}

static enum status mpi_all_reduce_max(struct comm *c, float *data, size_t count)
{
    enum status status = mpi_check_count(count);
    if (status != STATUS_OK || count == 0) return status;
    WAIT_MPI(mpi_comm_of(c), MPI_Allreduce, MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_MAX, mpi_comm_of(c)->world);
    return STATUS_OK;
}

static enum status mpi_gather(struct comm *c, const float *data, size_t count, float *out)
{
    enum status status = mpi_check_count(count * (size_t)c->size);
    if (status != STATUS_OK || count == 0) return status;
    bool in_place = c->rank == 0 && data == out; // MPI requires that overlapping buffers are declared
    WAIT_MPI(mpi_comm_of(c), MPI_Gather, in_place ? MPI_IN_PLACE : data, (int)count, MPI_FLOAT, out, (int)count,
             MPI_FLOAT, 0, mpi_comm_of(c)->world);
    return STATUS_OK;
}

static enum status mpi_broadcast(struct comm *c, void *bytes, size_t size_bytes)
{
    if (size_bytes > INT_MAX) {
        return status_fail(STATUS_INTERNAL, "broadcast of %zu bytes: the largest count of MPI is %d", size_bytes,
                           INT_MAX);
    }
    if (size_bytes == 0) return STATUS_OK;
    WAIT_MPI(mpi_comm_of(c), MPI_Bcast, bytes, (int)size_bytes, MPI_BYTE, 0, mpi_comm_of(c)->world);
    return STATUS_OK;
}

// Reserves scratch for sums of `count` floats. With two ranks, or few floats, the scratch receives the whole buffer of
// every rank. Otherwise it receives one slice of every rank, which is one buffer in total. With bf16, the scratch also
// contains this rank's rounded values, but each value takes half the bytes.
static void mpi_reserve(struct comm *c, size_t count)
{
    size_t piece = count < SUM_PIECE_MAX ? count : SUM_PIECE_MAX;
    mpi_scratch(mpi_comm_of(c), 2 * piece + (size_t)GATHER_WHOLE_MAX * (size_t)c->size);
}

static enum status mpi_send(struct comm *c, int rank, const float *data, size_t count)
{
    TRY(mpi_check_count(count));
    WAIT_MPI(mpi_comm_of(c), MPI_Send, data, (int)count, MPI_FLOAT, rank, 0, mpi_comm_of(c)->world);
    return STATUS_OK;
}

static enum status mpi_receive(struct comm *c, int rank, float *data, size_t count)
{
    TRY(mpi_check_count(count));
    WAIT_MPI(mpi_comm_of(c), MPI_Recv, data, (int)count, MPI_FLOAT, rank, 0, mpi_comm_of(c)->world, MPI_STATUS_IGNORE);
    return STATUS_OK;
}

static enum status mpi_split(struct comm *c, int n_parts);

static void mpi_close(struct comm *c)
{
    struct mpi_comm *m = mpi_comm_of(c);
    struct comm *part = c->part;
    if (part) part->ops->close(part);
    MPI_Comm_free(&m->world);
    free(m->scratch);
    free(m->counts);
    free(m);
}

static const struct comm_ops mpi_ops = {.all_reduce_sum = mpi_all_reduce_sum,
                                        .all_reduce_max = mpi_all_reduce_max,
                                        .gather = mpi_gather,
                                        .broadcast = mpi_broadcast,
                                        .close = mpi_close,
                                        .reserve = mpi_reserve,
                                        .split = mpi_split,
                                        .send = mpi_send,
                                        .receive = mpi_receive};

// Makes a comm of the ranks of `world`, which it owns.
static struct comm *comm_create(MPI_Comm world)
{
    MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
    struct mpi_comm *m = mem_alloc(sizeof *m);
    m->world = world;
    m->base.ops = &mpi_ops;
    MPI_Comm_rank(world, &m->base.rank);
    MPI_Comm_size(world, &m->base.size);
    size_t size = (size_t)m->base.size;
    m->counts = mem_alloc_array(4 * size, sizeof *m->counts);
    m->starts = m->counts + size;
    m->mine = m->counts + 2 * size;
    m->places = m->counts + 3 * size;
    return &m->base;
}

enum status comm_open_mpi(struct comm **comm_p)
{
    MPI_Comm world;
    TRY_MPI(MPI_Comm_dup, MPI_COMM_WORLD, &world);
    *comm_p = comm_create(world);
    return STATUS_OK;
}

bool comm_mpi_on_one_host(struct comm *c)
{
    MPI_Comm host;
    if (MPI_Comm_split_type(mpi_comm_of(c)->world, MPI_COMM_TYPE_SHARED, c->rank, MPI_INFO_NULL, &host) !=
        MPI_SUCCESS) {
        return false;
    }
    int size;
    MPI_Comm_size(host, &size);
    MPI_Comm_free(&host);
    return size == c->size;
}

bool comm_mpi_set_allreduce_bf16(struct comm *c)
{
    if (c->ops != &mpi_ops) return false;
    mpi_comm_of(c)->bf16 = true;
    return true;
}

struct comm *comm_mpi_to_shm(struct comm *mpi)
{
    struct comm *shm;
    if (comm_open_shm(mpi, &shm) == STATUS_OK) {
        mpi->ops->close(mpi);
        return shm;
    }
    if (status_message()[0]) // this rank knows the cause
        log_event(LOG_WARN, "shared_memory_unavailable", LOG_FIELD("instead", "mpi"), LOG_REASON);
    return mpi;
}

static enum status mpi_split(struct comm *c, int n_parts)
{
    const int size = c->size / n_parts;
    struct comm *part;
    if (size == 1) {
        TRY(comm_open_self(&part));
    } else {
        MPI_Comm world;
        TRY_MPI(MPI_Comm_split, mpi_comm_of(c)->world, c->rank / size, c->rank, &world);
        part = comm_create(world);
        mpi_comm_of(part)->bf16 = mpi_comm_of(c)->bf16;
        if (comm_mpi_on_one_host(part)) part = comm_mpi_to_shm(part);
    }
    c->part = part;
    return STATUS_OK;
}
