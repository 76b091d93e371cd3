// SPDX-License-Identifier: Apache-2.0
// Runs the thread blocks of a kernel, see device.h. One kernel runs at a time in a process, under the lock of
// runtime.cpp, since static __shared__ arrays and threadIdx are global.
#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda_emulator/device.h"
#include "tests/cuda_emulator/fibers.h"
#include "tests/cuda_emulator/runtime.h"

enum { THREADS_MAX = 1024, LANES = 32, SLOT = 64 };
enum state { READY, AT_WARP, AT_BLOCK, GONE };

struct place {
    const char *file;
    int line;
    size_t bytes;
};

struct thread {
    struct fiber fiber;
    enum state state;
    struct place at; // where it waits
    bool waited;     // for the kernel before, see kernels/cuda/dependent.h
};

struct warp {
    int arrived;
    unsigned exchanges; // so far; the lowest bit selects the part of `slot` in use
    alignas(16) unsigned char slot[2][LANES * SLOT];
};

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

static struct thread threads[THREADS_MAX];
static struct warp warps[THREADS_MAX / LANES];
static struct fiber host;
static int n_threads, current, at_block, n_gone;
static bool backwards; // every other block runs its threads in reverse order, which exposes missing barriers
static void *dynamic_shared;
static const char *kernel_name;
static const std::function<void()> *kernel_body;

static const char *state_name(enum state state)
{
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
        if (a->state == AT_WARP || a->state == AT_BLOCK) fprintf(stderr, ", %s:%d", a->at.file, a->at.line);
        fprintf(stderr, "\n");
        first = i;
    }
    abort();
}

static void thread_select(int thread)
{
    current = thread;
    unsigned t = (unsigned)thread;
    threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / (blockDim.x * blockDim.y)};
}

// Switches to the next runnable thread; returns when this thread runs again.
static void thread_yield(bool last)
{
    int from = current, step = backwards ? n_threads - 1 : 1, to = from;
    do
        to = (to + step) % n_threads;
    while (threads[to].state != READY && to != from);
    if (threads[to].state != READY) {
        if (n_gone < n_threads) stuck("threads wait for threads that do not arrive");
        fiber_switch(&threads[from].fiber, &host, true);
    }
    thread_select(to);
    fiber_switch(&threads[from].fiber, &threads[to].fiber, last);
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

static bool same_place(const struct place *a, const struct place *b)
{
    return a->line == b->line && a->bytes == b->bytes && (a->file == b->file || strcmp(a->file, b->file) == 0);
}

// Waits in `state` at a place until all threads [first, first + count) are there.
static void wait_for_all(enum state state, int first, int count, int *arrived, struct place at)
{
    struct thread *self = &threads[current];
    int own = current;
    self->at = at;
    self->state = state;
    if (++*arrived < count) {
        thread_yield(false);
        return; // the last thread to arrive made it READY
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

const void *emulated_warp_exchange(const void *mine, size_t bytes, const char *file, int line)
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

int emulated_lane(void)
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

static void run_block(size_t shared_bytes)
{
    memset(dynamic_shared, 0xff, shared_bytes); // NaN in every type of float
    at_block = n_gone = 0;
    for (int i = 0; i < n_threads; i++) {
        fiber_prepare(&threads[i].fiber, thread_main);
        threads[i].state = READY;
        threads[i].waited = false;
    }
    for (int i = 0; i < (n_threads + LANES - 1) / LANES; i++)
        warps[i].arrived = 0;
    thread_select(backwards ? n_threads - 1 : 0);
    fiber_switch(&host, &threads[current].fiber, false);
    backwards = !backwards;
}

void emulated_run(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &body)
{
    kernel_name = kernel;
    kernel_body = &body;
    gridDim = grid;
    blockDim = block;
    n_threads = (int)(block.x * block.y * block.z);
    fiber_adopt(&host);
    if (posix_memalign(&dynamic_shared, 128, shared_bytes + !shared_bytes) != 0) abort();
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = {x, y, z};
                run_block(shared_bytes);
            }
    free(dynamic_shared);
}
