// SPDX-License-Identifier: Apache-2.0
// proto/fields: reading the text of a field from a packed message.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/messages/fields.h"
#include "tests/suite.h"

// Bytes that are not a message are never read beyond their end. The sanitizers check this.
START_TEST(noise_is_not_read_beyond_its_end)
{
    uint32_t state = 1;
    for (int round = 0; round < 20000; round++) {
        size_t size = (state >> 8) % 40;
        uint8_t *bytes = malloc(size ? size : 1);
        for (size_t i = 0; i < size; i++) {
            state = state * 1664525u + 1013904223u;
            bytes[i] = (uint8_t)(state >> 24);
        }
        state = state * 1664525u + 1013904223u;
        char text[8];
        proto_field_text(bytes, size, 1, text, sizeof text);
        free(bytes);
    }
}
END_TEST

static void ck_text(const char *bytes, size_t size, uint32_t number, size_t room, const char *wanted)
{
    char text[64];
    uint8_t *copy = mem_copy(bytes, size); // so that the sanitizers see every read beyond the end
    proto_field_text(copy, size, number, text, room);
    ck_assert_str_eq(text, wanted);
    free(copy);
}

START_TEST(the_text_of_a_field_is_found)
{
    // 1: "id", 8: 300 (varint), 3: fixed64, 4: fixed32, 9: "tenant", 9: "last"
    static const char bytes[] = "\x0a\x02id\x40\xac\x02\x19"
                                "12345678\x25"
                                "1234\x4a\x06tenant\x4a\x04last";
    size_t size = sizeof bytes - 1;
    ck_text(bytes, size, 1, 64, "id");
    ck_text(bytes, size, 9, 64, "last");
    ck_text(bytes, size, 9, 3, "la");
    ck_text(bytes, size, 2, 64, "");
    ck_text(bytes, size, 8, 64, "");
    ck_text(bytes, size - 6, 9, 64, "tenant");
    ck_text(bytes, size - 5, 9, 64, "tenant"); // cut inside a field
    ck_text("", 0, 1, 64, "");
}
END_TEST

SUITE("fields")
{
    TEST(noise_is_not_read_beyond_its_end);
    TEST(the_text_of_a_field_is_found);
}
