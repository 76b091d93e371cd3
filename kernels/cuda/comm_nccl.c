// SPDX-License-Identifier: Apache-2.0
// Collectives between GPUs over NCCL, one rank per GPU. They run in the backend's stream, in order with its steps and
// without the host, and are captured with them. The sums of micro-batches run in a second stream (overlap.c), still in
// one order on all ranks, as NCCL requires. The group's comm on host memory (the "host comm") distributes NCCL's
// identifier and carries broadcasts.
//
// Sums are in NCCL's order, not in rank order. The order depends on the sizes of the group and of the message, and on
// the links between the GPUs. It is the same in every run, but an element may round differently in a batch of another
// size. Partial sums (sum_ranks) are added in bf16, in a window if NCCL has windows (comm_memory.c). Rings round to
// bf16 after every rank, but kernels for windows round only once.
//
// The communicator blocks the host in its calls, because a non-blocking communicator starts a thread for every call.
// Opening runs a collective of every kind that passes use. So a call in a pass connects nothing and only launches
// kernels.
//
// A separate thread ("the thread") does everything that may hang: connecting, watching the steps that the pass thread
// waits for, and closing. When NCCL reports an error or a wait reaches its limit, the thread aborts the communicator.
// The abort ends NCCL's kernels on the device, so the wait returns and the pass fails with the reason. The engine finds
// out which rank failed. NCCL does not free a communicator while a graph exists that captured one of its collectives.
// So the backend destroys its graphs before it closes the comm, and after a failure.
//
// A launch blocks while the device's queue is full (about 1,024 launches). While a launch by NCCL blocks, the comm is
// locked and cannot be aborted. So at most nccl_sums_in_flight sums are issued ahead of the device. The wait for the
// oldest of these sums has a limit, which detects a device that hangs.
//
// NCCL registers the buffers of captured collectives among the ranks unless NCCL_GRAPH_REGISTER is 0. A rank that fails
// to capture a pass runs it eagerly, with buffers that are not registered. NCCL does not define what happens if only
// some ranks have registered buffers. So the variable is set to 0, unless the user has set it. Windows are registered
// by all ranks.
//
// While the thread connects, it polls the device. If the pass thread gives up, the thread aborts the communicator
// before any memory is freed: freeing waits for NCCL's kernels, which may never end without the abort.
#include <assert.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/comm.h"
#include "kernels/cuda/comm_memory.h"
#include "kernels/cuda/cuda.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/monotonic_cond.h"
#include "lib/base/no_alloc.h"

// Connecting 16 GPUs of two hosts takes seconds. Waits for steps have the limit of the host comm.
enum { CLOSE_LIMIT_MS = 100000, ABORT_LIMIT_MS = 10000, POLL_MS = 100, CONNECT_POLL_MS = 2 };
enum { SUMS_IN_FLIGHT_MAX = 64 };
int nccl_connect_limit_ms = 300000, nccl_sums_in_flight = SUMS_IN_FLIGHT_MAX; // tests lower them

// Sums of more floats than this use the algorithm of sums of this size.
static const double LARGEST_SUM_FLOATS = 16 << 20;

#define CONNECTING_GPUS "connecting the GPUs"

enum state { CONNECTING, OPEN, FAILED, CLOSING, CLOSED }; // in this order

struct nccl_comm {
    struct comm base;
    struct comm *host; // borrowed
    struct cuda *cuda; // borrowed; used only by the pass thread
    int device;
    ncclUniqueId id;
    size_t largest_sum; // in floats
    // Memory for partial sums ([n_partial] bf16), and its window; NULL if there is none. Only the thread uses the
    // window.
    void *partial, *window;
    size_t n_partial;
    // Tensor that owns `partial` until the comm is abandoned; used by the pass thread.
    struct tensor *partial_of;
    int max_blocks; // limit of blocks of a collective; 0: NCCL decides
    // One event for each of the latest sums, recorded after it; used by the pass thread.
    cudaEvent_t summed[SUMS_IN_FLIGHT_MAX];
    int n_sums; // sums issued so far, modulo nccl_sums_in_flight
    pthread_t thread;
    // The pass thread's current wait: the time at which it exceeds its limit, and the limit. The time is 0 if there is
    // no wait with a limit.
    atomic_int_least64_t deadline_us;
    atomic_int limit_ms;

