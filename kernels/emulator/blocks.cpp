// SPDX-License-Identifier: Apache-2.0
// Runs the thread blocks of a kernel, see device.h. One kernel runs at a time in a process, under the lock of
// runtime.cpp, since static __shared__ arrays and threadIdx are global.
#include <stdio.h>
#include <stdlib.h>

#include <cudaTypedefs.h>

#include <deque>

#include "kernels/emulator/device.h"
#include "kernels/emulator/emulator.h"
#include "kernels/emulator/fibers.h"
#include "kernels/emulator/runtime.h"

enum { THREADS_MAX = 1024, LANES = 32, SLOT = 64, NAMED_BARRIERS = 16 };
enum state { READY, AT_WARP, AT_BLOCK, AT_BARRIER, GONE };

struct place {
    const char *file;
    int line;
    size_t bytes;
};

struct thread {
    struct fiber fiber;
    enum state state;
    struct place at;    // place at which it waits
    const void *awaits; // AT_BARRIER: the barrier
    bool waited;        // the thread has waited for the previous kernel, see kernels/cuda/dependent.h
    uint3 index;        // its threadIdx
};

struct warp {
    int arrived;
    unsigned exchanges; // number of exchanges so far; the lowest bit selects the part of `slot` in use
    alignas(16) unsigned char slot[2][LANES * SLOT];
};

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

static struct thread threads[THREADS_MAX];
static struct warp warps[THREADS_MAX / LANES];
static struct fiber host;
static int n_threads, current, at_block, n_gone;
static bool backwards;        // every other block runs its threads in reverse order, which exposes missing barriers
static uint64_t random_state; // FOREPACK_EMULATOR_SEED: threads run in random order unless it is 0
static void *dynamic_shared;
static const char *kernel_name;
static const std::function<void()> *kernel_body;

// A copy by the tensor memory accelerator (TMA) that has not happened yet.
struct box_copy {
    void *to;
    const CUtensorMap *map;
    int x, y;
    uint64_t *barrier;
};
static std::deque<box_copy> box_copies;
static void box_copy_run(const box_copy *copy);

static const char *state_name(enum state state)
{
    if (state == AT_BARRIER) return "at a barrier";
    return state == AT_WARP ? "at a warp operation" : state == AT_BLOCK ? "at __syncthreads" : "gone";
}

// Ends the program with a message that lists the states and places of all threads.
[[noreturn]] static void stuck(const char *why)
{
    fprintf(stderr, "cuda emulator: %s in block (%u, %u, %u) of %s\n", why, blockIdx.x, blockIdx.y, blockIdx.z,
            kernel_name);
    for (int first = 0, i = 1; i <= n_threads; i++) {
        const struct thread *a = &threads[first], *b = &threads[i < n_threads ? i : first];
        if (i < n_threads && a->state == b->state && (a->state == GONE || a->at.line == b->at.line)) continue;
        fprintf(stderr, "  threads %d to %d: %s", first, i - 1, a->state == READY ? "running" : state_name(a->state));
        if (a->state != READY && a->state != GONE) fprintf(stderr, ", %s:%d", a->at.file, a->at.line);
        fprintf(stderr, "\n");
        first = i;
    }
    abort();
}

EMULATED_UNCHECKED static void thread_select(int thread)
{
    current = thread;
    threadIdx = threads[thread].index;
}

// xorshift64.
static unsigned random_below(unsigned n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (unsigned)(random_state >> 32) % n;
}

// Reads the seed and prints it, once.
static void random_begin(void)
{
    static bool begun;
    const char *seed = begun ? NULL : getenv("FOREPACK_EMULATOR_SEED");
    begun = true;
    if (!seed || !*seed) return;
    random_state = strtoull(seed, NULL, 10) * 0x9e3779b97f4a7c15u | 1;
    fprintf(stderr, "cuda emulator: threads run in the random order of seed %s\n", seed);
}

