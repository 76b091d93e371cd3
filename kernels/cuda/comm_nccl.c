// SPDX-License-Identifier: Apache-2.0
// Collectives between GPUs over NCCL, one rank a GPU, in the backend's stream: they are ordered with its steps without
// the host, and are captured with them where a pass is kept. Sums of half a pass are in a stream beside (halves.c), all
// sums in one order nevertheless, as NCCL wants it. NCCL's identifier goes to the ranks over the group's comm
// on host memory, which also carries what is broadcast.
//
// Sums are in NCCL's order, not the ranks': it depends on the size of the group and of the message and on how the GPUs
// are connected, and stays the same from run to run. So an element may round otherwise in a batch of another size.
//
// NCCL runs without blocking the host: every wait here ends, by a result, by an error that NCCL reports for this rank
// (a peer that died, a link that is down), or after a limit. Then the communicator is aborted, which also ends its
// kernels on the device, and the rank's failure ends the group. Whom it waited for is the engine's to find out.
#include <nccl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/no_alloc.h"
#include "kernels/comm.h"
#include "kernels/cuda/cuda.h"

// Connecting 16 GPUs of two hosts takes seconds. The limit of a step is the host comm's.
enum { CONNECT_LIMIT_MS = 300000, CLOSE_LIMIT_MS = 100000 };

struct nccl_comm {
    struct comm base;
    struct comm *host; // borrowed
    struct cuda *cuda;
    ncclComm_t nccl; // NULL once aborted
};

static struct nccl_comm *of(struct comm *c)
{
    return (struct nccl_comm *)c;
}

static enum status give_up(struct nccl_comm *n, enum status status)
{
    if (n->nccl) ncclCommAbort(n->nccl);
    n->nccl = NULL;
    return status;
}