    pthread_mutex_t lock; // guards the fields below; held during every call of the pass thread
    pthread_cond_t changed;
    enum state state;
    // Used by the pass thread in the state OPEN, else by the thread; NULL if it does not exist yet or was aborted.
    ncclComm_t nccl;
    bool unwanted;  // in the state CONNECTING: the pass thread has given up, so the thread must abort
    bool abandoned; // the pass thread no longer waits for the thread, so the thread frees the struct and `partial`
    bool remote;    // in the state FAILED: another rank caused the failure
    char reason[320];
};

static struct nccl_comm *nccl_of(struct comm *c)
{
    return (struct nccl_comm *)c;
}

static void nccl_set_state(struct nccl_comm *n, enum state state)
{
    n->state = state;
    pthread_cond_broadcast(&n->changed);
}

static void nccl_free(struct nccl_comm *n)
{
    pthread_cond_destroy(&n->changed);
    pthread_mutex_destroy(&n->lock);
    free(n);
}

// ---- failures -------------------------------------------------------------------------------------------------------

// Converts a result to a status. Also records if another rank failed.
static enum status nccl_status(struct nccl_comm *n, ncclComm_t nccl, ncclResult_t result, const char *what)
{
    if (result == ncclSuccess) return STATUS_OK;
    const char *detail = nccl ? ncclGetLastError(nccl) : "";
    n->remote = result == ncclRemoteError;
    return status_fail(STATUS_UNAVAILABLE, "%s: NCCL: %s%s%s%s", what, ncclGetErrorString(result), *detail ? " (" : "",
                       detail, *detail ? ")" : "");
}

// Fails the comm with the calling thread's status_message(). From now on the pass thread makes no calls, and the thread
// aborts the communicator. The caller holds the lock.
static void nccl_fail(struct nccl_comm *n)
{
    snprintf(n->reason, sizeof n->reason, "%s", status_message());
    nccl_set_state(n, FAILED);
}

// Returns the status of a comm that is not open. The caller holds the lock.
static enum status nccl_failure(struct nccl_comm *n)
{
    n->host->waits = n->remote;
    return status_fail(STATUS_UNAVAILABLE, "%s", n->reason);
}

// ---- the thread -----------------------------------------------------------------------------------------------------

// Gathers by sends and receives, since ncclGather exists only from version 2.28 on.
static ncclResult_t gather_calls(const struct nccl_comm *n, ncclComm_t nccl, const float *data, size_t count,
                                 float *out, cudaStream_t stream)
{
    if (n->base.rank != 0) return ncclSend(data, count, ncclFloat, 0, nccl, stream);
    ncclResult_t result = ncclGroupStart();
    for (int r = 1; r < n->base.size && result == ncclSuccess; r++)
        result = ncclRecv(out + (size_t)r * count, count, ncclFloat, r, nccl, stream);
    ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
}

// Runs a sum of every size class once. NCCL selects an algorithm by the size of a sum. At the first use of an
// algorithm, it connects the ranks and loads kernels.
static ncclResult_t every_size_call(ncclComm_t nccl, void *data, size_t largest, ncclDataType_t type,
                                    cudaStream_t stream)
{
    ncclResult_t result = ncclSuccess;
    for (size_t count = 1; count < 2 * largest && result == ncclSuccess; count *= 2)
        result = ncclAllReduce(data, data, count < largest ? count : largest, type, ncclSum, nccl, stream);
    return result;
}

static ncclResult_t every_kind_call(const struct nccl_comm *n, ncclComm_t nccl, float *data, cudaStream_t stream)
{
    ncclResult_t result = every_size_call(nccl, data, n->largest_sum, ncclFloat, stream);
    if (result == ncclSuccess && n->partial) // the values are zeros
        result = every_size_call(nccl, n->partial, n->n_partial, ncclBfloat16, stream);
    if (result == ncclSuccess) result = ncclAllReduce(data, data, 1, ncclFloat, ncclMax, nccl, stream);
    return result == ncclSuccess ? gather_calls(n, nccl, data, 1, data, stream) : result;
}

// Buffer and stream of the first collectives. If the comm fails to open, they are freed after its abort, because
// freeing waits for the device.

struct first_run {
    float *data;
    cudaStream_t stream;
};

static void first_run_free(struct first_run *run)
{
    cudaFree(run->data);
    if (run->stream) cudaStreamDestroy(run->stream);
}

static bool is_unwanted(struct nccl_comm *n)
{
    pthread_mutex_lock(&n->lock);
    const bool unwanted = n->unwanted;
    pthread_mutex_unlock(&n->lock);
    return unwanted;
}

