// SPDX-License-Identifier: Apache-2.0
// A packed weight cache: any file, with the right hashes and length unless the first byte says otherwise. Found arrays
// lie inside the file, and a found prefetch is inside its bounds.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/packed_cache.h"
#include "lib/base/invariant.h"
#include "lib/base/log.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_folder.h"

enum { FILE_MAX = 3 * 4096, KEY = 7, MACHINE = 5, KEEP_HASHES = 1, KEEP_IDENTITY = 2 };

// The layout of packed_cache.c.
struct header {
    char magic[8];
    uint32_t version, n_entries;
    char layout[48];
    uint64_t key, file_bytes, table_hash, header_hash;
    struct {
        uint64_t machine;
        uint32_t target, ahead_bytes;
        uint64_t hash;
    } measured;
};
enum { ENTRY_BYTES = 40 };

static uint64_t fnv1a(const void *bytes, size_t n)
{
    uint64_t state = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        state = (state ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return state;
}

static void mend_header(uint8_t *file, size_t n, int keep)
{
    struct header *header = (void *)file;
    if (!(keep & KEEP_IDENTITY)) {
        memcpy(header->magic, "FPWEIGHT", 8);
        header->version = 2;
        snprintf(header->layout, sizeof header->layout, "fuzz");
        header->key = KEY;
        header->file_bytes = n;
        header->measured.machine = MACHINE;
    }
    if (keep & KEEP_HASHES) return;
    size_t table_bytes = (size_t)header->n_entries * ENTRY_BYTES;
    if (table_bytes <= n - sizeof *header) header->table_hash = fnv1a(header + 1, table_bytes);
    header->header_hash = fnv1a(header, offsetof(struct header, header_hash));
    header->measured.hash =
        fnv1a(&header->measured, offsetof(struct header, measured.hash) - offsetof(struct header, measured));
}

static void look_up(struct packed_cache *cache)
{
    static const size_t sizes[] = {0, 64, 4096};
    const struct weight w = {.kind = 0, .rows = 2, .columns = 3};
    for (int k = 0; k < 3; k++) {
        struct packed_array arrays[2] = {{NULL, sizes[k]}, {NULL, 16}};
        if (!packed_cache_lookup(cache, &w, arrays, 1 + k % 2)) continue;
        for (int i = 0; i < 1 + k % 2; i++) {
            const volatile uint8_t *bytes = arrays[i].data;
            for (size_t at = 0; at < arrays[i].bytes; at++)
                (void)bytes[at];
        }
    }
}

static void look_up_prefetch(struct packed_cache *cache)
{
    static const struct stream_prefetch kept = {STREAM_INTO_L2, 640};
    struct stream_prefetch found;
    if (packed_cache_prefetch(cache, MACHINE, &found))
        INVARIANT(found.target < STREAM_TARGETS && found.ahead_bytes >= 0 && found.ahead_bytes <= STREAM_AHEAD_MAX &&
                      found.ahead_bytes % 64 == 0,
                  "prefetch %d, %d bytes ahead", (int)found.target, found.ahead_bytes);
    packed_cache_keep_prefetch(cache, MACHINE + 1, &kept);
    if (packed_cache_prefetch(cache, MACHINE + 1, &found))
        INVARIANT(found.target == kept.target && found.ahead_bytes == kept.ahead_bytes,
                  "the kept prefetch differs from the saved one");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint64_t file[FILE_MAX / sizeof(uint64_t)];
    static char path[128];
    struct fuzz_script script = {data, size};
    int keep = fuzz_byte(&script);
    size_t n = script.left + 512 * (size_t)fuzz_byte(&script) % 8192;
    log_setup("fuzz", LOG_ERROR);
    if (n < sizeof(struct header) || n > FILE_MAX) return 0;
    memset(file, 0, sizeof file);
    memcpy(file, script.at, script.left);
    mend_header((uint8_t *)file, n, keep);
    fuzz_folder_put("cache", (const uint8_t *)file, n);
    snprintf(path, sizeof path, "%s/cache", fuzz_folder());
    struct packed_cache *cache = packed_cache_open(path, "fuzz", KEY);
    if (packed_cache_hit(cache)) {
        look_up_prefetch(cache);
        look_up(cache);
    }
    packed_cache_close(cache);
    return 0;
}
