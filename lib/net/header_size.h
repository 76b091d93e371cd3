// SPDX-License-Identifier: Apache-2.0
// Computes the decoded size of HTTP/2 header blocks (HPACK, RFC 7541) without decoding them. It keeps only sizes, so
// each encoded byte costs the same few operations, even if it refers to a large header. Private to net/.
//
// A block may arrive in pieces of any size. The size of a header is defined in RFC 7541, 4.1: name, value and 32 bytes.
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

// The state of one direction of a connection.
struct header_counter {
    size_t max_bytes; // largest decoded size of a block
    int max_headers;

    // the dynamic table, a ring
    struct header_entry entries[HEADER_TABLE_ENTRIES];
    int first, n; // the newest entry and the number of entries
    size_t table_bytes, table_max;

    // the block
    size_t bytes; // decoded bytes of the block so far
    int n_headers, n_updates;

    // the header
    uint8_t state;
    bool number_open; // more bytes of a number follow
    bool indexed;     // the header enters the dynamic table
    bool huffman;
    uint64_t number;
    int shift;       // bits read of `number`
    size_t left;     // encoded bytes of the string not yet read
    size_t length;   // decoded bytes of the string so far
    size_t name;     // decoded bytes of the name
    uint64_t window; // bits of an incomplete Huffman code, in the lowest places
    int window_bits;
};

void header_counter_init(struct header_counter *c, size_t max_bytes, int max_headers);
void header_block_start(struct header_counter *c);
// Adds the next bytes of the block. After any result other than HEADER_OK the counter must not be used again.
enum header_found header_block_add(struct header_counter *c, const uint8_t *bytes, size_t size);
// Ends the block. Returns HEADER_BAD if the block ends within a header.
enum header_found header_block_end(struct header_counter *c);