// Waits until the stream has run, or until the pass thread gives up.
static enum status first_run_await(struct nccl_comm *n, cudaStream_t stream)
{
    cudaError_t error;
    while ((error = cudaStreamQuery(stream)) == cudaErrorNotReady) {
        if (is_unwanted(n)) return status_fail(STATUS_UNAVAILABLE, CONNECTING_GPUS ": the first sums have not ended");
        usleep(CONNECT_POLL_MS * 1000);
    }
    return cuda_status(error, CONNECTING_GPUS);
}

static enum status every_kind_run(struct nccl_comm *n, ncclComm_t nccl, struct first_run *run)
{
    const size_t count = n->largest_sum > (size_t)n->base.size ? n->largest_sum : (size_t)n->base.size;
    cudaError_t error = cudaStreamCreateWithFlags(&run->stream, cudaStreamNonBlocking);
    if (error == cudaSuccess) error = cudaMalloc((void **)&run->data, count * sizeof *run->data);
    if (error == cudaSuccess) error = cudaMemsetAsync(run->data, 0, count * sizeof *run->data, run->stream);
    TRY(cuda_status(error, CONNECTING_GPUS));
    TRY(nccl_status(n, nccl, every_kind_call(n, nccl, run->data, run->stream), CONNECTING_GPUS));
    return first_run_await(n, run->stream);
}

// Gives the communicator, or NULL, to the pass thread.
static void thread_set_nccl(struct nccl_comm *n, ncclComm_t nccl)
{
    pthread_mutex_lock(&n->lock);
    n->nccl = nccl;
    pthread_mutex_unlock(&n->lock);
}

static enum status thread_open(struct nccl_comm *n, struct first_run *run)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    if (n->max_blocks) config.maxCTAs = n->max_blocks;
    ncclComm_t nccl;
    TRY(cuda_status(cudaSetDevice(n->device), CONNECTING_GPUS));
    TRY(nccl_status(n, NULL, ncclCommInitRankConfig(&nccl, n->base.size, n->id, n->base.rank, &config),
                    CONNECTING_GPUS));
    thread_set_nccl(n, nccl);
    if (n->partial)
        TRY(nccl_status(n, nccl, comm_memory_register(nccl, n->partial, n->n_partial * sizeof(uint16_t), &n->window),
                        "registering the memory of partial sums (NCCL_WIN_ENABLE=0 does without)"));
    return every_kind_run(n, nccl, run);
}

static void thread_connect(struct nccl_comm *n)
{
    struct first_run run = {NULL, NULL};
    const enum status status = thread_open(n, &run);
    if (status != STATUS_OK && n->nccl) { // without a communicator nothing runs on the device
        ncclCommAbort(n->nccl);
        thread_set_nccl(n, NULL);
    }
    first_run_free(&run);
    pthread_mutex_lock(&n->lock);
    if (status != STATUS_OK)
        nccl_fail(n);
    else
        nccl_set_state(n, n->abandoned || n->unwanted ? CLOSING : OPEN);
    pthread_mutex_unlock(&n->lock);
}

static void watch_once(struct nccl_comm *n)
{
    ncclResult_t result = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(n->nccl, &result);
    if (asked != ncclSuccess) result = asked;
    const int64_t deadline_us = n->deadline_us;
    if (result != ncclSuccess && result != ncclInProgress) {
        nccl_status(n, n->nccl, result, "a rank failed in this step");
        nccl_fail(n);
    } else if (deadline_us && clock_now_us() > deadline_us) {
        status_fail(STATUS_UNAVAILABLE, "a step has not ended on the GPU in %g s", n->limit_ms / 1000.0);
        n->remote = true;
        nccl_fail(n);
    }
}

// Watches the comm. Returns when the comm fails or is to be closed.
static void thread_watch(struct nccl_comm *n)
{
    pthread_mutex_lock(&n->lock);
    while (n->state == OPEN) {
        watch_once(n);
        if (n->state == OPEN) monotonic_cond_wait(&n->changed, &n->lock, clock_now_us() + POLL_MS * 1000);
    }
    pthread_mutex_unlock(&n->lock);
}

static void thread_close(struct nccl_comm *n)
{
    const bool failed = n->state == FAILED;
    if (failed && n->nccl) ncclCommAbort(n->nccl);
    if (!failed) comm_memory_deregister(n->nccl, n->window);
    if (!failed && ncclCommFinalize(n->nccl) == ncclSuccess) ncclCommDestroy(n->nccl);
}

