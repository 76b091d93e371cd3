// SPDX-License-Identifier: Apache-2.0
#include "lib/net/header_size.h"

// --- the static table (RFC 7541, appendix A)

enum { STATIC_ENTRIES = 61, INTEGER_BITS_MAX = 28, UPDATES_MAX = 2 };

static const struct header_entry static_entries[STATIC_ENTRIES + 1] = {
    {0, 0},  {10, 0}, {7, 3},  {7, 4},  {5, 1},  {5, 11},  {7, 4},  {7, 5},  {7, 3},  {7, 3},  {7, 3},
    {7, 3},  {7, 3},  {7, 3},  {7, 3},  {14, 0}, {15, 13}, {15, 0}, {13, 0}, {6, 0},  {27, 0}, {3, 0},
    {5, 0},  {13, 0}, {13, 0}, {19, 0}, {16, 0}, {16, 0},  {14, 0}, {16, 0}, {13, 0}, {12, 0}, {6, 0},
    {4, 0},  {4, 0},  {6, 0},  {7, 0},  {4, 0},  {4, 0},   {8, 0},  {17, 0}, {13, 0}, {8, 0},  {19, 0},
    {13, 0}, {4, 0},  {8, 0},  {12, 0}, {18, 0}, {19, 0},  {5, 0},  {7, 0},  {7, 0},  {11, 0}, {6, 0},
    {10, 0}, {25, 0}, {17, 0}, {10, 0}, {4, 0},  {3, 0},   {16, 0},
};

// --- the dynamic table

static size_t entry_bytes(const struct header_entry *e)
{
    return (size_t)e->name + e->value + HEADER_OVERHEAD_BYTES;
}

static void table_evict(struct header_counter *c, size_t room)
{
    while (c->n && c->table_bytes + room > c->table_max)
        c->table_bytes -= entry_bytes(&c->entries[(c->first + --c->n) % HEADER_TABLE_ENTRIES]);
}

static void table_add(struct header_counter *c, size_t name, size_t value)
{
    size_t size = name + value + HEADER_OVERHEAD_BYTES;
    table_evict(c, size);
    if (size > c->table_max) return; // the table is empty now
    c->first = (c->first + HEADER_TABLE_ENTRIES - 1) % HEADER_TABLE_ENTRIES;
    c->entries[c->first] = (struct header_entry){(uint16_t)name, (uint16_t)value};
    c->table_bytes += size;
    c->n++;
}

static const struct header_entry *table_find(const struct header_counter *c, uint64_t index)
{
    if (index == 0 || index > STATIC_ENTRIES + (uint64_t)c->n) return NULL;
    if (index <= STATIC_ENTRIES) return &static_entries[index];
    return &c->entries[((size_t)c->first + index - STATIC_ENTRIES - 1) % HEADER_TABLE_ENTRIES];
}

// --- Huffman's code (appendix B): it is canonical, so the number of codes of each length defines it

enum { CODE_BITS_MIN = 5, CODE_BITS_MAX = 30 };

static const uint8_t codes_of_length[CODE_BITS_MAX + 1] = {
    [5] = 10, [6] = 26,  [7] = 32,  [8] = 6,   [10] = 5,  [11] = 3, [12] = 2,  [13] = 6,  [14] = 2,  [15] = 3, [19] = 3,
    [20] = 8, [21] = 13, [22] = 26, [23] = 29, [24] = 12, [25] = 4, [26] = 15, [27] = 19, [28] = 29, [30] = 4,
};

// Returns the length of the code at the start of the window, or 0 for an incomplete code. Sets `last` for the last
// code: it stands for the end of the string and must not occur.
static int code_bits(uint64_t window, int bits, bool *last)
{
    uint64_t first = 0; // smallest code of length n
    for (int n = CODE_BITS_MIN; n <= CODE_BITS_MAX && n <= bits; n++) {
        uint64_t code = window >> (bits - n) & ((1u << n) - 1);
        if (code < first + codes_of_length[n]) {
            *last = n == CODE_BITS_MAX && code == first + codes_of_length[n] - 1;
            return n;
        }
        first = (first + codes_of_length[n]) << 1;
    }
    return 0;
}

