// SPDX-License-Identifier: Apache-2.0
// Counts what header blocks of HTTP/2 decode to (HPACK, RFC 7541), without decoding them: sizes alone are kept, so that
// a byte costs the same few operations whatever it stands for. Private to net/.
//
// A block may come in any pieces. Sizes are those of RFC 7541, 4.1: name, value, and 32 bytes for each header.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HEADER_OVERHEAD_BYTES = 32,
    HEADER_TABLE_BYTES = 4096,
    HEADER_TABLE_ENTRIES = HEADER_TABLE_BYTES / HEADER_OVERHEAD_BYTES,
};

enum header_found { HEADER_OK, HEADER_TOO_LARGE, HEADER_TOO_MANY, HEADER_BAD };

struct header_entry {
    uint16_t name, value; // sizes in bytes
};

// The state of one direction of a connection. All zeros but for what header_counter_init() sets.
struct header_counter {
    size_t max_bytes; // of a block
    int max_headers;

    // the dynamic table, a ring
    struct header_entry entries[HEADER_TABLE_ENTRIES];
    int first, n; // the newest entry and the number of entries
    size_t table_bytes, table_max;

    // the block
    size_t bytes; // decoded so far
    int n_headers, n_updates;

    // the header
    uint8_t state;
    bool number_open; // more bytes of a number follow
    bool indexed;     // it enters the table
    bool huffman;
    uint64_t number;
    int shift;       // bits of `number` that have come
    size_t left;     // encoded bytes of the string that have not come
    size_t length;   // decoded bytes of the string so far
    size_t name;     // decoded bytes of the name
    uint64_t window; // bits of a Huffman code that has not come whole, in the lowest places
    int window_bits;
};

void header_counter_init(struct header_counter *c, size_t max_bytes, int max_headers);
void header_block_start(struct header_counter *c);
// The next bytes of the block. After another result than HEADER_OK the counter is of no more use.
enum header_found header_block_add(struct header_counter *c, const uint8_t *bytes, size_t size);
// HEADER_BAD: the block ends within a header.
enum header_found header_block_end(struct header_counter *c);