static void *nccl_thread(void *argument)
{
    struct nccl_comm *n = argument;
    thread_connect(n);
    thread_watch(n);
    thread_close(n);
    pthread_mutex_lock(&n->lock);
    nccl_set_state(n, CLOSED);
    const bool abandoned = n->abandoned;
    pthread_mutex_unlock(&n->lock);
    if (abandoned) {
        comm_memory_free(n->partial);
        nccl_free(n);
    }
    return NULL;
}

// Waits until the thread has reached `state`. Returns false after the limit. The caller holds the lock.
static bool thread_await(struct nccl_comm *n, enum state state, int limit_ms)
{
    const int64_t until_us = clock_now_us() + (int64_t)limit_ms * 1000;
    while (n->state < state && clock_now_us() < until_us)
        monotonic_cond_wait(&n->changed, &n->lock, until_us);
    return n->state >= state;
}

// Leaves the comm to its thread, which frees it. The caller holds the lock, which this function releases.
static void thread_abandon(struct nccl_comm *n)
{
    n->abandoned = true;
    if (n->partial_of) n->partial_of->data = NULL; // the thread may be using it
    pthread_detach(n->thread);
    pthread_mutex_unlock(&n->lock);
}

// ---- calls of the pass thread ---------------------------------------------------------------------------------------

// Calls NCCL, which may allocate even in the token loop. A call that fails during a capture has issued nothing: it
// fails the capture, and the pass then runs eagerly (graphs.c).
#define CALL(n, what, call)                                                                                            \
    do {                                                                                                               \
        pthread_mutex_lock(&(n)->lock);                                                                                \
        int suspended = no_alloc_suspend();                                                                            \
        ncclResult_t result = (n)->state == OPEN ? (call) : ncclSuccess;                                               \
        no_alloc_resume(suspended);                                                                                    \
        enum status call_status = nccl_status((n), (n)->nccl, result, what);                                           \
        if (call_status != STATUS_OK && !(n)->cuda->capturing) nccl_fail(n);                                           \
        if ((n)->state != OPEN) call_status = nccl_failure(n);                                                         \
        pthread_mutex_unlock(&(n)->lock);                                                                              \
        if (call_status != STATUS_OK) return call_status;                                                              \
    } while (0)

static enum status nccl_all_reduce(struct comm *c, void *data, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                                   cudaStream_t stream, const char *what)
{
    struct nccl_comm *n = nccl_of(c);
    if (count == 0) return STATUS_OK;
    CALL(n, what, ncclAllReduce(data, data, count, type, operation, n->nccl, stream));
    return STATUS_OK;
}

// Waits until the oldest sum in flight has run. Has no effect during a capture, which launches nothing.
static enum status sums_await(struct nccl_comm *n)
{
    if (n->cuda->capturing) return STATUS_OK;
    comm_wait_begin(n->cuda);
    return comm_wait_end(n->cuda, cudaEventSynchronize(n->summed[n->n_sums]), "CUDA: a step failed");
}

static enum status sum_note(struct nccl_comm *n, cudaStream_t stream)
{
    if (n->cuda->capturing) return STATUS_OK;
    const cudaError_t error = cudaEventRecord(n->summed[n->n_sums], stream);
    n->n_sums = (n->n_sums + 1) % nccl_sums_in_flight;
    return cuda_status(error, "all-reduce of sums");
}

static enum status sum_issue(struct comm *c, void *data, size_t count, ncclDataType_t type)
{
    struct nccl_comm *n = nccl_of(c);
    cudaStream_t stream;
    TRY(sums_await(n));
    TRY(overlap_sum_begin(n->cuda, &stream));
    TRY(nccl_all_reduce(c, data, count, type, ncclSum, stream, "all-reduce of sums"));
    TRY(sum_note(n, stream)); // the call has returned, so the sum is in the stream
    return overlap_sum_end(n->cuda);
}

static enum status nccl_all_reduce_sum(struct comm *c, float *data, size_t count)
{
    return sum_issue(c, data, count, ncclFloat);
}

enum status cuda_sum_ranks(struct backend *b, struct tensor *partial, int rows)
{
    struct cuda *cuda = cuda_of(b);
    assert(partial->sums && cuda->on_device.first_row + rows <= partial->max_rows);
    return sum_issue(cuda->comm, cuda_rows(cuda, partial, 0), (size_t)rows * (size_t)partial->stride, ncclBfloat16);
}

