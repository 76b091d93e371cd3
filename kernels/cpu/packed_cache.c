// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/packed_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "lib/base/clock.h"
#include "lib/base/fnv.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/new_file.h"

enum { FORMAT_VERSION = 2, ARRAY_ALIGNMENT = 4096, MAX_ENTRIES = 1 << 20 };

static const char magic[8] = {'F', 'P', 'W', 'E', 'I', 'G', 'H', 'T'};

// Fastest way for one machine to stream the weights of this file.
struct measured {
    uint64_t machine;
    uint32_t target, ahead_bytes;
    uint64_t hash; // hash of the members above
};

// Header of the file, in this machine's byte order. A file of the other byte order has an unknown version.
struct header {
    char magic[8];
    uint32_t version, n_entries;
    char layout[48];
    uint64_t key, file_bytes, table_hash, header_hash; // header_hash covers all earlier members
    struct measured measured;                          // zeros in a new file
};

struct entry {
    int64_t rows, columns;
    uint32_t kind, index; // kind of the weight; index of the array in the weight
    uint64_t at, bytes;
};

struct packed_cache {
    char *path, layout[48];
    uint64_t key;
    void *map; // NULL if there is no matching file
    size_t map_bytes;
    dev_t device; // device and inode of the mapped file
    ino_t inode;
    uint32_t next; // next entry of the table
    bool complete; // every weight so far came from the file
};

// ---- reading --------------------------------------------------------------------------------------------------------

// Returns NULL if the mapped file matches layout and key and is whole, else the reason.
static const char *cache_check(const struct packed_cache *s)
{
    const struct header *header = s->map;
    if (s->map_bytes < sizeof *header || memcmp(header->magic, magic, sizeof magic) != 0)
        return "not a packed weight cache";
    if (header->version != FORMAT_VERSION) return "another format version";
    if (header->header_hash != fnv1a(FNV_START, header, offsetof(struct header, header_hash)))
        return "its header is damaged";
    if (strncmp(header->layout, s->layout, sizeof header->layout) != 0) return "packed in another layout";
    if (header->key != s->key) return "made from another checkpoint";
    if (header->file_bytes != s->map_bytes) return "its length differs from the header";
    if (header->n_entries > MAX_ENTRIES) return "its table is damaged";
    size_t table_bytes = header->n_entries * sizeof(struct entry);
    if (table_bytes > s->map_bytes - sizeof *header || header->table_hash != fnv1a(FNV_START, header + 1, table_bytes))
        return "its table is damaged";
    const struct entry *entries = (const struct entry *)(header + 1);
    for (uint32_t i = 0; i < header->n_entries; i++)
        if (entries[i].at % ARRAY_ALIGNMENT || entries[i].at > s->map_bytes ||
            entries[i].bytes > s->map_bytes - entries[i].at)
            return "its table points outside the file";
    return NULL;
}

static void cache_unmap(struct packed_cache *s)
{
    if (s->map) munmap(s->map, s->map_bytes);
    s->map = NULL;
}

static void cache_map(struct packed_cache *s)
{
    const char *wrong;
    int fd = cache_file_open(s->path, true, &wrong);
    struct stat info;
    if (fd < 0) {
        if (wrong) log_event(LOG_WARN, "packed_cache_ignored", LOG_FIELD("path", s->path), LOG_FIELD("reason", wrong));
        return;
    }
    wrong = "it is empty";
    if (fstat(fd, &info) == 0 && info.st_size > 0) {
        s->map_bytes = (size_t)info.st_size;
        s->device = info.st_dev;
        s->inode = info.st_ino;
        void *map = mmap(NULL, s->map_bytes, PROT_READ, MAP_SHARED, fd, 0);
        s->map = map == MAP_FAILED ? NULL : map;
        wrong = s->map ? cache_check(s) : strerror(errno);
    }
    close(fd);
    if (wrong) {
        log_event(LOG_INFO, "packed_cache_ignored", LOG_FIELD("path", s->path), LOG_FIELD("reason", wrong));
        cache_unmap(s);
        return;
    }
    madvise(s->map, s->map_bytes,
            MADV_HUGEPAGE); // fewer page faults and page table walks, if the file system supports it
    log_event(LOG_INFO, "packed_cache_used", LOG_FIELD("path", s->path), LOG_FIELD("bytes", s->map_bytes));
}

