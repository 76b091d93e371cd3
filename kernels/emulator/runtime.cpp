// SPDX-License-Identifier: Apache-2.0
// Implements devices, memory, streams, events and graphs of the CUDA runtime, see emulator.h.
#include "kernels/emulator/runtime.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

extern "C" {
#include "lib/base/no_alloc.h"
}
#include "kernels/emulator/device.h"
#include "kernels/emulator/emulator.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define __asan_poison_memory_region(at, bytes)   (void)(at), (void)(bytes)
#define __asan_unpoison_memory_region(at, bytes) (void)(at), (void)(bytes)
#endif

typedef std::function<bool()> operation; // returns false if it must wait; the stream then stops before it

struct CUgraph_st {
    std::vector<operation> operations;
};

struct CUgraphExec_st {
    std::vector<operation> operations;
};

struct CUstream_st {
    int device;
    std::deque<operation> waiting;
    int64_t run_us;      // time of the operations run so far
    CUgraph_st *capture; // graph that captures the stream: operations are appended to it; NULL: none
    bool capture_origin, capture_invalid;
    bool non_blocking; // its operations do not wait for operations of the default stream
};

struct CUevent_st {
    CUstream_st *stream; // stream of the last record
    CUgraph_st *capture;
    uint64_t records, reached; // number of records so far; number of the last record that has run
    int64_t clock;             // stream->run_us at that record

    bool done() const
    {
        return reached == records;
    }
};

struct allocation {
    size_t bytes;
    int device; // -1: pinned host memory
};

static std::recursive_mutex mutex;
static std::map<uintptr_t, allocation> allocations;
static std::vector<CUstream_st *> streams;
static int n_devices = 1, capability = 90, fail_after, n_graph_launches, n_pageable_reads;
static size_t queue_most = 1024;                // launches that wait in a stream
static int fail_graph;                          // the n-th graph from now on cannot be made executable; 0: none
static size_t device_bytes = (size_t)512 << 20; // size of each device without an entry in own_bytes
static std::map<int, size_t> own_bytes, used;
static bool lost, in_kernel, counting;
static uintptr_t reserved_next, reserved_end;      // address space of allocations that are only counted
static thread_local int device;                    // number among the devices that the thread sees
static thread_local int first_shown, n_shown = -1; // -1: all
static thread_local CUstream_st *capturing;        // origin stream of this thread's capture
static thread_local cudaError_t last_error;
static CUstream_st default_stream;

int emulated_launches;
int64_t emulated_duration_us;

static const size_t FILLED = (size_t)4 << 20; // bytes of an allocation filled with NaN, from its start
static const size_t GUARDED = 4096;           // bytes of an allocation guarded against the host, from its start

static cudaError_t result(cudaError_t error)
{
    if (error != cudaSuccess) last_error = error;
    return error;
}

static thread_local int lock_depth; // how often this thread holds the lock

emulated_call::emulated_call()
{
    mutex.lock();
    lock_depth++;
    suspended = no_alloc_suspend();
}

emulated_call::~emulated_call()
{
    no_alloc_resume(suspended);
    lock_depth--;
    mutex.unlock();
}

// ---- settings -------------------------------------------------------------------------------------------------------

void emulator_set_devices(int n)
{
    n_devices = n;
}

void emulator_show_devices(int first, int n)
{
    first_shown = first;
    n_shown = n;
}

static int n_visible(void)
{
    return n_shown < 0 || n_shown > n_devices - first_shown ? n_devices - first_shown : n_shown;
}

static int this_device(void)
{
    return first_shown + device;
}

void emulator_set_memory(size_t bytes)
{
    device_bytes = bytes;
}

void emulator_set_memory_of(int on, size_t bytes)
{
    own_bytes[on] = bytes;
}

static size_t memory_of(int on)
{
    return own_bytes[on] ? own_bytes[on] : device_bytes;
}

void emulator_set_capability(int major, int minor)
{
    capability = major * 10 + minor;
}

int emulated_capability(void)
{
    return capability;
}

void emulator_count_only(bool on)
{
    emulated_call call;
    const size_t bytes = (size_t)1 << 42;
    if (on && !reserved_end) {
        void *space = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (space == MAP_FAILED) {
            perror("cuda emulator: reserving address space");
            abort();
        }
        reserved_next = (uintptr_t)space;
        reserved_end = reserved_next + bytes;
    }
    counting = on;
}

bool emulated_is_counting(void)
{
    return counting;
}

