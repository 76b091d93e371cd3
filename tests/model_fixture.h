// SPDX-License-Identifier: Apache-2.0
// Shared by the check_model_* tests: options for a tiny model, and edits of its checkpoint file.
#pragma once

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "tests/forward.h"
#include "tests/tiny_model.h"

static inline struct model_options options_for(const char *dir, const char *backend, const char *dtype)
{
    return (struct model_options){.dir = dir,
                                  .backend = backend,
                                  .dtype = dtype,
                                  .threads = 1,
                                  .max_rows = 256,
                                  .max_seqs = 8,
                                  .max_logit_rows = 256,
                                  .n_kv_blocks = 8 * FORWARD_MAX_BLOCKS};
}

// A file of a checkpoint: read into memory, changed, written back.
struct edit {
    char *path, *bytes;
    size_t n;
};

static inline struct edit edit_begin(const char *dir, const char *name)
{
    struct edit e = {.path = mem_format("%s/%s", dir, name)};
    FILE *file = fopen(e.path, "rb");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    e.n = (size_t)ftell(file);
    rewind(file);
    e.bytes = mem_alloc(e.n);
    ck_assert_uint_eq(fread(e.bytes, 1, e.n, file), e.n);
    fclose(file);
    return e;
}

static inline void edit_end(struct edit *e)
{
    FILE *file = fopen(e->path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(e->bytes, 1, e->n, file), e->n);
    ck_assert_int_eq(fclose(file), 0);
    free(e->path);
    free(e->bytes);
}

// Replaces the first `from` of a file by text of the same length.
static inline void edit_file(const char *dir, const char *name, const char *from, const char *to)
{
    struct edit e = edit_begin(dir, name);
    char *at = memmem(e.bytes, e.n, from, strlen(from));
    ck_assert_ptr_nonnull(at);
    ck_assert_uint_eq(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    edit_end(&e);
}

// Returns the entry of a tensor in the header of model.safetensors.
static inline char *edit_entry(const struct edit *e, const char *tensor)
{
    char *quoted = mem_format("\"%s\"", tensor), *at = memmem(e->bytes, e->n, quoted, strlen(quoted));
    ck_assert_ptr_nonnull(at);
    free(quoted);
    return at;
}

static inline void edit_text(const char *dir, const char *tensor, const char *from, const char *to)
{
    struct edit e = edit_begin(dir, "model.safetensors");
    char *entry = edit_entry(&e, tensor), *at = memmem(entry, 200, from, strlen(from));
    ck_assert_ptr_nonnull(at);
    ck_assert_uint_eq(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    edit_end(&e);
}

static inline void edit_f32(const char *dir, const char *tensor, size_t index, float value)
{
    struct edit e = edit_begin(dir, "model.safetensors");
    uint64_t header_bytes;
    size_t offset;
    memcpy(&header_bytes, e.bytes, sizeof header_bytes);
    char *offsets = memmem(edit_entry(&e, tensor), 200, "data_offsets\":[", 15);
    ck_assert_ptr_nonnull(offsets);
    ck_assert_int_eq(sscanf(offsets + 15, "%zu", &offset), 1);
    memcpy(e.bytes + 8 + header_bytes + offset + index * sizeof value, &value, sizeof value);
    edit_end(&e);
}