struct packed_cache *packed_cache_open(const char *path, const char *layout, uint64_t key)
{
    struct packed_cache *s = mem_alloc(sizeof *s);
    s->path = mem_string(path);
    snprintf(s->layout, sizeof s->layout, "%s", layout);
    s->key = key;
    cache_map(s);
    s->complete = s->map != NULL;
    return s;
}

bool packed_cache_hit(const struct packed_cache *s)
{
    return s->map != NULL;
}

void *packed_cache_map(const struct packed_cache *s, size_t *bytes_p)
{
    *bytes_p = s && s->map ? s->map_bytes : 0;
    return s ? s->map : NULL;
}

void packed_cache_close(struct packed_cache *s)
{
    if (!s) return;
    cache_unmap(s);
    free(s->path);
    free(s);
}

static bool entry_matches(const struct entry *e, const struct weight *w, int index, size_t bytes)
{
    return e->rows == w->rows && e->columns == w->columns && e->kind == (uint32_t)w->kind * 2 + w->gate_up &&
           e->index == (uint32_t)index && e->bytes == bytes;
}

int packed_cache_next(const struct packed_cache *s, size_t bytes[PACKED_ARRAYS])
{
    if (!s->complete) return 0;
    const struct header *header = s->map;
    const struct entry *entries = (const struct entry *)(header + 1) + s->next;
    int n = 0;
    for (; n < PACKED_ARRAYS && s->next + (uint32_t)n < header->n_entries && entries[n].index == (uint32_t)n; n++)
        bytes[n] = entries[n].bytes;
    return n;
}

bool packed_cache_lookup(struct packed_cache *s, const struct weight *w, struct packed_array *arrays, int n)
{
    if (!s->complete) return false;
    const struct header *header = s->map;
    const struct entry *entries = (const struct entry *)(header + 1) + s->next;
    bool all = s->next + (uint32_t)n <= header->n_entries;
    for (int i = 0; i < n && all; i++)
        all = entry_matches(&entries[i], w, i, arrays[i].bytes);
    if (!all) {
        log_event(LOG_WARN, "packed_cache_ignored", LOG_FIELD("path", s->path),
                  LOG_FIELD("reason", "a weight has another shape in the file"), LOG_FIELD("rows", w->rows),
                  LOG_FIELD("columns", w->columns));
        return s->complete = false;
    }
    for (int i = 0; i < n; i++)
        arrays[i].data = (char *)s->map + entries[i].at;
    s->next += (uint32_t)n;
    return true;
}

void packed_cache_refuse(struct packed_cache *s, const char *reason)
{
    log_event(LOG_WARN, "packed_cache_ignored", LOG_FIELD("path", s->path), LOG_FIELD("reason", reason));
    s->complete = false;
}

static uint64_t measured_hash(const struct measured *m)
{
    return fnv1a(FNV_START, m, offsetof(struct measured, hash));
}