EMULATED_UNCHECKED static int thread_next(int from)
{
    int to = random_state ? (int)random_below((unsigned)n_threads) : from;
    if (to != from && threads[to].state == READY) return to;
    from = to;
    do
        to = backwards ? (to ? to : n_threads) - 1 : to + 1 < n_threads ? to + 1 : 0;
    while (threads[to].state != READY && to != from);
    return to;
}

// Switches to the next runnable thread. Returns when this thread runs again. Copies happen when all threads wait.
EMULATED_UNCHECKED static void thread_yield(bool last)
{
    int from = current, to = thread_next(from);
    while (threads[to].state != READY && !box_copies.empty()) {
        box_copy copy = backwards ? box_copies.back() : box_copies.front();
        backwards ? box_copies.pop_back() : box_copies.pop_front();
        if (n_gone == n_threads) stuck("a copy ends after its block");
        box_copy_run(&copy);
        to = thread_next(from);
    }
    if (threads[to].state != READY) {
        if (n_gone < n_threads) stuck("threads wait for threads that do not arrive");
        fiber_switch(&threads[from].fiber, &host, true);
    }
    thread_select(to);
    // a copy may have made this thread runnable
    if (to != from) fiber_switch(&threads[from].fiber, &threads[to].fiber, last);
}

static void thread_main(void)
{
    fiber_entered();
    (*kernel_body)();
    threads[current].state = GONE;
    n_gone++;
    thread_yield(true);
    abort(); // not reached
}

EMULATED_UNCHECKED static bool same_place(const struct place *a, const struct place *b)
{
    return a->line == b->line && a->bytes == b->bytes && (a->file == b->file || strcmp(a->file, b->file) == 0);
}

// Waits in `state` at a place until all threads [first, first + count) are there.
EMULATED_UNCHECKED static void wait_for_all(enum state state, int first, int count, int *arrived, struct place at)
{
    struct thread *self = &threads[current];
    int own = current;
    self->at = at;
    self->state = state;
    if (++*arrived < count) {
        thread_yield(false);
        return; // the last thread to arrive has made this thread READY
    }
    *arrived = 0;
    for (int i = first; i < first + count; i++)
        if (threads[i].state != state || !same_place(&threads[i].at, &at))
            stuck("threads wait at different operations");
    for (int i = first; i < first + count; i++)
        threads[i].state = READY;
    thread_select(own);
}

void emulated_block_barrier(const char *file, int line)
{
    wait_for_all(AT_BLOCK, 0, n_threads, &at_block, {file, line, 0});
}

EMULATED_UNCHECKED const void *emulated_warp_exchange(const void *mine, size_t bytes, const char *file, int line)
{
    const unsigned self = (unsigned)current, lane = self % LANES, first = self - lane;
    struct warp *warp = &warps[self / LANES];
    if ((int)first + LANES > n_threads || bytes > SLOT) stuck("a warp operation in a warp of fewer than 32 threads");
    unsigned char *slot = warp->slot[warp->exchanges & 1];
    memcpy(slot + lane * bytes, mine, bytes);
    // The last lane to arrive counts the exchange, before any lane continues.
    if (warp->arrived == LANES - 1) warp->exchanges++;
    wait_for_all(AT_WARP, (int)first, LANES, &warp->arrived, {file, line, bytes});
    return slot;
}

EMULATED_UNCHECKED int emulated_lane(void)
{
    return current % LANES;
}

void emulated_check_mask(unsigned mask, const char *file, int line)
{
    if (mask == 0xffffffffu) return;
    fprintf(stderr, "cuda emulator: %s:%d: only whole warps (mask 0xffffffff) are emulated, not 0x%08x\n", file, line,
            mask);
    abort();
}

void emulated_dependency_wait(void)
{
    threads[current].waited = true;
}

void emulated_check_waited(void)
{
    if (!threads[current].waited) stuck("a thread ended without waiting for the kernel before its own");
}

void *emulated_dynamic_shared(void)
{
    return dynamic_shared;
}