size_t emulator_memory_used(void)
{
    emulated_call call;
    size_t sum = 0;
    for (auto &entry : used)
        sum += entry.second;
    return sum;
}

size_t emulator_memory_used_on(int on)
{
    emulated_call call;
    return used[on];
}

int emulator_launches(void)
{
    return emulated_launches;
}

int emulator_graph_launches(void)
{
    return n_graph_launches;
}

int emulator_pageable_reads(void)
{
    emulated_call call;
    return n_pageable_reads;
}

void emulator_set_launch_queue(int n)
{
    queue_most = (size_t)n;
}

void emulator_fail_graph(int n)
{
    emulated_call call;
    fail_graph = n;
}

void emulator_fail_after(int n)
{
    fail_after = n;
    if (!n) lost = false;
}

// ---- devices --------------------------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = n_visible();
    return result(n_visible() ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int which)
{
    if (which < 0 || which >= n_visible()) return result(cudaErrorInvalidDevice);
    device = which;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *which)
{
    *which = device;
    return cudaSuccess;
}

enum { MULTIPROCESSORS = 4, SHARED_BYTES_MAX = 227 * 1024 };

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int which)
{
    if (which < 0 || which >= n_visible()) return result(cudaErrorInvalidDevice);
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "emulated GPU");
    snprintf(prop->uuid.bytes, sizeof prop->uuid.bytes, "emulated %d", first_shown + which);
    prop->major = capability / 10;
    prop->minor = capability % 10;
    prop->totalGlobalMem = memory_of(first_shown + which);
    prop->multiProcessorCount = MULTIPROCESSORS;
    prop->sharedMemPerBlock = 48 * 1024;
    prop->sharedMemPerBlockOptin = SHARED_BYTES_MAX;
    prop->sharedMemPerMultiprocessor = SHARED_BYTES_MAX + 1024;
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = 1024;
    prop->maxThreadsPerMultiProcessor = 2048;
    prop->regsPerBlock = 65536;
    prop->l2CacheSize = 1 << 20;
    prop->unifiedAddressing = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int which)
{
    if (which < 0 || which >= n_visible()) return result(cudaErrorInvalidDevice);
    switch ((int)attribute) {
    case cudaDevAttrMultiProcessorCount: *value = MULTIPROCESSORS; break;
    case cudaDevAttrComputeCapabilityMajor: *value = capability / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = capability % 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = SHARED_BYTES_MAX; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrL2CacheSize: *value = 1 << 20; break;
    default: return result(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int which)
{
    if (which < 0 || which >= n_visible()) return result(cudaErrorInvalidDevice);
    snprintf(text, (size_t)bytes, "0000:%02x:00.0", first_shown + which + 1);
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = n_devices ? CUDART_VERSION : 0;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch ((int)error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    default: return "an error of the emulated GPU";
    }
}

const char *cudaGetErrorName(cudaError_t error)
{
    return cudaGetErrorString(error);
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    if (!lost) last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

// ---- memory ---------------------------------------------------------------------------------------------------------

// Returns the allocation that contains an address, or end().
static std::map<uintptr_t, allocation>::iterator allocation_find(const void *at)
{
    auto next = allocations.upper_bound((uintptr_t)at);
    if (next == allocations.begin()) return allocations.end();
    auto entry = std::prev(next);
    return (uintptr_t)at < entry->first + entry->second.bytes ? entry : allocations.end();
}

bool emulated_is_device_memory(const void *at, size_t bytes)
{
    auto entry = allocation_find(at);
    return entry != allocations.end() && (uintptr_t)at + bytes <= entry->first + entry->second.bytes;
}

static void memory_guard(bool on)
{
    if (counting) return;
    for (auto &entry : allocations) {
        if (entry.second.device < 0) continue;
        size_t bytes = entry.second.bytes < GUARDED ? entry.second.bytes : GUARDED;
        if (on)
            __asan_poison_memory_region((void *)entry.first, bytes);
        else
            __asan_unpoison_memory_region((void *)entry.first, bytes);
    }
}

static bool is_mapped(uintptr_t address)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    unsigned char resident;
    return mincore((void *)(address & ~(page - 1)), 1, &resident) == 0;
}

void emulated_check_argument(const char *kernel, const void *value, size_t bytes)
{
    emulated_call call;
    for (size_t i = 0; i + sizeof(uintptr_t) <= bytes; i += sizeof(uintptr_t)) {
        uintptr_t word;
        memcpy(&word, (const char *)value + i, sizeof word);
        // Values below 2^45 are not user addresses (AddressSanitizer maps its shadow there) but pairs of small numbers.
        if (word >> 47 || word < (uintptr_t)1 << 45 || allocation_find((void *)word) != allocations.end() ||
            !is_mapped(word))
            continue;
        fprintf(stderr, "cuda emulator: an argument of %s contains a pointer to host or freed memory at byte %zu\n",
                kernel, i);
        abort();
    }
}

static cudaError_t run_all(void);
static void lock_yield(void);
static bool is_busy(int on);

// Addresses that nobody may access, never used twice.
static void *reserve(size_t bytes)
{
    uintptr_t at = reserved_next;
    reserved_next += (bytes + 255) / 256 * 256;
    return reserved_next <= reserved_end ? (void *)at : NULL;
}

static bool is_reserved(const void *p)
{
    return (uintptr_t)p < reserved_end && (uintptr_t)p >= reserved_end - ((uintptr_t)1 << 42);
}

static cudaError_t allocate(void **p, size_t bytes, int on)
{
    emulated_call call;
    *p = NULL;
    if (capturing) {
        capturing->capture_invalid = true;
        return result(cudaErrorStreamCaptureUnsupported);
    }
    if (lost) return result(cudaErrorLaunchFailure);
    if (on >= 0 && (on >= n_devices || bytes > memory_of(on) - used[on]))
        return result(n_devices ? cudaErrorMemoryAllocation : cudaErrorNoDevice);
    if (!bytes) return cudaSuccess;
    const bool fake = counting && on >= 0;
    if (fake ? !(*p = reserve(bytes)) : posix_memalign(p, 256, bytes) != 0) return result(cudaErrorMemoryAllocation);
    if (!fake) memset(*p, 0xff, bytes < FILLED ? bytes : FILLED);
    if (on >= 0) used[on] += bytes;
    allocations[(uintptr_t)*p] = {bytes, on};
    if (!in_kernel) memory_guard(true);
    return cudaSuccess;
}

static cudaError_t release(void *p, bool pinned)
{
    emulated_call call;
    if (!p) return cudaSuccess;
    auto entry = allocations.find((uintptr_t)p);
    if (entry == allocations.end() || pinned != (entry->second.device < 0)) return result(cudaErrorInvalidValue);
    cudaError_t error = run_all();
    while (!pinned && error == cudaSuccess && is_busy(entry->second.device)) { // as on a device: frees wait for kernels
        lock_yield();
        error = run_all();
        entry = allocations.find((uintptr_t)p); // other threads have run
    }
    if (!pinned) used[entry->second.device] -= entry->second.bytes;
    if (!is_reserved(p)) __asan_unpoison_memory_region(p, entry->second.bytes);
    allocations.erase(entry);
    if (!is_reserved(p)) free(p);
    return result(error);
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    return allocate(p, bytes, this_device());
}

cudaError_t cudaFree(void *p)
{
    return release(p, false);
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    return allocate(p, bytes, -1);
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    return allocate(p, bytes, -1);
}

cudaError_t cudaFreeHost(void *p)
{
    return release(p, true);
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned)
{
    emulated_call call;
    if (!p || !bytes) return result(cudaErrorInvalidValue);
    allocations[(uintptr_t)p] = {bytes, -1};
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    emulated_call call;
    auto entry = allocations.find((uintptr_t)p);
    if (entry == allocations.end() || entry->second.device >= 0) return result(cudaErrorInvalidValue);
    cudaError_t error = run_all(); // copies under way
    allocations.erase(entry);
    return result(error);
}

cudaError_t cudaMemGetInfo(size_t *free_p, size_t *total_p)
{
    emulated_call call;
    if (device >= n_visible()) return result(cudaErrorNoDevice);
    *total_p = memory_of(this_device());
    *free_p = *total_p - used[this_device()];
    return cudaSuccess;
}

// ---- streams --------------------------------------------------------------------------------------------------------

static bool run_one(const operation &run)
{
    if (lost) return true;
    bool outermost = !in_kernel;
    if (outermost) memory_guard(false);
    in_kernel = true;
    bool done = run();
    if (outermost) {
        in_kernel = false;
        memory_guard(true);
    }
    if (done && fail_after && --fail_after == 0) lost = true;
    return done;
}

// Runs a stream as far as possible. Returns true if an operation ran.
static bool advance(CUstream_st *stream)
{
    bool moved = false;
    while (!stream->waiting.empty() && run_one(stream->waiting.front())) {
        stream->waiting.pop_front();
        stream->run_us += 1 + emulated_duration_us;
        emulated_duration_us = 0;
        moved = true;
    }
    return moved;
}

// Runs all streams, with the stream `last` (may be NULL) after the other streams.
static bool advance_all(CUstream_st *last)
{
    bool moved = false;
    for (CUstream_st *stream : streams)
        if (stream != last) moved |= advance(stream);
    if (last != &default_stream) moved |= advance(&default_stream);
    if (last) moved |= advance(last);
    return moved;
}

// Runs all streams, like a device, until this stream is empty. Returns cudaErrorNotReady if the stream waits for an
// operation that another thread has not issued yet. Other streams run first. So if another stream lacks a wait for this
// stream, the missing wait is detected.
static cudaError_t poll_stream(CUstream_st *stream)
{
    while (!stream->waiting.empty() && advance_all(stream))
        ;
    return lost ? cudaErrorLaunchFailure : stream->waiting.empty() ? cudaSuccess : cudaErrorNotReady;
}

// Releases the lock briefly, so that other threads can issue operations.
static void lock_yield(void)
{
    for (int i = 0; i < lock_depth; i++)
        mutex.unlock();
    usleep(50);
    for (int i = 0; i < lock_depth; i++)
        mutex.lock();
}

static cudaError_t run_stream(CUstream_st *stream)
{
    cudaError_t error;
    while ((error = poll_stream(stream)) == cudaErrorNotReady)
        lock_yield();
    return error;
}

static cudaError_t run_all(void)
{
    while (advance_all(NULL))
        ;
    return lost ? cudaErrorLaunchFailure : cudaSuccess;
}

// Returns true if the device still has work that waits for other ranks, or that nothing can complete.
static bool is_busy(int on)
{
    for (const CUstream_st *stream : streams)
        if (stream->device == on && !stream->waiting.empty()) return true;
    return false;
}

static CUstream_st *real(cudaStream_t stream)
{
    return stream ? stream : &default_stream;
}

// Copies by cudaMemcpy from pageable memory whose bytes have been read but are not on the device yet.
static std::vector<operation> copies_under_way;

static void copies_arrive(void)
{
    for (auto &copy : copies_under_way)
        run_one(copy);
    copies_under_way.clear();
}

cudaError_t emulated_put_waiting(cudaStream_t to, operation run)
{
    emulated_call call;
    CUstream_st *stream = real(to);
    if (lost) return result(cudaErrorLaunchFailure);
    if (!stream->non_blocking) copies_arrive();
    if (stream->capture) {
        stream->capture->operations.push_back(run);
        return cudaSuccess;
    }
    if (!to) run_all();                          // the default stream runs after all others
    while (stream->waiting.size() >= queue_most) // the launch blocks
        if (!advance_all(stream)) lock_yield();
    stream->waiting.push_back(run);
    if (!to) run_all();
    return cudaSuccess;
}

bool emulated_is_capturing(cudaStream_t stream)
{
    emulated_call call;
    return real(stream)->capture != NULL;
}

void emulated_run_streams(void)
{
    run_all();
}

// Issues work on device memory. If memory is only counted, there is nothing to work on.
cudaError_t emulated_put(cudaStream_t to, std::function<void()> run)
{
    if (counting) return cudaSuccess;
    return emulated_put_waiting(to, [=] {
        run();
        return true;
    });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream_p, unsigned flags)
{
    emulated_call call;
    if (device >= n_visible()) return result(cudaErrorNoDevice);
    *stream_p = new CUstream_st();
    (*stream_p)->device = this_device();
    (*stream_p)->non_blocking = flags & cudaStreamNonBlocking;
    streams.push_back(*stream_p);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream_p, unsigned flags, int)
{
    return cudaStreamCreateWithFlags(stream_p, flags);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream_p)
{
    return cudaStreamCreateWithFlags(stream_p, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    emulated_call call;
    cudaError_t error = run_stream(stream);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == stream) streams.erase(streams.begin() + (long)i--);
    delete stream;
    return result(error);
}

// Returns true, and invalidates the capture, if a capture forbids a wait for `stream`.
static bool capture_forbids(CUstream_st *stream)
{
    if (!capturing && !(stream && stream->capture)) return false;
    if (stream && !stream->capture) return false; // waits for other streams are allowed
    (capturing ? capturing : stream)->capture_invalid = true;
    return true;
}

static cudaError_t run_every_stream(void)
{
    copies_arrive();
    cudaError_t error = run_stream(&default_stream);
    for (size_t i = 0; i < streams.size() && error == cudaSuccess; i++)
        error = run_stream(streams[i]);
    return error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    emulated_call call;
    if (capture_forbids(real(stream))) return result(cudaErrorStreamCaptureUnsupported);
    return result(stream ? run_stream(stream) : run_every_stream());
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    emulated_call call;
    if (capture_forbids(real(stream))) return result(cudaErrorStreamCaptureUnsupported);
    return poll_stream(real(stream)); // not ready is not recorded as an error
}

cudaError_t cudaDeviceSynchronize(void)
{
    emulated_call call;
    if (capture_forbids(NULL)) return result(cudaErrorStreamCaptureUnsupported);
    return result(run_every_stream());
}

// ---- copies ---------------------------------------------------------------------------------------------------------

// Returns true for pageable host memory. Copies from and to such memory are complete when they return.
static bool is_pageable(const void *at)
{
    return allocation_find(at) == allocations.end();
}

static void check_direction(const void *to, const void *from, enum cudaMemcpyKind kind)
{
    auto a = allocation_find(to), b = allocation_find(from);
    bool to_device = a != allocations.end() && a->second.device >= 0;
    bool from_device = b != allocations.end() && b->second.device >= 0;
    if (kind == cudaMemcpyDefault) return;
    if (to_device == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
        from_device == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice))
        return;
    fprintf(stderr, "cuda emulator: a copy from %s to %s memory has the wrong kind (%d)\n",
            from_device ? "device" : "host", to_device ? "device" : "host", (int)kind);
    abort();
}

// Copies from pageable to device memory, like cudaMemcpy: waits for the default stream and returns when the bytes have
// been read, not when they are on the device. Kernels in streams that do not wait for the default stream may run
// earlier.
static cudaError_t copy_staged(void *to, const void *from, size_t bytes)
{
    cudaError_t error = run_stream(&default_stream);
    if (error != cudaSuccess || counting) return result(error);
    auto staged = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
    copies_arrive();
    copies_under_way.push_back([=] {
        memcpy(to, staged->data(), bytes);
        return true;
    });
    return cudaSuccess;
}

static cudaError_t copy_rows(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes, size_t rows,
                             enum cudaMemcpyKind kind, cudaStream_t stream)
{
    emulated_call call;
    if (!bytes || !rows) return cudaSuccess;
    check_direction(to, from, kind);
    bool wait = is_pageable(to) || is_pageable(from);
    n_pageable_reads += kind == cudaMemcpyDeviceToHost && is_pageable(to);
    if (wait && capture_forbids(real(stream))) return result(cudaErrorStreamCaptureUnsupported);
    if (!stream && rows == 1 && is_pageable(from) && !is_pageable(to)) return copy_staged(to, from, bytes);
    cudaError_t error = emulated_put(stream, [=] {
        for (size_t r = 0; r < rows; r++)
            memcpy((char *)to + r * to_pitch, (const char *)from + r * from_pitch, bytes);
    });
    if (error != cudaSuccess || !wait) return error;
    return result(run_stream(real(stream)));
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    return copy_rows(to, bytes, from, bytes, bytes, 1, kind, stream);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    return copy_rows(to, bytes, from, bytes, bytes, 1, kind, NULL);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes, size_t rows,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
    if (bytes > to_pitch || bytes > from_pitch) return result(cudaErrorInvalidPitchValue);
    return copy_rows(to, to_pitch, from, from_pitch, bytes, rows, kind, stream);
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes, size_t rows,
                         enum cudaMemcpyKind kind)
{
    return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, bytes, rows, kind, NULL);
}

