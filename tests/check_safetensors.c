// SPDX-License-Identifier: Apache-2.0
// engine/model/safetensors.h: single and sharded files have the values that were written. Every kind of broken file is
// refused with its own sentence. Thousands of damaged headers lead to a status, never to a read outside the file.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/model/safetensors.h"
#include "lib/base/mem.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"

static char dir[64];

static void setup(void)
{
    strcpy(dir, "/tmp/forepack-safetensors-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void teardown(void)
{
    tiny_model_remove(mem_string(dir));
}

static void scratch_file_write(const char *name, const void *bytes, size_t n)
{
    char *path = mem_format("%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, n, file), n);
    fclose(file);
    free(path);
}

static void put_text(const char *name, const char *text)
{
    scratch_file_write(name, text, strlen(text));
}

// Writes a file with this header, length field `claimed`, and `data_bytes` bytes of data 0, 1, 2, ...
static void put_claiming(const char *name, const char *header, size_t data_bytes, uint64_t claimed)
{
    size_t header_bytes = strlen(header), n = 8 + header_bytes + data_bytes;
    unsigned char *bytes = mem_alloc(n);
    memcpy(bytes, &claimed, 8);
    memcpy(bytes + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++)
        bytes[8 + header_bytes + i] = (unsigned char)i;
    scratch_file_write(name, bytes, n);
    free(bytes);
}

static void put_tensors(const char *name, const char *header, size_t data_bytes)
{
    put_claiming(name, header, data_bytes, strlen(header));
}

static void refused(enum status status, const char *text)
{
    struct safetensors *st = NULL;
    enum status got = safetensors_open(dir, &st);
    ck_assert_msg(got == status, "wanted \"%s\", got %s: \"%s\"", text, status_name(got),
                  got == STATUS_OK ? "" : status_message());
    ck_assert_msg(strstr(status_message(), text) != NULL, "\"%s\" lacks \"%s\"", status_message(), text);
    ck_assert_msg(strstr(status_message(), dir) != NULL, "\"%s\" names no file", status_message());
}

static void refuse(const char *header, size_t data_bytes, const char *text)
{
    put_tensors("model.safetensors", header, data_bytes);
    refused(STATUS_DATA, text);
}

// Checks that every tensor of the checkpoint `spec` in `from` has the values that were written.
static void check_values(const struct tiny_model *spec, const char *from)
{
    struct safetensors *st;
    enum status status = safetensors_open(from, &st);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    int n;
    struct tiny_tensor *tensors = tiny_model_tensors(spec, &n);
    ck_assert_int_eq(safetensors_count(st), n);
    for (int i = 0; i < n; i++) {
        const struct safetensors_tensor *t = safetensors_find(st, tensors[i].name);
        ck_assert_ptr_nonnull(t);
        ck_assert_str_eq(t->dtype, "F32");
        ck_assert_int_eq(t->n_dims, tensors[i].rows ? 2 : 1);
        ck_assert_int_eq(t->shape[0], tensors[i].rows ? tensors[i].rows : tensors[i].columns);
        for (size_t e = 0; e < t->size_bytes / 4; e += 7) {
            float value;
            memcpy(&value, (const char *)t->data + 4 * e, 4);
            ck_assert_float_eq(value, tiny_model_value(spec, &tensors[i], e));
        }
        if (i) ck_assert_int_lt(strcmp(safetensors_at(st, i - 1)->name, safetensors_at(st, i)->name), 0);
    }
    ck_assert_ptr_null(safetensors_find(st, "model.nothing"));
    free(tensors);
    safetensors_close(st);
}

START_TEST(files_and_shards_hold_what_was_written)
{
    struct tiny_model spec = tiny_model_spec("qwen2");
    for (int shards = 1; shards <= 3; shards++) {
        spec.n_shards = shards;
        char *from = tiny_model_temp(&spec);
        check_values(&spec, from);
        tiny_model_remove(from);
    }
}
END_TEST

START_TEST(odd_but_valid_files_are_read)
{
    // Tensors out of order, empty tensors, scalars, unknown types, trailing blanks, metadata.
    put_tensors("model.safetensors",
                "{\"b\":{\"dtype\":\"F16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                "\"none\":{\"dtype\":\"F32\",\"shape\":[0,9223372036854775807,4],\"data_offsets\":[4,4]},"
                "\"new\":{\"dtype\":\"F4_E2M1\",\"shape\":[6],\"data_offsets\":[16,19]},"
                "\"__metadata__\":{\"format\":\"pt\"}}   ",
                19);
    struct safetensors *st;
    enum status status = safetensors_open(dir, &st);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    ck_assert_int_eq(safetensors_count(st), 4);
    const struct safetensors_tensor *b = safetensors_find(st, "b");
    ck_assert_uint_eq(((const unsigned char *)b->data)[0], 4);
    ck_assert_uint_eq(b->size_bytes, 12);
    char text[SAFETENSORS_SHAPE_TEXT];
    ck_assert_str_eq(safetensors_shape_text(b, text), "[2, 3]");
    ck_assert_str_eq(safetensors_shape_text(safetensors_find(st, "a"), text), "[]");
    ck_assert_str_eq(safetensors_find(st, "new")->dtype, "F4_E2M1");
    safetensors_close(st);

    put_tensors("model.safetensors", "{}", 0);
    ck_assert_int_eq(safetensors_open(dir, &st), STATUS_OK);
    ck_assert_int_eq(safetensors_count(st), 0);
    ck_assert_ptr_null(safetensors_find(st, "a"));
    safetensors_close(st);
}
END_TEST

#define A(offsets) "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":" offsets "}}"

START_TEST(broken_files_are_refused_with_their_sentence)
{
    refused(STATUS_NOT_FOUND, "neither model.safetensors nor model.safetensors.index.json");
    scratch_file_write("model.safetensors", "", 0);
    refused(STATUS_DATA, "0 bytes: a safetensors file begins with 8 bytes");
    scratch_file_write("model.safetensors", "\1\0\0\0\0\0\0", 7);
    refused(STATUS_DATA, "7 bytes: a safetensors file begins with 8 bytes");
    put_claiming("model.safetensors", "{}", 0, 3);
    refused(STATUS_DATA, "header of 3 bytes, but the file has only 10: it is truncated");
    put_claiming("model.safetensors", "{}", 0, UINT64_MAX);
    refused(STATUS_DATA, "must be at most 100000000");
    put_claiming("model.safetensors", "{}", 0, 1);
    refused(STATUS_DATA, "not valid JSON");
    put_claiming("model.safetensors", "{}", 0, 0);
    refused(STATUS_DATA, "not valid JSON");

    refuse("[]", 0, "must be an object");
    refuse("{\"a\":3}", 0, "tensor a is an integer: must be an object");
    refuse("{\"a\":{}}", 0, "tensor a: dtype must be a string");
    refuse("{\"a\":{\"dtype\":\"F32\"}}", 0, "tensor a: shape must be an array");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "at most 8 numbers");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "whole numbers, 0 or more");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4, "whole numbers, 0 or more");
    refuse(A("[0]"), 16, "data_offsets must be an array of two");
    refuse(A("[0,16,32]"), 16, "data_offsets must be an array of two");
    refuse(A("[0,\"16\"]"), 16, "data_offsets must be an array of two");
    refuse(A("null"), 16, "data_offsets must be an array of two");
    refuse(A("[16,0]"), 16, "data_offsets [16, 0] must ascend");
    refuse(A("[-16,0]"), 16, "data_offsets [-16, 0] must ascend");
    refuse(A("[0,16]"), 15, "reach past the file's 15 bytes of data: the file is truncated");
    refuse(A("[9223372036854775000,9223372036854775807]"), 16, "reach past");
    refuse(A("[0,12]"), 12, "shape [4] of F32 takes 16 bytes, but its offsets span 12");
    refuse("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
           "is too large");
    refuse(A("[0,16]"), 20, "4 bytes at the end belong to no tensor: the file is overlong");
    refuse(A("[4,20]"), 20, "4 bytes before tensor a belong to no tensor");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
           "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[4,12]}}",
           12, "tensors a and b overlap");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
           "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}",
           8, "overlap");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
           "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
           8, "duplicate");
}
END_TEST

