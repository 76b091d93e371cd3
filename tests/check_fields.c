// SPDX-License-Identifier: Apache-2.0
// proto/fields: counting the fields of a message before it is unpacked.
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "proto/fields.h"
#include "proto/forepack/v1/inference.pb-c.h"

static const ProtobufCMessageDescriptor *const kind = &forepack__v1__generate_request__descriptor;

static void ck_fields(const uint8_t *bytes, size_t size, size_t fields)
{
    ck_assert(proto_fields_at_most(kind, bytes, size, fields));
    ck_assert(fields == 0 || !proto_fields_at_most(kind, bytes, size, fields - 1));
}

START_TEST(fields_of_sub_messages_count)
{
    uint32_t ids[] = {1, 2, 300};
    Forepack__V1__TokenRange range = FOREPACK__V1__TOKEN_RANGE__INIT, *pinned[] = {&range, &range};
    range.first = 1;
    range.last = 2;
    Forepack__V1__PrefillOptions prefill = FOREPACK__V1__PREFILL_OPTIONS__INIT;
    prefill.pinned = pinned;
    prefill.n_pinned = 2;
    prefill.keep_rate_given_case = FOREPACK__V1__PREFILL_OPTIONS__KEEP_RATE_GIVEN_KEEP_RATE;
    Forepack__V1__GenerateRequest request = FOREPACK__V1__GENERATE_REQUEST__INIT;
    request.token_ids = ids; // packed: one field
    request.n_token_ids = 3;
    request.priority = -1; // ten bytes of varint
    request.prefill = &prefill;
    uint8_t bytes[256];
    size_t size = forepack__v1__generate_request__pack(&request, bytes);
    ck_fields(bytes, size, 1 + 1 + 1 + 1 + 2 + 2 * 2);
    ck_fields(bytes, 0, 0);
}
END_TEST

START_TEST(every_empty_sub_message_counts)
{
    size_t size = (size_t)1 << 22;
    uint8_t *bytes = malloc(size);
    for (size_t i = 0; i < size; i += 2)
        memcpy(bytes + i, "\x2a", 2); // field `messages`, an empty one
    ck_fields(bytes, size, size / 2);
    memcpy(bytes, "\x3a\xfa\xff\xff\x01", 5); // field `prefill` around all the rest
    for (size_t i = 5; i + 1 < size; i += 2)
        memcpy(bytes + i, "\x3a", 2); // field `pinned`, an empty one
    ck_assert(!proto_fields_at_most(kind, bytes, size - 1, 1000));
    memcpy(bytes, "\x1a", 1); // as field `text` it is one field
    ck_assert(proto_fields_at_most(kind, bytes, size, 1000));
    free(bytes);
}
END_TEST

// Malformed bytes pass, and are never read beyond their end (checked by the sanitizers).
START_TEST(broken_bytes_are_left_to_unpacking)
{
    static const char *const broken[] = {
        "\x2a",     "\x2a\x05x",    "\x2a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x0b",
        "\x0d\x01", "\x09\x01\x02", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        uint8_t *bytes = mem_copy(broken[i], strlen(broken[i]));
        ck_assert(proto_fields_at_most(kind, bytes, strlen(broken[i]), 10));
        free(bytes);
    }
    uint32_t state = 1;
    for (int round = 0; round < 20000; round++) {
        size_t size = (state >> 8) % 40;
        uint8_t *bytes = malloc(size + 1);
        for (size_t i = 0; i < size; i++) {
            state = state * 1664525u + 1013904223u;
            bytes[i] = (uint8_t)(state >> 24);
        }
        state = state * 1664525u + 1013904223u;
        bytes = realloc(bytes, size ? size : 1);
        ck_assert(proto_fields_at_most(kind, bytes, size, 41));
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

int main(void)
{
    Suite *suite = suite_create("fields");
    TCase *tcase = tcase_create("fields");
    tcase_add_test(tcase, fields_of_sub_messages_count);
    tcase_add_test(tcase, every_empty_sub_message_counts);
    tcase_add_test(tcase, broken_bytes_are_left_to_unpacking);
    tcase_add_test(tcase, the_text_of_a_field_is_found);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