// Sets memory. Whole pages of zeros are returned to the system instead, which takes no time.
static void memory_set(void *to, int value, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)to, end = at + bytes;
    uintptr_t first = (at + page - 1) & ~(page - 1), last = end & ~(page - 1);
    if (value != 0 || first + FILLED > last || madvise((void *)first, last - first, MADV_DONTNEED) != 0)
        first = last = end;
    memset(to, value, first - at);
    memset((void *)last, value, end - last);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    emulated_call call;
    if (bytes && !emulated_is_device_memory(to, bytes)) return result(cudaErrorInvalidValue);
    return emulated_put(stream, [=] { memory_set(to, value, bytes); });
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    return cudaMemsetAsync(to, value, bytes, NULL);
}

cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t bytes, size_t rows, cudaStream_t stream)
{
    return emulated_put(stream, [=] {
        for (size_t r = 0; r < rows; r++)
            memset((char *)to + r * pitch, value, bytes);
    });
}

// ---- kernels --------------------------------------------------------------------------------------------------------

cudaError_t emulated_launch(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                            std::function<void()> body)
{
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 || !threads ||
        threads > 1024 || block.z > 64)
        return result(cudaErrorInvalidConfiguration);
    if (shared_bytes > SHARED_BYTES_MAX) return result(cudaErrorInvalidValue);
    return emulated_put(stream, [=] {
        emulated_launches++;
        emulated_run(kernel, grid, block, shared_bytes, body);
    });
}