static enum status nccl_all_reduce_max(struct comm *c, float *data, size_t count)
{
    return nccl_all_reduce(c, data, count, ncclFloat, ncclMax, nccl_of(c)->cuda->stream, "all-reduce of maxima");
}

static enum status nccl_gather(struct comm *c, const float *data, size_t count, float *out)
{
    struct nccl_comm *n = nccl_of(c);
    if (count == 0) return STATUS_OK;
    CALL(n, "gather", gather_calls(n, n->nccl, data, count, out, n->cuda->stream));
    if (c->rank != 0 || data == out) return STATUS_OK;
    cudaError_t error = cudaMemcpyAsync(out, data, count * sizeof *out, cudaMemcpyDeviceToDevice, n->cuda->stream);
    return cuda_status(error, "gather");
}

static enum status nccl_broadcast(struct comm *c, void *bytes, size_t size_bytes)
{
    return nccl_of(c)->host->ops->broadcast(nccl_of(c)->host, bytes, size_bytes);
}

// ---- waits for the device -------------------------------------------------------------------------------------------

void comm_wait_begin(struct cuda *cuda)
{
    if (!cuda->comm) return;
    struct nccl_comm *n = nccl_of(cuda->comm);
    const int limit_ms = n->host->limit_ms;
    n->host->waits = true;
    n->limit_ms = limit_ms;
    n->deadline_us = limit_ms ? clock_now_us() + (int64_t)limit_ms * 1000 : 0;
}

enum status comm_wait_end(struct cuda *cuda, cudaError_t error, const char *what)
{
    if (!cuda->comm) return cuda_status(error, what);
    struct nccl_comm *n = nccl_of(cuda->comm);
    n->deadline_us = 0;
    pthread_mutex_lock(&n->lock);
    enum status status = n->state == OPEN ? STATUS_OK : nccl_failure(n);
    pthread_mutex_unlock(&n->lock);
    if (status != STATUS_OK) {
        graphs_destroy(cuda->graphs); // so that the abort can end
        return status;
    }
    n->host->waits = false;
    return cuda_status(error, what);
}

enum status cuda_wait(struct cuda *cuda)
{
    comm_wait_begin(cuda);
    return comm_wait_end(cuda, cudaStreamSynchronize(cuda->stream), "CUDA: a step failed");
}

// ---- opening and closing --------------------------------------------------------------------------------------------

static void nccl_close(struct comm *c)
{
    struct nccl_comm *n = nccl_of(c);
    n->cuda->comm = NULL;
    for (int i = 0; i < SUMS_IN_FLIGHT_MAX; i++)
        if (n->summed[i]) cudaEventDestroy(n->summed[i]);
    pthread_mutex_lock(&n->lock);
    if (n->state == OPEN) nccl_set_state(n, CLOSING);
    if (!thread_await(n, CLOSED, CLOSE_LIMIT_MS)) {
        thread_abandon(n);
        log_event(LOG_WARN, "collectives_not_closed", LOG_FIELD("library", "nccl"),
                  LOG_FIELD("limit_ms", (int)CLOSE_LIMIT_MS));
        return;
    }
    pthread_mutex_unlock(&n->lock);
    pthread_join(n->thread, NULL);
    nccl_free(n);
}

static const struct comm_ops nccl_ops = {.all_reduce_sum = nccl_all_reduce_sum,
                                         .all_reduce_max = nccl_all_reduce_max,
                                         .gather = nccl_gather,
                                         .broadcast = nccl_broadcast,
                                         .close = nccl_close};

// Rank 0 creates the identifier and broadcasts it with the result of its creation.
static enum status share_id(struct comm *host, ncclUniqueId *id_p)
{
    struct {
        ncclUniqueId id;
        int32_t result;
    } share;
    memset(&share, 0, sizeof share);
    setenv("NCCL_GRAPH_REGISTER", "0", 0); // NCCL reads it when it captures its first collective
    if (host->rank == 0) share.result = (int32_t)ncclGetUniqueId(&share.id);
    enum status status = host->ops->broadcast(host, &share, sizeof share);
    if (status != STATUS_OK) return status;
    if (share.result != ncclSuccess)
        return status_fail(STATUS_UNAVAILABLE, "NCCL does not start: %s (set NCCL_DEBUG=INFO for details)",
                           ncclGetErrorString((ncclResult_t)share.result));
    *id_p = share.id;
    return STATUS_OK;
}

