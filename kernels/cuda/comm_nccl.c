// SPDX-License-Identifier: Apache-2.0
// Collectives between GPUs over NCCL, one rank per GPU. They run in the backend's stream, in order with its steps and
// without the host, and are captured with them. The sums of micro-batches run in a second stream (overlap.c), still in
// one order on all ranks, as NCCL requires. The group's comm on host memory distributes NCCL's identifier and carries
// broadcasts.
//
// Sums are in NCCL's order, not in rank order: it depends on the size of the group and of the message and on the links
// between the GPUs, and is the same in every run. So an element may round differently in a batch of another size.
//
// NCCL runs without blocking the host: every wait here ends with a result, with an error that NCCL reports for this
// rank (a failed peer, a link that is down), or at a limit. Then the communicator is aborted, which also ends its
// kernels on the device, and the failure of the rank ends the group. The engine finds out which rank failed.
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/no_alloc.h"
#include "kernels/comm.h"
#include "kernels/cuda/cuda.h"

// Connecting 16 GPUs of two hosts takes seconds. Steps have the limit of the host comm.
enum { CONNECT_LIMIT_MS = 300000, CLOSE_LIMIT_MS = 100000 };

struct nccl_comm {
    struct comm base;
    struct comm *host; // borrowed
    struct cuda *cuda;
    ncclComm_t nccl; // NULL once aborted
};

static struct nccl_comm *nccl_of(struct comm *c)
{
    return (struct nccl_comm *)c;
}

static enum status nccl_abort(struct nccl_comm *n, enum status status)
{
    if (n->nccl) ncclCommAbort(n->nccl);
    n->nccl = NULL;
    return status;
}

static enum status nccl_fail(struct nccl_comm *n, ncclResult_t result, const char *what)
{
    const char *detail = n->nccl ? ncclGetLastError(n->nccl) : "";
    enum status status = status_fail(STATUS_UNAVAILABLE, "%s: NCCL: %s%s%s%s", what, ncclGetErrorString(result),
                                     *detail ? " (" : "", detail, *detail ? ")" : "");
    n->host->waits = result == ncclRemoteError;
    return nccl_abort(n, status);
}

static void wait_nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

static bool limit_passed(int64_t from_us, int limit_ms) // 0: no limit
{
    return limit_ms && clock_now_us() - from_us > (int64_t)limit_ms * 1000;
}

// Waits for a call that returned at once and returns its status.
static enum status nccl_settle(struct nccl_comm *n, ncclResult_t result, int limit_ms, const char *what)
{
    int64_t from_us = clock_now_us();
    while (result == ncclInProgress) {
        n->host->waits = true;
        if (limit_passed(from_us, limit_ms))
            return nccl_abort(n, status_fail(STATUS_UNAVAILABLE,
                                             "%s: not done by all ranks in %g s (set NCCL_DEBUG=INFO for details)",
                                             what, limit_ms / 1000.0));
        wait_nap();
        ncclResult_t asked = ncclCommGetAsyncError(n->nccl, &result);
        if (asked != ncclSuccess) result = asked;
    }
    if (result != ncclSuccess) return nccl_fail(n, result, what);
    n->host->waits = false;
    return STATUS_OK;
}

static enum status nccl_lost(void)
{
    return status_fail(STATUS_UNAVAILABLE, "the GPUs of the group are no longer connected");
}

// Calls NCCL, which may allocate also in the token loop.
#define CALL(n, what, call)                                                                                            \
    do {                                                                                                               \
        if (!(n)->nccl) return nccl_lost();                                                                            \
        int suspended = no_alloc_suspend();                                                                            \
        enum status call_status = nccl_settle((n), (call), (n)->host->limit_ms, what);                                 \
        no_alloc_resume(suspended);                                                                                    \
        if (call_status != STATUS_OK) return call_status;                                                              \
    } while (0)

static enum status nccl_all_reduce(struct comm *c, float *data, size_t count, ncclRedOp_t operation,
                                   cudaStream_t stream, const char *what)
{
    struct nccl_comm *n = nccl_of(c);
    if (count == 0) return STATUS_OK;
    CALL(n, what, ncclAllReduce(data, data, count, ncclFloat, operation, n->nccl, stream));
    return STATUS_OK;
}

static enum status nccl_all_reduce_sum(struct comm *c, float *data, size_t count)
{
    cudaStream_t stream;
    enum status status = overlap_sum_begin(nccl_of(c)->cuda, &stream);
    if (status == STATUS_OK) status = nccl_all_reduce(c, data, count, ncclSum, stream, "all-reduce of sums");
    if (status != STATUS_OK) return status;
    return overlap_sum_end(nccl_of(c)->cuda); // the call has returned, so the sum is in the stream
}

static enum status nccl_all_reduce_max(struct comm *c, float *data, size_t count)
{
    return nccl_all_reduce(c, data, count, ncclMax, nccl_of(c)->cuda->stream, "all-reduce of maxima");
}