#define SHARD "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}"

START_TEST(broken_indexes_are_refused_with_their_sentence)
{
    put_tensors("one.safetensors", SHARD, 16);
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"one.safetensors\"}}");
    struct safetensors *st;
    ck_assert_int_eq(safetensors_open(dir, &st), STATUS_OK);
    safetensors_close(st);

    const char *const cases[][2] = {
        {"{", "not valid JSON"},
        {"{}", "weight_map must be an object"},
        {"{\"weight_map\":[]}", "weight_map must be an object"},
        {"{\"weight_map\":{}}", "weight_map must be an object"},
        {"{\"weight_map\":{\"a\":1}}", "a is an integer: must be the name of a file"},
        {"{\"weight_map\":{\"a\":\"../one.safetensors\"}}", "must be the plain name of a file next to the index"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "must be the plain name of a file next to the index"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "must be the plain name of a file next to the index"},
        {"{\"weight_map\":{\"a\":\"\"}}", "must be the plain name of a file next to the index"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"one.safetensors\"}}",
         "tensor b is not in one.safetensors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_text("model.safetensors.index.json", cases[i][0]);
        refused(STATUS_DATA, cases[i][1]);
    }
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}}");
    refused(STATUS_NOT_FOUND, "names a missing shard");
    ck_assert_ptr_nonnull(strstr(status_message(), "two.safetensors"));
    put_tensors("two.safetensors", SHARD, 15);
    refused(STATUS_DATA, "two.safetensors: tensor a: data_offsets [0, 16] reach past");
}
END_TEST

