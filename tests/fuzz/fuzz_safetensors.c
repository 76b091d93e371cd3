// SPDX-License-Identifier: Apache-2.0
// A checkpoint: the header of a safetensors file (up to a NUL), the number of bytes of its data, and whether the length
// of the header is right. The rest is an index that names the file "shard". Every tensor of an accepted checkpoint lies
// inside the file and is found by its name.
#include "engine/model/safetensors.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_folder.h"

enum { DATA_MAX = 256, HEADER_MAX = 8192 };

// Writes the files. Most lengths are right, because a wrong one is refused early.
static void put_files(const struct fuzz_script *header, struct fuzz_script *script)
{
    static uint8_t bytes[8 + HEADER_MAX + DATA_MAX];
    uint64_t claimed = header->left, n_data = fuzz_byte(script);
    if (fuzz_byte(script) == 1) claimed = fuzz_number(script);
    memcpy(bytes, &claimed, sizeof claimed);
    memcpy(bytes + 8, header->at, header->left);
    fuzz_folder_drop("model.safetensors");
    fuzz_folder_put(script->left ? "shard" : "model.safetensors", bytes, 8 + header->left + n_data);
    fuzz_folder_put("model.safetensors.index.json", script->at, script->left);
}

static void check_tensor(const struct safetensors *st, const struct safetensors_tensor *t)
{
    char text[SAFETENSORS_SHAPE_TEXT];
    const volatile unsigned char *bytes = t->data;
    FUZZ_CHECK(t->size_bytes <= DATA_MAX && t->n_dims >= 0 && t->n_dims <= SAFETENSORS_MAX_DIMS);
    for (uint64_t i = 0; i < t->size_bytes; i++)
        (void)bytes[i];
    FUZZ_CHECK(strlen(safetensors_shape_text(t, text)) < sizeof text);
    FUZZ_CHECK(safetensors_find(st, t->name)->data == t->data);
    safetensors_prefetch(t->data, 1, t->size_bytes, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_script script = {data, size};
    struct fuzz_script header = fuzz_text(&script);
    struct safetensors *st;
    if (!header.left || header.left > HEADER_MAX) return 0;
    put_files(&header, &script);
    if (safetensors_open(fuzz_folder(), &st) != STATUS_OK) {
        FUZZ_CHECK(*status_message());
        return 0;
    }
    for (int i = 0; i < safetensors_count(st); i++)
        check_tensor(st, safetensors_at(st, i));
    safetensors_stamp(st, 1);
    safetensors_close(st);
    return 0;
}