// ---- events ---------------------------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event_p, unsigned)
{
    *event_p = new CUevent_st();
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event_p)
{
    return cudaEventCreateWithFlags(event_p, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    emulated_call call;
    cudaError_t error = run_all(); // pending operations may refer to the event
    delete event;
    return result(error);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t to)
{
    emulated_call call;
    CUstream_st *stream = real(to);
    event->stream = stream;
    event->capture = stream->capture;
    if (stream->capture) return cudaSuccess;
    uint64_t record = ++event->records;
    return emulated_put_waiting(to, [=] {
        if (record > event->reached) event->reached = record, event->clock = stream->run_us;
        return true;
    });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t to, unsigned)
{
    return cudaEventRecord(event, to);
}

// Runs all streams until the event is reached.
static cudaError_t poll_event(CUevent_st *event)
{
    while (!event->done() && advance_all(NULL))
        ;
    return lost ? cudaErrorLaunchFailure : event->done() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    emulated_call call;
    if (event->capture) return result(cudaErrorStreamCaptureUnsupported);
    cudaError_t error;
    while ((error = poll_event(event)) == cudaErrorNotReady)
        lock_yield();
    return result(error);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    emulated_call call;
    if (event->capture) return result(cudaErrorStreamCaptureUnsupported);
    return poll_event(event);
}

// Returns a time that is the same in every run: one microsecond per operation of the stream between the two events, and
// more per gemm.
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    emulated_call call;
    if (!start->done() || !end->done()) return result(cudaErrorNotReady);
    *ms = (float)(end->clock - start->clock) * 1e-3f;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t to, cudaEvent_t event, unsigned)
{
    emulated_call call;
    CUstream_st *stream = real(to);
    if (event->capture) { // the stream joins the capture
        if (stream->capture && stream->capture != event->capture) return result(cudaErrorStreamCaptureMerge);
        stream->capture = event->capture;
        return cudaSuccess;
    }
    if (stream->capture) return result(cudaErrorStreamCaptureIsolation);
    if (event->done() || event->stream == stream) return cudaSuccess;
    uint64_t record = event->records; // later records do not count
    return emulated_put_waiting(to, [=] { return event->reached >= record; });
}