// Reads every byte that the handle exposes.
static unsigned touch_all(const struct safetensors *st)
{
    unsigned sum = 0;
    for (int i = 0; i < safetensors_count(st); i++) {
        const struct safetensors_tensor *t = safetensors_at(st, i);
        for (uint64_t b = 0; b < t->size_bytes; b++)
            sum += ((const unsigned char *)t->data)[b];
        ck_assert_ptr_eq(safetensors_find(st, t->name), t);
    }
    return sum;
}

START_TEST(damaged_headers_never_lead_outside_the_file)
{
    static const char header[] = "{\"w.a\":{\"dtype\":\"BF16\",\"shape\":[16,32],\"data_offsets\":[0,1024]},"
                                 "\"w.b\":{\"dtype\":\"F32\",\"shape\":[256],\"data_offsets\":[1024,2048]},"
                                 "\"w.c\":{\"dtype\":\"F16\",\"shape\":[1024],\"data_offsets\":[2048,4096]}}";
    static const char alphabet[] = "0123456789-,:[]{}\"\\.eE FU\x01\x80\xff";
    enum { N = sizeof header - 1, DATA = 4096 };
    unsigned char bytes[8 + N + DATA];
    unsigned opened = 0, sum = 0;
    uint64_t random = 42;
    for (int round = 0; round < 3000; round++) {
        uint64_t length = N;
        memcpy(bytes, &length, 8);
        memcpy(bytes + 8, header, N);
        memset(bytes + 8 + N, 1, DATA);
        size_t size = sizeof bytes;
        int changes = 1 + round % 4;
        for (int i = 0; i < changes; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            unsigned place = (unsigned)(random >> 33) % N, what = (unsigned)(random >> 20) & 0xfff;
            switch (what % 8) {
            case 0: bytes[place % 8] ^= (unsigned char)(1u << what / 8 % 8); break; // the length field
            case 1: size = place * 24 % sizeof bytes; break;                        // truncated
            case 2: memmove(bytes + 8 + place, bytes + 9 + place, N - 1 - place); break;
            default: bytes[8 + place] = (unsigned char)alphabet[what / 8 % (sizeof alphabet - 1)];
            }
        }
        scratch_file_write("model.safetensors", bytes, size);
        struct safetensors *st;
        if (safetensors_open(dir, &st) == STATUS_OK) {
            opened++;
            uint64_t spanned = 0; // touch_all() read exactly the file's data
            for (int i = 0; i < safetensors_count(st); i++)
                spanned += safetensors_at(st, i)->size_bytes;
            memcpy(&length, bytes, 8);
            ck_assert_uint_eq(spanned, size - 8 - length);
            sum += touch_all(st);
            safetensors_close(st);
        } else {
            ck_assert(status_message()[0] != 0);
        }
    }
    ck_assert_uint_gt(opened, 0); // a changed name or blank does no harm
    ck_assert_uint_lt(opened, 1500);
    ck_assert_uint_gt(sum, 0);
}
END_TEST

SUITE("safetensors")
{
    TIMEOUT(60);
    FIXTURE(setup, teardown);
    TEST(files_and_shards_hold_what_was_written);
    TEST(odd_but_valid_files_are_read);
    TEST(broken_files_are_refused_with_their_sentence);
    TEST(broken_indexes_are_refused_with_their_sentence);
    TEST(damaged_headers_never_lead_outside_the_file);
}