bool packed_cache_prefetch(const struct packed_cache *s, uint64_t machine, struct stream_prefetch *prefetch_p)
{
    if (!s->map) return false;
    struct measured m = ((const struct header *)s->map)->measured; // a copy: another process may write it meanwhile
    if (m.hash != measured_hash(&m) || m.machine != machine) return false;
    if (m.target >= STREAM_TARGETS || m.ahead_bytes > STREAM_AHEAD_MAX || m.ahead_bytes % 64) return false;
    *prefetch_p = (struct stream_prefetch){(enum stream_target)m.target, (int)m.ahead_bytes};
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

void packed_cache_keep_prefetch(struct packed_cache *s, uint64_t machine, const struct stream_prefetch *prefetch)
{
    if (!s->complete) return;
    struct measured m = {machine, (uint32_t)prefetch->target, (uint32_t)prefetch->ahead_bytes, 0};
    m.hash = measured_hash(&m);
    int fd = open(s->path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return; // for example if the folder is read-only: each start measures
    struct stat info;
    if (fstat(fd, &info) == 0 && info.st_dev == s->device && info.st_ino == s->inode)
        write_all(fd, &m, sizeof m, offsetof(struct header, measured));
    close(fd);
}

static uint64_t align_up(uint64_t at)
{
    return (at + ARRAY_ALIGNMENT - 1) / ARRAY_ALIGNMENT * ARRAY_ALIGNMENT;
}

// Returns header and table of a file of these weights. The caller frees it.
static struct header *header_create(const struct packed_cache *s, const struct packed_weight *weights, int n)
{
    uint32_t n_entries = 0;
    for (int w = 0; w < n; w++)
        n_entries += (uint32_t)weights[w].n;
    size_t table_bytes = n_entries * sizeof(struct entry);
    struct header *header = mem_alloc(sizeof *header + table_bytes);
    struct entry *entry = (struct entry *)(header + 1);
    uint64_t at = align_up(sizeof *header + table_bytes);
    for (int w = 0; w < n; w++)
        for (int i = 0; i < weights[w].n; i++) {
            const struct weight *weight = weights[w].weight;
            *entry++ = (struct entry){
                weight->rows, weight->columns,           (uint32_t)weight->kind * 2 + weight->gate_up, (uint32_t)i,
                at,           weights[w].arrays[i].bytes};
            at = align_up(at + weights[w].arrays[i].bytes);
        }
    memcpy(header->magic, magic, sizeof magic);
    memcpy(header->layout, s->layout, sizeof header->layout);
    header->version = FORMAT_VERSION;
    header->n_entries = n_entries;
    header->key = s->key;
    header->file_bytes = at;
    header->table_hash = fnv1a(FNV_START, header + 1, table_bytes);
    header->header_hash = fnv1a(FNV_START, header, offsetof(struct header, header_hash));
    return header;
}

static bool write_file(int fd, const struct header *header, const struct packed_weight *weights, int n)
{
    const struct entry *entry = (const struct entry *)(header + 1);
    bool ok = write_all(fd, header, sizeof *header + header->n_entries * sizeof *entry, 0);
    for (int w = 0; w < n; w++)
        for (int i = 0; i < weights[w].n && ok; i++, entry++)
            ok = write_all(fd, weights[w].arrays[i].data, entry->bytes, entry->at);
    return ok && ftruncate(fd, (off_t)header->file_bytes) == 0;
}

void packed_cache_write(struct packed_cache *s, const struct packed_weight *weights, int n)
{
    if (s->complete) return;
    int64_t from_us = clock_now_us();
    struct header *header = header_create(s, weights, n);
    struct new_file file;
    new_file_remove_leftovers(s->path); // a killed start leaves a file as large as the weights
    enum status status = new_file_open(&file, s->path);
    if (status == STATUS_OK && write_file(file.fd, header, weights, n)) {
        new_file_share(&file); // threads that create files start after models are opened
        status = new_file_commit(&file);
    } else if (status == STATUS_OK) {
        status = status_fail(STATUS_INVALID, "%s", strerror(errno));
        new_file_discard(&file);
    }
    if (status == STATUS_OK) {
        log_event(LOG_INFO, "packed_cache_written", LOG_FIELD("path", s->path), LOG_FIELD("bytes", header->file_bytes),
                  LOG_MS("ms", clock_now_us() - from_us));
    } else {
        log_event(LOG_WARN, "packed_cache_write_failed", LOG_FIELD("path", s->path), LOG_REASON);
    }
    free(header);
}