static enum header_found huffman_add(struct header_counter *c, uint8_t byte)
{
    bool last;
    c->window = c->window << 8 | byte;
    c->window_bits += 8;
    for (int n; (n = code_bits(c->window, c->window_bits, &last)) > 0; c->length++) {
        if (last) return HEADER_BAD;
        c->window_bits -= n;
        c->window &= ((uint64_t)1 << c->window_bits) - 1;
    }
    return HEADER_OK;
}

// Returns true if the remaining bits are valid padding: fewer than 8 bits, and only ones.
static bool huffman_ends(const struct header_counter *c)
{
    return c->window_bits < 8 && c->window == ((uint64_t)1 << c->window_bits) - 1;
}

// --- headers

enum {
    AWAIT_HEADER,
    AWAIT_INDEX,
    AWAIT_LITERAL_NAME,
    AWAIT_UPDATE,
    AWAIT_NAME_SIZE,
    AWAIT_NAME_SIZE_REST,
    AWAIT_NAME,
    AWAIT_VALUE_SIZE,
    AWAIT_VALUE_SIZE_REST,
    AWAIT_VALUE
};

static enum header_found count(struct header_counter *c, size_t bytes)
{
    c->bytes += bytes;
    return c->bytes > c->max_bytes ? HEADER_TOO_LARGE : HEADER_OK;
}

// Begins a header and counts its 32 bytes of overhead now, so that an unfinished header counts, too.
static enum header_found header_begin(struct header_counter *c)
{
    if (++c->n_headers > c->max_headers) return HEADER_TOO_MANY;
    return count(c, HEADER_OVERHEAD_BYTES);
}

static enum header_found index_end(struct header_counter *c)
{
    const struct header_entry *e = table_find(c, c->number);
    c->state = AWAIT_HEADER;
    return e ? count(c, (size_t)e->name + e->value) : HEADER_BAD;
}

static enum header_found literal_name_end(struct header_counter *c)
{
    c->state = AWAIT_NAME_SIZE;
    if (c->number == 0) return HEADER_OK;
    const struct header_entry *e = table_find(c, c->number);
    if (!e) return HEADER_BAD;
    c->name = e->name;
    c->state = AWAIT_VALUE_SIZE;
    return count(c, e->name);
}

static enum header_found update_end(struct header_counter *c)
{
    if (c->number > HEADER_TABLE_BYTES || c->n_headers || ++c->n_updates > UPDATES_MAX) return HEADER_BAD;
    c->table_max = (size_t)c->number;
    table_evict(c, 0);
    c->state = AWAIT_HEADER;
    return HEADER_OK;
}

static enum header_found string_end(struct header_counter *c)
{
    if (c->huffman && !huffman_ends(c)) return HEADER_BAD;
    if (c->state == AWAIT_NAME) {
        c->name = c->length;
        c->state = AWAIT_VALUE_SIZE;
        return HEADER_OK;
    }
    if (c->indexed) table_add(c, c->name, c->length);
    c->state = AWAIT_HEADER;
    return HEADER_OK;
}

static enum header_found string_begin(struct header_counter *c)
{
    c->state++; // the string follows its size
    c->left = (size_t)c->number;
    c->length = 0;
    c->window = 0;
    c->window_bits = 0;
    if (c->left == 0) return string_end(c);
    // Huffman's code has at most 30 bits for a byte. A string that must become too large is refused before it arrives.
    size_t least = c->huffman ? c->left * 8 / CODE_BITS_MAX : c->left;
    return c->bytes + least > c->max_bytes ? HEADER_TOO_LARGE : HEADER_OK;
}

