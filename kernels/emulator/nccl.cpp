// SPDX-License-Identifier: Apache-2.0
// Implements NCCL between ranks that are threads of this process, each with its own stream: all-reduce, send and
// receive. A collective is an operation in the stream of each rank that completes when all ranks have reached it, as on
// devices. Sums are in rank order. Ranks that make different calls end the program, while real ranks would hang.
//
// Sums in bf16 are rounded after every rank, like in a ring, which is the library's least exact algorithm.
//
// A sum ends the program if only some ranks have registered their buffers with a captured graph. The library does not
// define what happens then.
//
// Windows: memory of ncclMemAlloc that all ranks register together. Freeing registered memory, finalising a
// communicator with open windows, and a sum whose ranks use different offsets of their windows end the program.
//
// As in the library, the first call of each kind connects its ranks. It blocks the host until all of them have made the
// call. The calls of a group are issued together. A communicator that does not block the host returns ncclInProgress
// and issues the calls later. Finalising, destroying and aborting wait for the operations in the streams and for every
// graph that has captured one. Aborting ends the operations of this rank alone.
#include <cuda_bf16.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "kernels/emulator/emulator.h"
#include "kernels/emulator/runtime.h"

namespace
{

struct part {
    bool here;
    const void *from;
    void *to;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t operation;
    ptrdiff_t offset; // offset in the rank's window, or -1
    bool registered;  // the call was captured while NCCL_GRAPH_REGISTER was not 0
};

struct group {
    int size, joined;
    uint64_t round;                            // collectives completed
    std::vector<part> parts;                   // of the current collective, by rank
    std::map<std::pair<int, int>, part> sent;  // by (from, to), until received
    std::map<int, std::set<int>> connected_by; // for each kind of connection: ranks that have made a call of that kind
    std::map<int, size_t> registering;         // for each rank that registers a window: its bytes
    int registered;                            // windows that all ranks have registered
};

// State of one rank. Operations in streams and graphs outlive the communicator.
struct rank_state {
    bool aborted;
    int in_streams, in_graphs; // number of operations that have not run; number of operations in graphs
};

// Counts an operation in a stream or graph, for as long as the operation exists.
struct use {
    std::shared_ptr<struct rank_state> of;
    bool captured;

    use(std::shared_ptr<struct rank_state> state, bool in_graph) : of(state), captured(in_graph)
    {
        ++(captured ? of->in_graphs : of->in_streams);
    }
    ~use()
    {
        --(captured ? of->in_graphs : of->in_streams);
    }
    use(const use &) = delete;
};

// A call that has not been issued yet.
struct call {
    ncclComm_t comm;
    cudaStream_t stream;
    std::vector<int> kinds; // kinds of connections that it needs
    int ranks;              // number of ranks that each connection connects
    std::function<bool()> run;
};

std::map<uint64_t, std::shared_ptr<struct group>> groups; // by identifier
uint64_t identifiers;
int failing_rank = -1;
std::atomic<int> hanging_rank{-1};
std::atomic<bool> kernels_spin;
int n_connections, n_issued_later;
thread_local int group_depth;
thread_local std::vector<struct call> group_calls;

// Kinds of connections. Sums in bf16 have the kinds of f32 plus BF16. Kinds from PAIRS on connect one rank to another.
enum { TREE, RING, BF16, PAIRS = 2 * BF16, TREE_BYTES_MAX = 4096 };

size_t type_bytes(ncclDataType_t type)
{
    return type == ncclBfloat16 ? 2 : 4;
}

float part_value(const part &p, size_t i)
{
    if (p.type == ncclFloat) return static_cast<const float *>(p.from)[i];
    return __bfloat162float(static_cast<const __nv_bfloat16 *>(p.from)[i]);
}

void part_store(const part &p, const std::vector<float> &values)
{
    for (size_t i = 0; i < p.count; i++)
        if (p.type == ncclFloat)
            static_cast<float *>(p.to)[i] = values[i];
        else
            static_cast<__nv_bfloat16 *>(p.to)[i] = __float2bfloat16_rn(values[i]);
}

void group_reduce(struct group *g)
{
    const part first = g->parts[0];
    std::vector<float> result(first.count);
    for (int r = 0; r < g->size; r++) {
        const part &p = g->parts[(size_t)r];
        if (p.count != first.count || p.type != first.type || p.operation != first.operation ||
            p.offset != first.offset) {
            fprintf(
                stderr,
                "nccl emulator: rank 0 reduces %zu values, rank %d %zu, or in another type, by another operation or "
                "at another offset of its window\n",
                first.count, r, p.count);
            abort();
        }
        if (p.registered != first.registered) {
            fprintf(stderr,
                    "nccl emulator: rank %d's buffers are registered with a captured graph, rank %d's are not\n",
                    p.registered ? r : 0, p.registered ? 0 : r);
            abort();
        }
        for (size_t i = 0; i < first.count; i++) {
            const float value = part_value(p, i);
            result[i] = r == 0                       ? value
                        : first.operation == ncclSum ? result[i] + value
                        : value > result[i]          ? value
                                                     : result[i];
            if (p.type == ncclBfloat16) result[i] = __bfloat162float(__float2bfloat16_rn(result[i]));
        }
    }
    for (part &p : g->parts) {
        part_store(p, result);
        p.here = false;
    }
    g->round++;
}

// Memory from ncclMemAlloc: its size, and the communicator of its window, or NULL if it has no window.
struct allocation {
    size_t bytes;
    ncclComm_t window_of;
};
std::map<char *, struct allocation> allocations;
int nccl_version = EMULATED_NCCL, windows_kind, sums_in_windows, sums_in_memory;

// Returns the offset of memory in a window of the communicator, or -1 if the memory is in no window.
ptrdiff_t window_offset(ncclComm_t comm, const void *at, size_t bytes)
{
    auto next = allocations.upper_bound(static_cast<char *>(const_cast<void *>(at)));
    if (next == allocations.begin()) return -1;
    auto entry = std::prev(next);
    const size_t offset = (size_t)(static_cast<const char *>(at) - entry->first);
    return entry->second.window_of == comm && offset + bytes <= entry->second.bytes ? (ptrdiff_t)offset : -1;
}

} // namespace

