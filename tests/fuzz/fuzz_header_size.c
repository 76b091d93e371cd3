// SPDX-License-Identifier: Apache-2.0
// Fuzzes the counter of HPACK sizes. The first byte is the size of the pieces, the second byte the size of the blocks.
// The blocks share a table. The result must be the same as for blocks that arrive in one piece.
#include "lib/net/header_size.h"

#include <string.h>

#include "tests/fuzz/fuzz.h"

enum { BLOCK_BYTES = 5000, HEADERS = 40 };

static enum header_found block_add(struct header_counter *c, const uint8_t *bytes, size_t size, size_t piece)
{
    enum header_found found = HEADER_OK;
    header_block_start(c);
    for (size_t at = 0; at < size && found == HEADER_OK; at += piece) {
        found = header_block_add(c, bytes + at, size - at < piece ? size - at : piece);
        FUZZ_CHECK(found != HEADER_OK || (c->bytes <= BLOCK_BYTES && c->n_headers <= HEADERS));
        FUZZ_CHECK(c->table_bytes <= c->table_max && c->table_max <= HEADER_TABLE_BYTES);
    }
    return found == HEADER_OK ? header_block_end(c) : found;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct header_counter whole, parts;
    if (size < 2) return 0;
    size_t piece = data[0] % 16 + 1u, n_block = data[1] + 1u;
    header_counter_init(&whole, BLOCK_BYTES, HEADERS);
    header_counter_init(&parts, BLOCK_BYTES, HEADERS);
    for (size_t at = 2; at < size; at += n_block) {
        size_t n = size - at < n_block ? size - at : n_block;
        enum header_found found = block_add(&whole, data + at, n, n);
        FUZZ_CHECK(found == block_add(&parts, data + at, n, piece));
        if (found != HEADER_OK) return 0;
        FUZZ_CHECK(whole.bytes == parts.bytes && whole.table_bytes == parts.table_bytes && whole.n == parts.n);
    }
    return 0;
}