// ---- barriers and copies of Hopper ----------------------------------------------------------------------------------

// A barrier in shared memory. Its phase completes when no arrivals and no bytes are pending.
struct phase_barrier {
    uint16_t count, pending;
    int32_t bytes : 31; // expected minus copied
    uint32_t parity : 1;
};
static_assert(sizeof(phase_barrier) == sizeof(uint64_t), "as on the device");

struct named_barrier {
    int arrived, threads;
};
static struct named_barrier named_barriers[NAMED_BARRIERS];

static void threads_wake(const void *barrier)
{
    for (int i = 0; i < n_threads; i++)
        if (threads[i].state == AT_BARRIER && threads[i].awaits == barrier) threads[i].state = READY;
}

static void thread_wait(const void *barrier, struct place at)
{
    threads[current].at = at;
    threads[current].awaits = barrier;
    threads[current].state = AT_BARRIER;
    thread_yield(false);
}

static void phase_check(uint64_t *at)
{
    phase_barrier *barrier = reinterpret_cast<phase_barrier *>(at);
    if (barrier->pending || barrier->bytes) return;
    barrier->pending = barrier->count;
    barrier->parity ^= 1u;
    threads_wake(at);
}

static bool barriers_unfenced; // true if a barrier was initialised since the last barrier_init_fence

void emulated_barrier_init_fence(void)
{
    barriers_unfenced = false;
}

void emulated_barrier_init(uint64_t *at, int count)
{
    barriers_unfenced = true;
    *reinterpret_cast<phase_barrier *>(at) = {(uint16_t)count, (uint16_t)count, 0, 0};
}

void emulated_barrier_arrive(uint64_t *at, int bytes)
{
    phase_barrier *barrier = reinterpret_cast<phase_barrier *>(at);
    if (!barrier->pending) stuck("more arrivals at a barrier than its count");
    barrier->bytes += bytes;
    barrier->pending--;
    phase_check(at);
}

void emulated_barrier_wait(uint64_t *at, uint32_t parity, const char *file, int line)
{
    while (reinterpret_cast<phase_barrier *>(at)->parity == parity)
        thread_wait(at, {file, line, 0});
}

void emulated_named_barrier(int id, int count, bool wait, const char *file, int line)
{
    if (id < 1 || id >= NAMED_BARRIERS || count % LANES) stuck("a named barrier that does not exist");
    struct named_barrier *barrier = &named_barriers[id];
    if (barrier->arrived && barrier->threads != count) stuck("a named barrier with different numbers of threads");
    barrier->threads = count;
    if (++barrier->arrived == count) {
        barrier->arrived = 0;
        threads_wake(barrier);
    } else if (wait) {
        thread_wait(barrier, {file, line, 0});
    }
}

// Content that the emulator's cuTensorMapEncodeTiled puts into a map.
struct box_map {
    const char *data;
    uint64_t width, height, pitch; // values, rows, bytes
    uint32_t box_width, box_height, value_bytes, swizzled;
};
static_assert(sizeof(box_map) <= sizeof(CUtensorMap), "fits");

static int n_map_encodes;

int emulator_map_encodes(void)
{
    return n_map_encodes;
}

