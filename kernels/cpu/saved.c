// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/saved.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "kernels/cpu/cpu.h"

enum { FORMAT_VERSION = 1, ARRAY_ALIGNMENT = 4096, MAX_ENTRIES = 1 << 20 };

static const char magic[8] = {'F', 'P', 'W', 'E', 'I', 'G', 'H', 'T'};

// As in the file, in this machine's byte order: another order's version is unknown here.
struct head {
    char magic[8];
    uint32_t version, n_entries;
    char layout[48];
    uint64_t key, file_bytes, table_hash, head_hash; // the last is of all before it
};

struct entry {
    int64_t rows, columns;
    uint32_t kind, index; // of the weight; of the array in it
    uint64_t at, bytes;
};

struct saved {
    char *path, layout[48];
    uint64_t key;
    void *map; // NULL: nothing is taken from a file
    size_t map_bytes;
    uint32_t next; // entry
    bool complete; // all so far were taken
};

static uint64_t hash(const void *bytes, size_t n) // FNV-1a, 64 bits
{
    uint64_t state = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        state = (state ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return state;
}

// ---- reading --------------------------------------------------------------------------------------------------------

// NULL when the mapped file is one for this layout and key, whole; else what is wrong with it.
static const char *check(const struct saved *s)
{
    const struct head *head = s->map;
    if (s->map_bytes < sizeof *head || memcmp(head->magic, magic, sizeof magic) != 0) return "not a file of weights";
    if (head->version != FORMAT_VERSION) return "of another version";
    if (head->head_hash != hash(head, offsetof(struct head, head_hash))) return "its head is damaged";
    if (strncmp(head->layout, s->layout, sizeof head->layout) != 0) return "of another layout";
    if (head->key != s->key) return "of other weights";
    if (head->file_bytes != s->map_bytes) return "truncated or overlong";
    if (head->n_entries > MAX_ENTRIES) return "its table is damaged";
    size_t table_bytes = head->n_entries * sizeof(struct entry);
    if (table_bytes > s->map_bytes - sizeof *head || head->table_hash != hash(head + 1, table_bytes))
        return "its table is damaged";
    const struct entry *entries = (const struct entry *)(head + 1);
    for (uint32_t i = 0; i < head->n_entries; i++)
        if (entries[i].at % ARRAY_ALIGNMENT || entries[i].at > s->map_bytes ||
            entries[i].bytes > s->map_bytes - entries[i].at)
            return "its table points outside";
    return NULL;
}

static void unmap(struct saved *s)
{
    if (s->map) munmap(s->map, s->map_bytes);
    s->map = NULL;
}

static void map_file(struct saved *s)
{
    int fd = open(s->path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (fd < 0) {
        if (errno != ENOENT) log_warn("packed_weights_ignored path=%s: %s", s->path, strerror(errno));
        return;
    }
    const char *wrong = "not a regular file";
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
        s->map_bytes = (size_t)info.st_size;
        void *map = mmap(NULL, s->map_bytes, PROT_READ, MAP_SHARED, fd, 0);
        s->map = map == MAP_FAILED ? NULL : map;
        wrong = s->map ? check(s) : strerror(errno);
    }
    close(fd);
    if (wrong) {
        log_info("packed_weights_ignored path=%s: %s", s->path, wrong);
        unmap(s);
        return;
    }
    madvise(s->map, s->map_bytes, MADV_HUGEPAGE); // where the file system can: fewer faults now, fewer walks later
    log_info("packed_weights_used path=%s bytes=%zu", s->path, s->map_bytes);
}

struct saved *saved_open(const char *path, const char *layout, uint64_t key)
{
    struct saved *s = mem_alloc(sizeof *s);
    s->path = mem_string(path);
    snprintf(s->layout, sizeof s->layout, "%s", layout);
    s->key = key;
    map_file(s);
    s->complete = s->map != NULL;
    return s;
}

bool saved_found(const struct saved *s)
{
    return s->map != NULL;
}

void saved_close(struct saved *s)
{
    if (!s) return;
    unmap(s);
    free(s->path);
    free(s);
}

static bool fits(const struct entry *e, const struct weight *w, int index, size_t bytes)
{
    return e->rows == w->rows && e->columns == w->columns && e->kind == (uint32_t)w->kind * 2 + w->gate_up &&
           e->index == (uint32_t)index && e->bytes == bytes;
}

bool saved_take(struct saved *s, const struct weight *w, struct saved_array *arrays, int n)
{
    if (!s->complete) return false;
    const struct head *head = s->map;
    const struct entry *entries = (const struct entry *)(head + 1) + s->next;
    bool all = s->next + (uint32_t)n <= head->n_entries;
    for (int i = 0; i < n && all; i++)
        all = fits(&entries[i], w, i, arrays[i].bytes);
    if (!all) {
        log_warn("packed_weights_ignored path=%s: weight of %lld x %lld is another there", s->path, (long long)w->rows,
                 (long long)w->columns);
        return s->complete = false;
    }
    for (int i = 0; i < n; i++)
        arrays[i].data = (char *)s->map + entries[i].at;
    s->next += (uint32_t)n;
    return true;
}

// ---- writing --------------------------------------------------------------------------------------------------------

static bool write_all(int fd, const void *data, size_t bytes, uint64_t at)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const char *)data + done, bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