// Frees a comm whose thread ends. The caller holds the lock.
static void nccl_join_free(struct nccl_comm *n)
{
    pthread_mutex_unlock(&n->lock);
    pthread_join(n->thread, NULL);
    nccl_free(n);
}

// Gives up connecting. If there is a communicator, its kernels may be spinning on the device. So this function waits
// (at most ABORT_LIMIT_MS) until the thread has aborted it, before the caller frees memory. The caller holds the lock,
// which this function releases.
static void connect_give_up(struct nccl_comm *n)
{
    n->unwanted = true;
    if (n->nccl && thread_await(n, CLOSED, ABORT_LIMIT_MS))
        nccl_join_free(n);
    else
        thread_abandon(n);
}

// Starts the thread and waits until it has connected the ranks. On failure nothing remains for the caller to free.
static enum status nccl_connect(struct nccl_comm *n)
{
    struct comm *host = n->host;
    if (pthread_create(&n->thread, NULL, nccl_thread, n) != 0) {
        nccl_free(n);
        return status_fail(STATUS_UNAVAILABLE, CONNECTING_GPUS ": no thread can be created");
    }
    host->waits = true;
    pthread_mutex_lock(&n->lock);
    if (!thread_await(n, OPEN, nccl_connect_limit_ms)) {
        connect_give_up(n);
        return status_fail(STATUS_UNAVAILABLE,
                           CONNECTING_GPUS ": not done by all ranks in %g s (set NCCL_DEBUG=INFO for details)",
                           nccl_connect_limit_ms / 1000.0);
    }
    if (n->state != OPEN) {
        const enum status status = nccl_failure(n);
        nccl_join_free(n);
        return status;
    }
    host->waits = false;
    pthread_mutex_unlock(&n->lock);
    return STATUS_OK;
}

// Returns about the largest number of floats that a pass sums: attention is about as wide on all ranks as the residual.
static size_t largest_sum(const struct backend_shape *shape, int n_ranks)
{
    const double floats = (double)shape->max_rows * shape->n_heads * shape->head_size * n_ranks;
    return (size_t)(floats < LARGEST_SUM_FLOATS ? floats : LARGEST_SUM_FLOATS);
}

// Finds the tensor of partial sums. A model has at most one.
static void find_partial(struct nccl_comm *n)
{
    struct tensor *t = n->cuda->tensors;
    while (t && !t->sums)
        t = t->next;
    if (!t) return;
    n->partial_of = t;
    n->partial = t->data;
    n->n_partial = (size_t)t->max_rows * (size_t)t->stride;
}

static void log_opened(const struct nccl_comm *n, int64_t from_us)
{
    const struct comm *c = &n->base;
    int version = 0;
    ncclGetVersion(&version);
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    if (c->rank == 0)
        log_event(LOG_INFO, "collectives_opened", LOG_FIELD("library", "nccl"), LOG_FIELD("version", text),
                  LOG_FIELD("ranks", c->size), LOG_FIELD("sums", n->partial ? "bf16" : "f32"),
                  LOG_FIELD("window", n->window ? "registered" : "none"), LOG_MS("ms", clock_now_us() - from_us));
}

enum status cuda_comm_open(struct backend *b, struct comm *host, struct comm **comm_p)
{
    struct cuda *cuda = (struct cuda *)b;
    const int64_t from_us = clock_now_us();
    ncclUniqueId id;
    TRY(share_id(host, &id));
    TRY(cuda_wait(cuda)); // the zeros in the memory of partial sums have been written
    struct nccl_comm *n = mem_alloc(sizeof *n);
    *n = (struct nccl_comm){.base = {.rank = host->rank, .size = host->size, .ops = &nccl_ops},
                            .host = host,
                            .cuda = cuda,
                            .device = cuda->device,
                            .id = id,
                            .largest_sum = largest_sum(&cuda->shape, host->size),
                            .max_blocks = overlap_is_possible(&cuda->shape) ? overlap_sum_blocks(cuda) : 0};
    find_partial(n);
    pthread_mutex_init(&n->lock, NULL);
    monotonic_cond_init(&n->changed);
    TRY(nccl_connect(n));
    cuda->comm = &n->base; // from now on the backend closes it
    for (int i = 0; i < nccl_sums_in_flight; i++)
        TRY(cuda_status(cudaEventCreateWithFlags(&n->summed[i], cudaEventDisableTiming), CONNECTING_GPUS));
    log_opened(n, from_us);
    *comm_p = &n->base;
    return STATUS_OK;
}