static enum status failed(struct nccl_comm *n, ncclResult_t result, const char *what)
{
    const char *detail = n->nccl ? ncclGetLastError(n->nccl) : "";
    enum status status = status_fail(STATUS_UNAVAILABLE, "%s: NCCL: %s%s%s%s", what, ncclGetErrorString(result),
                                     *detail ? " (" : "", detail, *detail ? ")" : "");
    n->host->waits = result == ncclRemoteError;
    return give_up(n, status);
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

static bool over(int64_t from_us, int limit_ms) // 0: no limit
{
    return limit_ms && clock_now_us() - from_us > (int64_t)limit_ms * 1000;
}

// What a call that does not block came to.
static enum status settle(struct nccl_comm *n, ncclResult_t result, int limit_ms, const char *what)
{
    int64_t from_us = clock_now_us();
    while (result == ncclInProgress) {
        n->host->waits = true;
        if (over(from_us, limit_ms))
            return give_up(n, status_fail(STATUS_UNAVAILABLE,
                                          "%s: not done in %g s by all ranks (NCCL_DEBUG=INFO tells more)", what,
                                          limit_ms / 1000.0));
        nap();
        ncclResult_t asked = ncclCommGetAsyncError(n->nccl, &result);
        if (asked != ncclSuccess) result = asked;
    }
    if (result != ncclSuccess) return failed(n, result, what);
    n->host->waits = false;
    return STATUS_OK;
}

static enum status lost(void)
{
    return status_fail(STATUS_UNAVAILABLE, "the GPUs of the group are not connected any more");
}

// NCCL allocates as it sees fit, in the token loop as elsewhere.
#define CALL(n, what, call)                                                                                            \
    do {                                                                                                               \
        if (!(n)->nccl) return lost();                                                                                 \
        int suspended = no_alloc_suspend();                                                                            \
        enum status call_status = settle((n), (call), (n)->host->limit_ms, what);                                      \
        no_alloc_resume(suspended);                                                                                    \
        if (call_status != STATUS_OK) return call_status;                                                              \
    } while (0)

static enum status all_reduce(struct comm *c, float *data, size_t count, ncclRedOp_t operation, cudaStream_t stream,
                              const char *what)
{
    struct nccl_comm *n = of(c);
    if (count == 0) return STATUS_OK;
    CALL(n, what, ncclAllReduce(data, data, count, ncclFloat, operation, n->nccl, stream));
    return STATUS_OK;
}

static enum status all_reduce_sum(struct comm *c, float *data, size_t count)
{
    cudaStream_t stream;
    enum status status = halves_sum_begin(of(c)->cuda, &stream);
    if (status == STATUS_OK) status = all_reduce(c, data, count, ncclSum, stream, "all-reduce of sums");
    return status == STATUS_OK ? halves_sum_end(of(c)->cuda) : status; // the call has settled: it is in the stream
}

static enum status all_reduce_max(struct comm *c, float *data, size_t count)
{
    return all_reduce(c, data, count, ncclMax, of(c)->cuda->stream, "all-reduce of maxima");
}

// By sends and receives: ncclGather is not in versions before 2.28.
static ncclResult_t gather_calls(struct nccl_comm *n, const float *data, size_t count, float *out)
{
    if (n->base.rank != 0) return ncclSend(data, count, ncclFloat, 0, n->nccl, n->cuda->stream);
    ncclResult_t result = ncclGroupStart();
    for (int r = 1; r < n->base.size && result == ncclSuccess; r++)
        result = ncclRecv(out + (size_t)r * count, count, ncclFloat, r, n->nccl, n->cuda->stream);
    ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
}

static enum status gather(struct comm *c, const float *data, size_t count, float *out)
{
    struct nccl_comm *n = of(c);
    if (count == 0) return STATUS_OK;
    CALL(n, "gather", gather_calls(n, data, count, out));
    if (c->rank != 0 || data == out) return STATUS_OK;
    cudaError_t error = cudaMemcpyAsync(out, data, count * sizeof *out, cudaMemcpyDeviceToDevice, n->cuda->stream);
    return cuda_status(error, "gather");
}

static enum status broadcast(struct comm *c, void *bytes, size_t size_bytes)
{
    return of(c)->host->ops->broadcast(of(c)->host, bytes, size_bytes);
}

// The wait of a pass, see cuda.h. The stream waits for the one beside it, so that both are in hand here.
static enum status wait_for_stream(struct cuda *cuda)
{
    struct nccl_comm *n = of(cuda->comm);
    int64_t from_us = clock_now_us(), looked_us = from_us;
    cudaError_t error;
    n->host->waits = true;
    while ((error = cudaStreamQuery(cuda->stream)) == cudaErrorNotReady) {
        int64_t now_us = clock_now_us();
        if (now_us - looked_us < 1000) continue; // asking the device alone is what finds the end soon
        looked_us = now_us;
        ncclResult_t result = ncclSuccess;
        if (!n->nccl) return lost();
        ncclResult_t asked = ncclCommGetAsyncError(n->nccl, &result);
        if (asked != ncclSuccess) result = asked;
        if (result != ncclSuccess && result != ncclInProgress) return failed(n, result, "a rank failed in this step");
        if (over(from_us, n->host->limit_ms))
            return give_up(
                n, status_fail(STATUS_UNAVAILABLE, "a step waits for its GPU since %g s", n->host->limit_ms / 1000.0));
    }
    n->host->waits = false;
    return cuda_status(error, "CUDA: a step failed");
}

static void close_nccl(struct comm *c)
{
    struct nccl_comm *n = of(c);
    n->cuda->comm = NULL;
    n->cuda->wait = NULL;
    if (n->nccl) {
        enum status status = settle(n, ncclCommFinalize(n->nccl), CLOSE_LIMIT_MS, "closing");
        if (status == STATUS_OK) ncclCommDestroy(n->nccl);
    }
    free(n);
}

static const struct comm_ops nccl_ops = {all_reduce_sum, all_reduce_max, gather, broadcast, close_nccl, NULL};

// Rank 0 makes the identifier, all get it, and whether it could be made.
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
        return status_fail(STATUS_UNAVAILABLE, "NCCL does not start: %s (NCCL_DEBUG=INFO tells more)",
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
    status = settle(n, result, CONNECT_LIMIT_MS, "connecting the GPUs");
    if (status != STATUS_OK) {
        free(n);
        return status;
    }
    int version = 0;
    ncclGetVersion(&version);
    if (host->rank == 0)
        log_info("comm_open collectives=nccl version=%d.%d.%d ranks=%d ms=%.0f", version / 10000, version / 100 % 100,
                 version % 100, host->size, (double)(clock_now_us() - from_us) / 1000);
    cuda->comm = &n->base;
    cuda->wait = wait_for_stream;
    *comm_p = &n->base;
    return STATUS_OK;
}
