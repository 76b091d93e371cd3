// SPDX-License-Identifier: Apache-2.0
// NCCL between ranks that are threads of this process, each with its own stream: all-reduce, send and receive. A
// collective is an operation in the stream of each rank that completes when all ranks have reached it, as on devices.
// Sums are in rank order. Ranks that make different calls end the program, where real ones would hang.
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "tests/cuda_emulator/emulator.h"
#include "tests/cuda_emulator/runtime.h"

namespace
{

struct part {
    bool here;
    const float *from;
    float *to;
    size_t count;
    ncclRedOp_t operation;
};

struct group {
    int size, joined, failed;                 // failed: ranks that have aborted
    uint64_t round;                           // collectives completed
    std::vector<part> parts;                  // of the current collective, by rank
    std::map<std::pair<int, int>, part> sent; // by (from, to), until received
};

std::map<uint64_t, std::shared_ptr<struct group>> groups; // by identifier
uint64_t identifiers;
int failing_rank = -1;
std::atomic<int> hanging_rank{-1};

void group_reduce(struct group *g)
{
    const part &first = g->parts[0];
    std::vector<float> result(first.count);
    for (int r = 0; r < g->size; r++) {
        const part &p = g->parts[(size_t)r];
        if (p.count != first.count || p.operation != first.operation) {
            fprintf(stderr, "nccl emulator: rank 0 reduces %zu floats, rank %d %zu, or by another operation\n",
                    first.count, r, p.count);
            abort();
        }
        for (size_t i = 0; i < first.count; i++)
            result[i] = r == 0                       ? p.from[i]
                        : first.operation == ncclSum ? result[i] + p.from[i]
                        : p.from[i] > result[i]      ? p.from[i]
                                                     : result[i];
    }
    for (part &p : g->parts) {
        memcpy(p.to, result.data(), first.count * sizeof(float));
        p.here = false;
    }
    g->round++;
}

} // namespace

struct ncclComm {
    std::shared_ptr<struct group> in;
    int rank;
    bool aborted;
};

void emulator_fail_rank(int rank)
{
    emulated_call call;
    failing_rank = rank;
}

void emulator_hang_rank(int rank)
{
    hanging_rank = rank;
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclSuccess       ? "no error"
           : result == ncclRemoteError ? "remote process exited or there was a network error"
           : result == ncclInProgress  ? "in progress"
                                       : "an error of the emulated NCCL";
}

const char *ncclGetLastError(ncclComm_t)
{
    return "";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    emulated_call call;
    memset(id, 0, sizeof *id);
    uint64_t number = ++identifiers;
    memcpy(id, &number, sizeof number);
    groups[number] = std::make_shared<struct group>();
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm_p, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    emulated_call call;
    uint64_t number;
    memcpy(&number, &id, sizeof number);
    auto entry = groups.find(number);
    if (entry == groups.end() || rank < 0 || rank >= size || !config || config->blocking != 0)
        return ncclInvalidArgument;
    std::shared_ptr<struct group> g = entry->second;
    g->size = size;
    g->parts.resize((size_t)size);
    *comm_p = new ncclComm{g, rank, false};
    return ++g->joined < size ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result_p)
{
    emulated_call call;
    *result_p = comm->in->failed    ? ncclRemoteError
                : failing_rank >= 0 ? comm->rank == failing_rank ? ncclUnhandledCudaError : ncclRemoteError
                : comm->in->joined < comm->in->size ? ncclInProgress
                                                    : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t)
{
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    emulated_call call;
    delete comm;
    return ncclSuccess;
}

// Pending operations of the rank complete, as aborting ends the real kernels.
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    emulated_call call;
    comm->in->failed++;
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    return ncclSuccess;
}

static ncclResult_t stream_put(cudaStream_t stream, std::function<bool()> run)
{
    return emulated_put_waiting(stream, run) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t comm, cudaStream_t stream)
{
    while (hanging_rank == comm->rank)
        usleep(1000);
    emulated_call call;
    if (type != ncclFloat || (operation != ncclSum && operation != ncclMax)) return ncclInvalidArgument;
    if (!emulated_is_device_memory(from, count * sizeof(float)) ||
        !emulated_is_device_memory(to, count * sizeof(float)))
        return ncclInvalidArgument;
    std::shared_ptr<struct group> g = comm->in;
    size_t rank = (size_t)comm->rank;
    part own = {true, static_cast<const float *>(from), static_cast<float *>(to), count, operation};
    bool entered = false;
    uint64_t round = 0;
    return stream_put(stream, [=]() mutable {
        if (g->failed) return true;
        if (failing_rank >= 0) return false; // the others wait until they abort
        if (!entered) {
            entered = true;
            round = g->round;
            g->parts[rank] = own;
            for (const part &p : g->parts)
                if (!p.here) return false;
            group_reduce(g.get());
        }
        return g->round != round;
    });
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int to, ncclComm_t comm, cudaStream_t stream)
{
    emulated_call call;
    if (type != ncclFloat || to < 0 || to >= comm->in->size) return ncclInvalidArgument;
    if (!emulated_is_device_memory(from, count * sizeof(float))) return ncclInvalidArgument;
    std::shared_ptr<struct group> g = comm->in;
    std::pair<int, int> way(comm->rank, to);
    part own = {true, static_cast<const float *>(from), NULL, count, ncclSum};
    bool entered = false;
    return stream_put(stream, [=]() mutable {
        if (failing_rank >= 0) return g->failed > 0;
        if (!entered) g->sent[way] = own;
        entered = true;
        return g->failed || !g->sent.count(way);
    });
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int from, ncclComm_t comm, cudaStream_t stream)
{
    emulated_call call;
    if (type != ncclFloat || from < 0 || from >= comm->in->size) return ncclInvalidArgument;
    if (!emulated_is_device_memory(to, count * sizeof(float))) return ncclInvalidArgument;
    std::shared_ptr<struct group> g = comm->in;
    std::pair<int, int> way(from, comm->rank);
    return stream_put(stream, [=] {
        auto sent = g->sent.find(way);
        if (g->failed) return true;
        if (failing_rank >= 0 || sent == g->sent.end()) return false;
        if (sent->second.count != count) {
            fprintf(stderr, "nccl emulator: rank %d sends %zu floats, rank %d waits for %zu\n", way.first,
                    sent->second.count, way.second, count);
            abort();
        }
        memcpy(to, sent->second.from, count * sizeof(float));
        g->sent.erase(sent);
        return true;
    });
}