struct ncclComm {
    std::shared_ptr<struct group> in;
    std::shared_ptr<struct rank_state> state;
    int rank;
    bool blocking, finalized;
    bool polled;                    // since `later` was set
    std::vector<struct call> later; // calls that a communicator which does not block has not issued
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

void emulator_spin_nccl(bool on)
{
    kernels_spin = on;
}

int emulator_nccl_connections(void)
{
    emulated_call call;
    return n_connections;
}

static int last_blocks;

int emulator_nccl_blocks(void)
{
    emulated_call call;
    return last_blocks;
}

int emulator_nccl_issued_later(void)
{
    emulated_call call;
    return n_issued_later;
}

void emulator_set_nccl_version(int version)
{
    emulated_call call;
    nccl_version = version;
}

void emulator_set_nccl_windows(int kind)
{
    emulated_call call;
    windows_kind = kind;
}

int emulator_nccl_windows(void)
{
    emulated_call call;
    int n = 0;
    for (const auto &entry : allocations)
        n += entry.second.window_of != NULL;
    return n;
}

int emulator_nccl_sums_in_windows(void)
{
    emulated_call call;
    return sums_in_windows;
}

int emulator_nccl_sums_in_memory(void)
{
    emulated_call call;
    return sums_in_memory;
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = nccl_version;
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

// ---- opening and closing --------------------------------------------------------------------------------------------

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    emulated_call call;
    memset(id, 0, sizeof *id);
    uint64_t number = ++identifiers;
    memcpy(id, &number, sizeof number);
    groups[number] = std::make_shared<struct group>();
    return ncclSuccess;
}

// Calls `done` again and again until it returns true. Other threads run meanwhile.
static void wait_until(const std::function<bool()> &done)
{
    for (;;) {
        {
            emulated_call call;
            if (done()) return;
        }
        usleep(50);
    }
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm_p, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    std::shared_ptr<struct group> g;
    const bool blocking = !config || config->blocking != 0;
    bool complete;
    while (hanging_rank == rank)
        usleep(1000);
    {
        emulated_call call;
        uint64_t number;
        memcpy(&number, &id, sizeof number);
        auto entry = groups.find(number);
        if (entry == groups.end() || rank < 0 || rank >= size) return ncclInvalidArgument;
        g = entry->second;
        g->size = size;
        g->parts.resize((size_t)size);
        complete = ++g->joined == size;
        last_blocks = config && config->maxCTAs != NCCL_CONFIG_UNDEF_INT ? config->maxCTAs : 0;
        *comm_p = new ncclComm{g, std::make_shared<struct rank_state>(), rank, blocking, false, false, {}};
    }
    if (!blocking) return complete ? ncclSuccess : ncclInProgress;
    wait_until([=] { return g->joined == size; });
    return ncclSuccess;
}

static bool is_unused(const struct rank_state *state)
{
    emulated_run_streams();
    return !state->in_streams && !state->in_graphs;
}

[[noreturn]] static void misuse(const char *what)
{
    fprintf(stderr, "nccl emulator: %s\n", what);
    abort();
}

static void need_windows(void)
{
    if (nccl_version < NCCL_VERSION(2, 27, 0)) misuse("this version has no windows");
    if (nccl_version >= NCCL_VERSION(2, 28, 0) && nccl_version < NCCL_VERSION(2, 30, 7))
        misuse("sums in windows of this version do not wait for their input");
}

ncclResult_t ncclMemAlloc(void **memory_p, size_t bytes)
{
    need_windows();
    if (cudaMalloc(memory_p, bytes) != cudaSuccess) {
        cudaGetLastError();
        return ncclUnhandledCudaError;
    }
    emulated_call call;
    allocations[static_cast<char *>(*memory_p)] = {bytes, NULL};
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *memory)
{
    {
        emulated_call call;
        auto entry = allocations.find(static_cast<char *>(memory));
        if (entry == allocations.end()) misuse("ncclMemFree of other memory");
        if (entry->second.window_of) misuse("ncclMemFree of a registered window");
        allocations.erase(entry);
    }
    return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes, ncclWindow_t *window_p, int flags)
{
    need_windows();
    *window_p = NULL;
    if (windows_kind == EMULATED_WINDOWS_NONE) return ncclSuccess;
    if (windows_kind == EMULATED_WINDOWS_FAIL || flags != NCCL_WIN_COLL_SYMMETRIC) return ncclInvalidArgument;
    int round;
    {
        emulated_call call;
        struct group *g = comm->in.get();
        auto entry = allocations.find(static_cast<char *>(memory));
        if (entry == allocations.end() || entry->second.bytes < bytes) misuse("a window on other memory");
        round = g->registered;
        g->registering[comm->rank] = bytes;
        for (const auto &one : g->registering)
            if (one.second != bytes) misuse("windows of different sizes");
        if ((int)g->registering.size() == g->size) {
            g->registering.clear();
            g->registered++;
        }
        entry->second.window_of = comm;
    }
    wait_until([=] { return comm->in->registered > round; });
    *window_p = reinterpret_cast<ncclWindow_t>(memory);
    return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    need_windows();
    wait_until([=] { return is_unused(comm->state.get()); });
    emulated_call call;
    auto entry = allocations.find(reinterpret_cast<char *>(window));
    if (entry == allocations.end() || entry->second.window_of != comm) return ncclInvalidArgument;
    entry->second.window_of = NULL;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    {
        emulated_call call;
        for (const auto &entry : allocations)
            if (entry.second.window_of == comm) misuse("a communicator is finalised before its window is deregistered");
        if (comm->finalized) return ncclInvalidArgument;
        comm->finalized = true;
    }
    if (!comm->blocking) return ncclInProgress;
    wait_until([=] { return is_unused(comm->state.get()); });
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    wait_until([=] { return is_unused(comm->state.get()); });
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    {
        emulated_call call;
        comm->state->aborted = true;
        struct group *g = comm->in.get(); // other ranks never see a collective that this rank has begun
        g->parts[(size_t)comm->rank].here = false;
        for (int to = 0; to < g->size; to++)
            g->sent.erase(std::make_pair(comm->rank, to));
        for (auto &entry : allocations)
            if (entry.second.window_of == comm) entry.second.window_of = NULL;
    }
    return ncclCommDestroy(comm);
}

// ---- calls ----------------------------------------------------------------------------------------------------------

// Marks the call's connections as wanted by its rank. Returns true if all connections are made.
static bool call_connect(const struct call *c)
{
    bool all = true;
    for (int kind : c->kinds) {
        std::set<int> &ranks = c->comm->in->connected_by[kind];
        if (ranks.insert(c->comm->rank).second) n_connections++;
        all = all && (int)ranks.size() == c->ranks;
    }
    return all;
}

static bool calls_connect(const std::vector<struct call> &calls)
{
    bool all = true;
    for (const struct call &c : calls)
        all = call_connect(&c) && all;
    return all;
}

// Appends calls to their stream as one operation, since a group runs as one kernel.
static ncclResult_t calls_issue(const std::vector<struct call> &calls)
{
    emulated_call one;
    std::shared_ptr<struct rank_state> state = calls[0].comm->state;
    auto in_use = std::make_shared<struct use>(state, emulated_is_capturing(calls[0].stream));
    std::vector<std::function<bool()>> runs;
    for (const struct call &c : calls)
        runs.push_back(c.run);
    std::vector<bool> done(runs.size());
    cudaError_t error = emulated_put_waiting(calls[0].stream, [=]() mutable {
        bool all = true;
        for (size_t i = 0; i < runs.size(); i++) {
            if (!done[i]) done[i] = in_use->of->aborted || (failing_rank < 0 && !kernels_spin && runs[i]());
            all = all && done[i];
        }
        return all;
    });
    return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

static ncclResult_t calls_make(const std::vector<struct call> &calls)
{
    if (calls.empty()) return ncclSuccess;
    ncclComm_t comm = calls[0].comm;
    while (hanging_rank == comm->rank)
        usleep(1000);
    if (!comm->blocking) {
        emulated_call one;
        n_issued_later++;
        comm->later = calls;
        comm->polled = false;
        return ncclInProgress;
    }
    wait_until([&] { return calls_connect(calls); });
    return calls_issue(calls);
}

static ncclResult_t call_add(const struct call &c)
{
    if (!group_depth) return calls_make({c});
    group_calls.push_back(c);
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (!group_depth) return ncclInvalidUsage;
    if (--group_depth) return ncclSuccess;
    std::vector<struct call> calls;
    calls.swap(group_calls);
    return calls_make(calls);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result_p)
{
    emulated_call call;
    const bool fails = failing_rank >= 0;
    *result_p = fails ? comm->rank == failing_rank ? ncclUnhandledCudaError : ncclRemoteError
                : comm->in->joined < comm->in->size ? ncclInProgress
                                                    : ncclSuccess;
    if (fails || comm->blocking) return ncclSuccess;
    if (comm->finalized && !is_unused(comm->state.get())) *result_p = ncclInProgress;
    if (comm->later.empty()) return ncclSuccess;
    // The thread that issues the calls takes some time: the first query finds them in progress.
    if (!comm->polled || !calls_connect(comm->later)) {
        comm->polled = true;
        *result_p = ncclInProgress;
        return ncclSuccess;
    }
    *result_p = calls_issue(comm->later);
    comm->later.clear();
    return ncclSuccess;
}

static bool is_device_memory(const void *at, size_t bytes)
{
    emulated_call call;
    return emulated_is_device_memory(at, bytes);
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t comm, cudaStream_t stream)
{
    const size_t bytes = count * type_bytes(type);
    if (type != ncclFloat && (type != ncclBfloat16 || operation != ncclSum)) return ncclInvalidArgument;
    if (operation != ncclSum && operation != ncclMax) return ncclInvalidArgument;
    if (!is_device_memory(from, bytes) || !is_device_memory(to, bytes)) return ncclInvalidArgument;
    std::shared_ptr<struct group> g = comm->in;
    size_t rank = (size_t)comm->rank;
    const char *registers = getenv("NCCL_GRAPH_REGISTER");
    part own = {true, from, to, count, type, operation, -1, false};
    {
        emulated_call one;
        own.registered = emulated_is_capturing(stream) && !(registers && strcmp(registers, "0") == 0);
        own.offset = window_offset(comm, to, bytes);
        if (type == ncclBfloat16) ++(own.offset >= 0 ? sums_in_windows : sums_in_memory);
    }
    bool entered = false;
    uint64_t round = 0;
    const int kind = (bytes <= TREE_BYTES_MAX ? TREE : RING) + (type == ncclBfloat16 ? BF16 : 0);
    return call_add({comm, stream, {kind}, g->size, [=]() mutable {
                         if (!entered) {
                             entered = true;
                             round = g->round;
                             g->parts[rank] = own;
                             for (const part &p : g->parts)
                                 if (!p.here) return false;
                             group_reduce(g.get());
                         }
                         return g->round != round;
                     }});
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int to, ncclComm_t comm, cudaStream_t stream)
{
    if (type != ncclFloat || to < 0 || to >= comm->in->size) return ncclInvalidArgument;
    if (!is_device_memory(from, count * sizeof(float))) return ncclInvalidArgument;
    std::shared_ptr<struct group> g = comm->in;
    std::pair<int, int> way(comm->rank, to);
    part own = {true, from, NULL, count, type, ncclSum, -1, false};
    bool entered = false;
    return call_add({comm, stream, {PAIRS + comm->rank * g->size + to}, 2, [=]() mutable {
                         if (!entered) g->sent[way] = own;
                         entered = true;
                         return !g->sent.count(way);
                     }});
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int from, ncclComm_t comm, cudaStream_t stream)
{
    if (type != ncclFloat || from < 0 || from >= comm->in->size) return ncclInvalidArgument;
    if (!is_device_memory(to, count * sizeof(float))) return ncclInvalidArgument;
    std::shared_ptr<struct group> g = comm->in;
    std::pair<int, int> way(from, comm->rank);
    return call_add({comm, stream, {PAIRS + from * g->size + comm->rank}, 2, [=] {
                         auto sent = g->sent.find(way);
                         if (sent == g->sent.end()) return false;
                         if (sent->second.count != count) {
                             fprintf(stderr, "nccl emulator: rank %d sends %zu floats, rank %d waits for %zu\n",
                                     way.first, sent->second.count, way.second, count);
                             abort();
                         }
                         memcpy(to, sent->second.from, count * sizeof(float));
                         g->sent.erase(sent);
                         return true;
                     }});
}
