// SPDX-License-Identifier: Apache-2.0
// See fields.h. In the wire format each field is a key (a varint: field number and wire type) and a value whose length
// depends on the wire type.
#include "lib/messages/fields.h"

#include <stdbool.h>
#include <string.h>

enum { TYPE_VARINT = 0, TYPE_64_BIT = 1, TYPE_BYTES = 2, TYPE_32_BIT = 5 };

struct reader {
    const uint8_t *at, *end;
};

static bool read_varint(struct reader *r, uint64_t *value_p)
{
    *value_p = 0;
    for (int shift = 0; shift < 64 && r->at < r->end; shift += 7) {
        uint8_t byte = *r->at++;
        *value_p |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

static bool skip_bytes(struct reader *r, uint64_t size)
{
    if (size > (uint64_t)(r->end - r->at)) return false;
    r->at += size;
    return true;
}

// Reads one field. The value of a field of bytes is [*value_p, *value_p + *size_p). For other fields *value_p is NULL.
// Returns false at the end or if the field is malformed.
static bool read_field(struct reader *r, uint64_t *number_p, const uint8_t **value_p, uint64_t *size_p)
{
    uint64_t key, value;
    if (!read_varint(r, &key)) return false;
    *number_p = key >> 3;
    *value_p = NULL;
    switch (key & 7) {
    case TYPE_VARINT: return read_varint(r, &value);
    case TYPE_64_BIT: return skip_bytes(r, 8);
    case TYPE_32_BIT: return skip_bytes(r, 4);
    case TYPE_BYTES:
        if (!read_varint(r, size_p)) return false;
        *value_p = r->at;
        return skip_bytes(r, *size_p);
    default: return false;
    }
}

void proto_field_text(const uint8_t *bytes, size_t size, uint32_t number, char *text, size_t room)
{
    enum { FIELDS_READ = 64 };
    struct reader r = {.at = bytes, .end = bytes + size};
    const uint8_t *value;
    uint64_t found, length = 0;
    *text = 0;
    for (int i = 0; i < FIELDS_READ && read_field(&r, &found, &value, &length); i++) {
        if (found != number || !value) continue;
        size_t n = length < room ? (size_t)length : room - 1;
        memcpy(text, value, n);
        text[n] = 0;
    }
}