// ---- graphs ---------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    emulated_call call;
    if (!stream || stream->capture) return result(cudaErrorStreamCaptureUnsupported);
    stream->capture = new CUgraph_st();
    stream->capture_origin = true;
    stream->capture_invalid = false;
    if (mode != cudaStreamCaptureModeRelaxed) capturing = stream;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph_p)
{
    emulated_call call;
    *graph_p = NULL;
    if (!stream || !stream->capture || !stream->capture_origin) return result(cudaErrorStreamCaptureUnmatched);
    CUgraph_st *graph = stream->capture;
    for (CUstream_st *other : streams)
        if (other->capture == graph) other->capture = NULL;
    stream->capture_origin = false;
    if (capturing == stream) capturing = NULL;
    if (stream->capture_invalid) {
        delete graph;
        return result(cudaErrorStreamCaptureInvalidated);
    }
    *graph_p = graph;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status_p)
{
    emulated_call call;
    *status_p = !real(stream)->capture          ? cudaStreamCaptureStatusNone
                : real(stream)->capture_invalid ? cudaStreamCaptureStatusInvalidated
                                                : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec_p, cudaGraph_t graph, unsigned long long)
{
    emulated_call call;
    if (!graph) return result(cudaErrorInvalidValue);
    if (fail_graph && --fail_graph == 0) return result(cudaErrorMemoryAllocation);
    *exec_p = new CUgraphExec_st{graph->operations};
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    emulated_call call;
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    emulated_call call;
    delete exec;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    emulated_call call;
    if (!exec || real(stream)->capture) return result(cudaErrorInvalidValue);
    n_graph_launches++;
    for (const operation &run : exec->operations) {
        cudaError_t error = emulated_put_waiting(stream, run);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *, size_t *count_p)
{
    emulated_call call;
    *count_p = graph->operations.size();
    return cudaSuccess;
}