static uint64_t aligned(uint64_t at)
{
    return (at + ARRAY_ALIGNMENT - 1) / ARRAY_ALIGNMENT * ARRAY_ALIGNMENT;
}

// The head of a file of these weights and, behind it, its table; free() it.
static struct head *describe(const struct saved *s, const struct saved_weight *weights, int n)
{
    uint32_t n_entries = 0;
    for (int w = 0; w < n; w++)
        n_entries += (uint32_t)weights[w].n;
    size_t table_bytes = n_entries * sizeof(struct entry);
    struct head *head = mem_alloc(sizeof *head + table_bytes);
    struct entry *entry = (struct entry *)(head + 1);
    uint64_t at = aligned(sizeof *head + table_bytes);
    for (int w = 0; w < n; w++)
        for (int i = 0; i < weights[w].n; i++) {
            const struct weight *weight = weights[w].weight;
            *entry++ = (struct entry){
                weight->rows, weight->columns,           (uint32_t)weight->kind * 2 + weight->gate_up, (uint32_t)i,
                at,           weights[w].arrays[i].bytes};
            at = aligned(at + weights[w].arrays[i].bytes);
        }
    memcpy(head->magic, magic, sizeof magic);
    memcpy(head->layout, s->layout, sizeof head->layout);
    head->version = FORMAT_VERSION;
    head->n_entries = n_entries;
    head->key = s->key;
    head->file_bytes = at;
    head->table_hash = hash(head + 1, table_bytes);
    head->head_hash = hash(head, offsetof(struct head, head_hash));
    return head;
}

static bool write_file(int fd, const struct head *head, const struct saved_weight *weights, int n)
{
    const struct entry *entry = (const struct entry *)(head + 1);
    bool ok = write_all(fd, head, sizeof *head + head->n_entries * sizeof *entry, 0);
    for (int w = 0; w < n; w++)
        for (int i = 0; i < weights[w].n && ok; i++, entry++)
            ok = write_all(fd, weights[w].arrays[i].data, entry->bytes, entry->at);
    return ok && ftruncate(fd, (off_t)head->file_bytes) == 0 && fdatasync(fd) == 0;
}

void saved_write(struct saved *s, const struct saved_weight *weights, int n)
{
    if (s->complete) return;
    int64_t from_us = clock_now_us();
    struct head *head = describe(s, weights, n);
    char *temporary = mem_format("%s.%d", s->path, (int)getpid());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    bool ok = fd >= 0 && write_file(fd, head, weights, n);
    int error = errno;
    if (fd >= 0) close(fd);
    if (ok && rename(temporary, s->path) != 0) {
        ok = false;
        error = errno;
    }
    if (ok) {
        log_info("packed_weights_saved path=%s bytes=%llu ms=%.0f", s->path, (unsigned long long)head->file_bytes,
                 (double)(clock_now_us() - from_us) / 1000);
    } else {
        log_warn("packed_weights_not_saved path=%s: %s", s->path, strerror(error));
        if (fd >= 0) unlink(temporary);
    }
    free(temporary);
    free(head);
}