static CUresult map_encode(CUtensorMap *to, CUtensorMapDataType type, cuuint32_t rank, void *data,
                           const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                           const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill)
{
    const bool bytes = type == CU_TENSOR_MAP_DATA_TYPE_UINT8, swizzled = swizzle == CU_TENSOR_MAP_SWIZZLE_128B;
    const uint32_t value_bytes = bytes ? 1 : 2;
    if ((!bytes && type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16) || rank != 2 || steps[0] != 1 || steps[1] != 1 ||
        interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || (!swizzled && swizzle != CU_TENSOR_MAP_SWIZZLE_NONE) ||
        fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE || (uintptr_t)data % 16 || strides[0] % 16 || box[0] > 256 ||
        box[1] > 256 || box[0] * value_bytes % 16 || (swizzled && box[0] * value_bytes > 128) || !sizes[0] ||
        !sizes[1] || sizes[1] > 0xffffffff)
        return CUDA_ERROR_INVALID_VALUE;
    const box_map map = {
        static_cast<const char *>(data), sizes[0], sizes[1], strides[0], box[0], box[1], value_bytes, swizzled};
    n_map_encodes++;
    memset(static_cast<void *>(to), 0, sizeof *to);
    memcpy(static_cast<void *>(to), &map, sizeof map);
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned, unsigned long long,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    const bool known = strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
    *function = known ? reinterpret_cast<void *>(map_encode) : NULL;
    *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

// Returns the place of byte x of a row of the box.
static size_t box_at(const box_map *map, size_t row, size_t x)
{
    size_t at = row * map->box_width * map->value_bytes + x;
    return map->swizzled ? at ^ (at >> 7 & 7) << 4 : at;
}

static void box_copy_run(const box_copy *copy)
{
    box_map map;
    memcpy(&map, copy->map, sizeof map);
    char *to = static_cast<char *>(copy->to);
    const size_t row_bytes = map.box_width * map.value_bytes;
    for (size_t row = 0; row < map.box_height; row++)
        for (size_t x = 0; x < row_bytes; x++) {
            const int64_t column = copy->x + (int64_t)(x / map.value_bytes), y = copy->y + (int64_t)row;
            const bool inside = column >= 0 && column < (int64_t)map.width && y >= 0 && y < (int64_t)map.height;
            to[box_at(&map, row, x)] =
                inside ? map.data[(size_t)y * map.pitch + (size_t)column * map.value_bytes + x % map.value_bytes] : 0;
        }
    reinterpret_cast<phase_barrier *>(copy->barrier)->bytes -= (int)(row_bytes * map.box_height);
    phase_check(copy->barrier);
}

void emulated_box_load(void *to, const CUtensorMap *map, int x, int y, uint64_t *barrier)
{
    box_map box;
    memcpy(&box, map, sizeof box);
    const size_t at = (size_t)(static_cast<char *>(to) - static_cast<char *>(dynamic_shared));
    if (at % (box.swizzled ? 1024 : 128)) stuck("a box of a copy that is not aligned in shared memory");
    if (barriers_unfenced) stuck("a copy that uses a barrier without barrier_init_fence");
    memset(to, 0xff, box.box_width * box.value_bytes * box.box_height); // stays until the copy happens
    box_copies.push_back({to, map, x, y, barrier});
}

// ---- running --------------------------------------------------------------------------------------------------------

static void run_block(size_t shared_bytes)
{
    memset(dynamic_shared, 0xff, shared_bytes); // NaN in every type of float
    at_block = n_gone = 0;
    for (int i = 0; i < n_threads; i++) {
        fiber_prepare(&threads[i].fiber, thread_main);
        threads[i].state = READY;
        threads[i].waited = false;
        const unsigned t = (unsigned)i;
        threads[i].index = {t % blockDim.x, t / blockDim.x % blockDim.y, t / (blockDim.x * blockDim.y)};
    }
    for (int i = 0; i < (n_threads + LANES - 1) / LANES; i++)
        warps[i].arrived = 0;
    memset(named_barriers, 0, sizeof named_barriers);
    thread_select(random_state ? (int)random_below((unsigned)n_threads) : backwards ? n_threads - 1 : 0);
    fiber_switch(&host, &threads[current].fiber, false);
    backwards = !backwards;
}

void emulated_run(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &body)
{
    random_begin();
    kernel_name = kernel;
    kernel_body = &body;
    gridDim = grid;
    blockDim = block;
    n_threads = (int)(block.x * block.y * block.z);
    fiber_adopt(&host);
    if (posix_memalign(&dynamic_shared, 1024, shared_bytes + !shared_bytes) != 0) abort();
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = {x, y, z};
                run_block(shared_bytes);
            }
    free(dynamic_shared);
}
