// SPDX-License-Identifier: Apache-2.0
// Preloaded before the C library (LD_PRELOAD), this counts the bytes that a process has allocated and not freed. The
// count is an int64_t in the file that HEAP_BYTES names. Resident memory would also include what glibc's malloc caches
// for each thread, and gaps between blocks. Both grow for half an hour and more under a constant load. Not for
// sanitizers.
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *block, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *block);

static _Atomic int64_t before_start; // bytes that the loader allocates
static _Atomic int64_t *bytes = &before_start;

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("HEAP_BYTES");
    int fd = path ? open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    unsetenv("LD_PRELOAD");
    if (fd < 0 || ftruncate(fd, sizeof *bytes) != 0) return;
    void *shared = mmap(NULL, sizeof *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (shared == MAP_FAILED) return;
    _Atomic int64_t *counter = shared;
    atomic_store(counter, before_start);
    bytes = counter;
}

static void *count(void *block)
{
    if (block) atomic_fetch_add_explicit(bytes, (int64_t)malloc_usable_size(block), memory_order_relaxed);
    return block;
}

static void uncount(void *block)
{
    if (block) atomic_fetch_sub_explicit(bytes, (int64_t)malloc_usable_size(block), memory_order_relaxed);
}

void *malloc(size_t size)
{
    return count(__libc_malloc(size));
}

void *calloc(size_t n, size_t size)
{
    return count(__libc_calloc(n, size));
}

void *realloc(void *block, size_t size)
{
    uncount(block);
    void *moved = __libc_realloc(block, size);
    if (!moved && size) count(block); // the allocation failed, so the block is as before
    return count(moved);
}

void *memalign(size_t alignment, size_t size)
{
    return count(__libc_memalign(alignment, size));
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return memalign(alignment, size);
}

int posix_memalign(void **block_p, size_t alignment, size_t size)
{
    void *block = memalign(alignment, size);
    if (!block) return ENOMEM;
    *block_p = block;
    return 0;
}

void free(void *block)
{
    uncount(block);
    __libc_free(block);
}