static enum header_found number_end(struct header_counter *c)
{
    switch (c->state) {
    case AWAIT_INDEX: return index_end(c);
    case AWAIT_LITERAL_NAME: return literal_name_end(c);
    case AWAIT_UPDATE: return update_end(c);
    default: return string_begin(c);
    }
}

// Reads the first byte of a number. The number begins in the byte's lowest `bits` bits.
static enum header_found number_begin(struct header_counter *c, uint8_t byte, int bits)
{
    uint8_t most = (uint8_t)((1 << bits) - 1);
    c->number = byte & most;
    c->shift = 0;
    if (c->number < most) return number_end(c);
    c->number_open = true;
    return HEADER_OK;
}

static enum header_found number_add(struct header_counter *c, uint8_t byte)
{
    if (c->shift >= INTEGER_BITS_MAX) return HEADER_BAD;
    c->number += (uint64_t)(byte & 0x7f) << c->shift;
    c->shift += 7;
    if (byte & 0x80) return HEADER_OK;
    c->number_open = false;
    return number_end(c);
}

static enum header_found first_byte(struct header_counter *c, uint8_t byte)
{
    if ((byte & 0xe0) == 0x20) {
        c->state = AWAIT_UPDATE;
        return number_begin(c, byte, 5);
    }
    enum header_found found = header_begin(c);
    if (found != HEADER_OK) return found;
    if (byte & 0x80) {
        c->state = AWAIT_INDEX;
        return number_begin(c, byte, 7);
    }
    c->state = AWAIT_LITERAL_NAME;
    c->indexed = (byte & 0xc0) == 0x40;
    return number_begin(c, byte, c->indexed ? 6 : 4);
}

static enum header_found size_byte(struct header_counter *c, uint8_t byte)
{
    c->huffman = (byte & 0x80) != 0;
    c->state++; // AWAIT_..._SIZE_REST
    return number_begin(c, byte, 7);
}

// Reads the bytes of the string that have arrived and writes to `*taken_p` how many it used.
static enum header_found string_add(struct header_counter *c, const uint8_t *bytes, size_t size, size_t *taken_p)
{
    size_t n = size < c->left ? size : c->left, before = c->length;
    enum header_found found = HEADER_OK;
    *taken_p = n;
    c->left -= n;
    if (!c->huffman) c->length += n;
    for (size_t i = 0; c->huffman && i < n && found == HEADER_OK; i++)
        found = huffman_add(c, bytes[i]);
    if (found == HEADER_OK) found = count(c, c->length - before);
    return found == HEADER_OK && c->left == 0 ? string_end(c) : found;
}

// --- public

void header_counter_init(struct header_counter *c, size_t max_bytes, int max_headers)
{
    *c = (struct header_counter){.max_bytes = max_bytes, .max_headers = max_headers, .table_max = HEADER_TABLE_BYTES};
}

void header_block_start(struct header_counter *c)
{
    c->bytes = 0;
    c->n_headers = 0;
    c->n_updates = 0;
    c->number_open = false;
    c->state = AWAIT_HEADER;
}

enum header_found header_block_add(struct header_counter *c, const uint8_t *bytes, size_t size)
{
    enum header_found found = HEADER_OK;
    for (size_t i = 0, taken = 1; i < size && found == HEADER_OK; i += taken) {
        taken = 1;
        if (c->number_open)
            found = number_add(c, bytes[i]);
        else if (c->state == AWAIT_HEADER)
            found = first_byte(c, bytes[i]);
        else if (c->state == AWAIT_NAME || c->state == AWAIT_VALUE)
            found = string_add(c, bytes + i, size - i, &taken);
        else
            found = size_byte(c, bytes[i]);
    }
    return found;
}

enum header_found header_block_end(struct header_counter *c)
{
    return c->state == AWAIT_HEADER && !c->number_open ? HEADER_OK : HEADER_BAD;
}