// Sends and receives, since ncclGather exists from version 2.28 on only.
static ncclResult_t gather_calls(struct nccl_comm *n, const float *data, size_t count, float *out)
{
    if (n->base.rank != 0) return ncclSend(data, count, ncclFloat, 0, n->nccl, n->cuda->stream);
    ncclResult_t result = ncclGroupStart();
    for (int r = 1; r < n->base.size && result == ncclSuccess; r++)
        result = ncclRecv(out + (size_t)r * count, count, ncclFloat, r, n->nccl, n->cuda->stream);
    ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
}

static enum status nccl_gather(struct comm *c, const float *data, size_t count, float *out)
{
    struct nccl_comm *n = nccl_of(c);
    if (count == 0) return STATUS_OK;
    CALL(n, "gather", gather_calls(n, data, count, out));
    if (c->rank != 0 || data == out) return STATUS_OK;
    cudaError_t error = cudaMemcpyAsync(out, data, count * sizeof *out, cudaMemcpyDeviceToDevice, n->cuda->stream);
    return cuda_status(error, "gather");
}

static enum status nccl_broadcast(struct comm *c, void *bytes, size_t size_bytes)
{
    return nccl_of(c)->host->ops->broadcast(nccl_of(c)->host, bytes, size_bytes);
}

// cuda->wait. The main stream waits for the stream for reductions, so this covers both.
static enum status wait_for_stream(struct cuda *cuda)
{
    struct nccl_comm *n = nccl_of(cuda->comm);
    int64_t from_us = clock_now_us(), queried_us = from_us;
    cudaError_t error;
    n->host->waits = true;
    while ((error = cudaStreamQuery(cuda->stream)) == cudaErrorNotReady) {
        int64_t now_us = clock_now_us();
        if (now_us - queried_us < 1000) continue; // query NCCL once a millisecond, the device all the time
        queried_us = now_us;
        ncclResult_t result = ncclSuccess;
        if (!n->nccl) return nccl_lost();
        ncclResult_t asked = ncclCommGetAsyncError(n->nccl, &result);
        if (asked != ncclSuccess) result = asked;
        if (result != ncclSuccess && result != ncclInProgress)
            return nccl_fail(n, result, "a rank failed in this step");
        if (limit_passed(from_us, n->host->limit_ms))
            return nccl_abort(n, status_fail(STATUS_UNAVAILABLE, "a step has not ended on the GPU in %g s",
                                             n->host->limit_ms / 1000.0));
    }
    n->host->waits = false;
    return cuda_status(error, "CUDA: a step failed");
}

static void nccl_close(struct comm *c)
{
    struct nccl_comm *n = nccl_of(c);
    n->cuda->comm = NULL;
    n->cuda->wait = NULL;
    if (n->nccl) {
        enum status status = nccl_settle(n, ncclCommFinalize(n->nccl), CLOSE_LIMIT_MS, "closing");
        if (status == STATUS_OK) ncclCommDestroy(n->nccl);
    }
    free(n);
}

static const struct comm_ops nccl_ops = {nccl_all_reduce_sum, nccl_all_reduce_max, nccl_gather,
                                         nccl_broadcast,      nccl_close,          NULL};

// Rank 0 creates the identifier and broadcasts it with the result of its creation.
static enum status share_id(struct comm *host, ncclUniqueId *id_p)
{
    struct {
        ncclUniqueId id;
        int32_t result;
    } share;
    memset(&share, 0, sizeof share);
    if (host->rank == 0) share.result = (int32_t)ncclGetUniqueId(&share.id);
    enum status status = host->ops->broadcast(host, &share, sizeof share);
    if (status != STATUS_OK) return status;
    if (share.result != ncclSuccess)
        return status_fail(STATUS_UNAVAILABLE, "NCCL does not start: %s (set NCCL_DEBUG=INFO for details)",
                           ncclGetErrorString((ncclResult_t)share.result));
    *id_p = share.id;
    return STATUS_OK;
}

enum status cuda_comm_open(struct backend *b, struct comm *host, struct comm **comm_p)
{
    struct cuda *cuda = (struct cuda *)b;
    ncclUniqueId id;
    enum status status = share_id(host, &id);
    if (status != STATUS_OK) return status;
    struct nccl_comm *n = mem_alloc(sizeof *n);
    *n = (struct nccl_comm){
        .base = {.rank = host->rank, .size = host->size, .ops = &nccl_ops}, .host = host, .cuda = cuda};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    int64_t from_us = clock_now_us();
    ncclResult_t result = ncclCommInitRankConfig(&n->nccl, host->size, id, host->rank, &config);
    status = nccl_settle(n, result, CONNECT_LIMIT_MS, "connecting the GPUs");
    if (status != STATUS_OK) {
        free(n);
        return status;
    }
    int version = 0;
    ncclGetVersion(&version);
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    if (host->rank == 0)
        log_event(LOG_INFO, "collectives_opened", LOG_FIELD("library", "nccl"), LOG_FIELD("version", text),
                  LOG_FIELD("ranks", host->size), LOG_MS("ms", clock_now_us() - from_us));
    cuda->comm = &n->base;
    cuda->wait = wait_for_stream;
    *comm_p = &n->base;
    return STATUS_OK;
}
