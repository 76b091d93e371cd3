// SPDX-License-Identifier: Apache-2.0
// Manages memory, budget and errors of a compilation or rendering.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/utf8.h"
#include "lib/jinja/value.h"

enum { BLOCK_BYTES = 1 << 14, BLOCK_BYTES_MAX = 1 << 20, ALIGNMENT = 16 };

struct heap_block {
    struct heap_block *next;
    size_t bytes;
    char data[] __attribute__((aligned(ALIGNMENT)));
};

void run_fail(struct run *run, const char *format, ...)
{
    va_list arguments;
    int n = run->line ? snprintf(run->sentence, sizeof run->sentence, "line %d: ", run->line) : 0;
    va_start(arguments, format);
    vsnprintf(run->sentence + n, sizeof run->sentence - (size_t)n, format, arguments);
    va_end(arguments);
    for (char *c = run->sentence; *c; c++) // the error message must be one line
        if (*c > 0 && *c < ' ') *c = ' ';
    size_t bad;
    // If the cut was inside a character, drop the part of the character.
    if (!utf8_valid(run->sentence, strlen(run->sentence), &bad)) run->sentence[bad] = 0;
    longjmp(run->jump, 1);
}

void run_spend(struct run *run, size_t steps)
{
    run->steps += steps;
    if (run->steps > run->limits.steps) run_fail(run, "the template takes more than %zu steps", run->limits.steps);
}

void run_enter(struct run *run)
{
    if (++run->depth > run->limits.depth) run_fail(run, "nested more than %d levels deep", run->limits.depth);
    run_spend(run, 1);
}

static void heap_count(struct run *run, size_t bytes)
{
    if (bytes > run->limits.memory_bytes - run->memory_bytes)
        run_fail(run, "the template needs more than %zu bytes of memory", run->limits.memory_bytes);
    run->memory_bytes += bytes;
}

static struct heap_block *block_new(struct run *run, size_t bytes)
{
    heap_count(run, sizeof(struct heap_block) + bytes);
    struct heap_block *block = mem_resize(NULL, 1, sizeof *block + bytes);
    *block = (struct heap_block){.next = run->blocks, .bytes = bytes};
    run->blocks = block;
    return block;
}

// Returns memory that is not zeroed.
static void *heap_take(struct run *run, size_t bytes)
{
    if (bytes > run->limits.memory_bytes) heap_count(run, SIZE_MAX);
    bytes = (bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
    if ((size_t)(run->end - run->at) < bytes) {
        if (bytes >= BLOCK_BYTES / 2) return block_new(run, bytes)->data; // has its own block
        size_t size = run->memory_bytes < BLOCK_BYTES ? BLOCK_BYTES : run->memory_bytes;
        if (size > BLOCK_BYTES_MAX) size = BLOCK_BYTES_MAX;
        run->at = block_new(run, size)->data;
        run->end = run->at + size;
    }
    void *at = run->at;
    run->at += bytes;
    return at;
}

void *heap_alloc(struct run *run, size_t bytes)
{
    return memset(heap_take(run, bytes), 0, bytes);
}

void *heap_array(struct run *run, size_t count, size_t size_bytes)
{
    if (count > run->limits.memory_bytes / size_bytes) heap_count(run, SIZE_MAX);
    return heap_alloc(run, count * size_bytes);
}

void *heap_grow(struct run *run, void *old, size_t old_bytes, size_t new_bytes)
{
    char *data;
    if (old && run->blocks->data == (char *)old && run->blocks->bytes >= BLOCK_BYTES / 2 && run->end != NULL &&
        !(run->end > run->blocks->data && run->end <= run->blocks->data + run->blocks->bytes)) {
        if (new_bytes > run->limits.memory_bytes) heap_count(run, SIZE_MAX);
        heap_count(run, new_bytes - run->blocks->bytes); // the newest block belongs to this array alone
        run->blocks = mem_resize(run->blocks, 1, sizeof(struct heap_block) + new_bytes);
        run->blocks->bytes = new_bytes;
        data = run->blocks->data;
    } else {
        data = heap_take(run, new_bytes);
        if (old_bytes) memcpy(data, old, old_bytes);
    }
    memset(data + old_bytes, 0, new_bytes - old_bytes);
    return data;
}

void run_fini(struct run *run)
{
    while (run->blocks) {
        struct heap_block *next = run->blocks->next;
        free(run->blocks);
        run->blocks = next;
    }
}
