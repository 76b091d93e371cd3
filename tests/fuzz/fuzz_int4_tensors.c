// SPDX-License-Identifier: Apache-2.0
// The tensors of a matrix of 4-bit codes: the format, the size that config.json gives, then dtype and shape of each
// tensor, near the right ones. An accepted matrix is read without leaving its tensors.
#include "engine/model/int4_tensors.h"
#include "kernels/convert.h"
#include "tests/fuzz/fuzz.h"

enum { WORDS_MAX = 1 << 13 };

// A tensor of shape [rows, columns], or of another shape or type if the script says so. Its data ends at the end of an
// allocation, so that reading past it is seen.
static struct safetensors_tensor tensor_of(struct fuzz_script *script, const char *name, const char *dtype,
                                           int64_t rows, int64_t columns, int element, void **memory_p)
{
    static const char *const dtypes[] = {"I32", "F16", "BF16", "F32", "I8"};
    struct safetensors_tensor t = {.name = name, .file = "file", .dtype = dtype, .n_dims = 2, .shape = {rows, columns}};
    const int change = fuzz_byte(script);
    if (change & 1) t.dtype = dtypes[fuzz_below(script, 5)];
    if (change & 2) t.n_dims = fuzz_below(script, 4);
    if (change & 4) t.shape[fuzz_below(script, 2)] = fuzz_byte(script);
    if (strcmp(t.dtype, "I8") == 0) element = 1;
    if (t.dtype != dtype) element = t.dtype[0] == 'I' || strcmp(t.dtype, "F32") == 0 ? 4 : 2;
    size_t n = 1;
    for (int i = 0; i < t.n_dims; i++)
        n *= (size_t)(i < 2 ? t.shape[i] : 1);
    if (n > WORDS_MAX) n = t.shape[0] = t.shape[1] = t.n_dims = 0;
    t.size_bytes = n * (size_t)element;
    unsigned char *data = calloc(1, t.size_bytes + 1);
    for (size_t i = 0; i < t.size_bytes && script->left; i++)
        data[i] = fuzz_byte(script);
    *memory_p = data;
    t.data = data;
    return t;
}

static void read_all(const struct matrix_view *view)
{
    float row[1024];
    FUZZ_CHECK(view->columns <= 1024);
    for (int64_t r = 0; r < view->rows; r++)
        matrix_view_read(view, r, 0, view->columns, row);
    const struct int4_extent e = int4_view_extent(view);
    const volatile char *last = e.start + (e.n - 1) * e.stride + (int64_t)e.bytes - 1;
    (void)*last;
    FUZZ_CHECK(int4_view_bytes(view) > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_script script = {data, size};
    static const enum stored_weights formats[] = {STORED_AWQ, STORED_GPTQ, STORED_PACKED};
    static struct model_config config;
    config = (struct model_config){.stored = formats[fuzz_below(&script, 3)]};
    config.has_zeros = fuzz_below(&script, 4) != 0;
    config.zero_added = fuzz_below(&script, 2);
    int64_t n = 8 * (1 + fuzz_below(&script, 6)), k = 128 * (1 + fuzz_below(&script, 3)), groups = k / 128;
    const bool packed = config.stored == STORED_PACKED, awq = config.stored == STORED_AWQ;
    void *memory[4];
    const struct safetensors_tensor all[4] = {
        tensor_of(&script, "codes", "I32",
                  packed ? n
                  : awq  ? k
                         : k / 8,
                  packed ? k / 8
                  : awq  ? n / 8
                         : n,
                  4, &memory[0]),
        tensor_of(&script, "scales", "F16", packed ? n : groups, packed ? groups : n, 2, &memory[1]),
        tensor_of(&script, "zeros", "I32", packed ? n / 8 : groups, packed ? groups : n / 8, 4, &memory[2]),
        tensor_of(&script, "groups", "I32", k, 1, 4, &memory[3]),
    };
    const int absent = fuzz_byte(&script);
    const struct int4_tensors tensors = {.codes = &all[0],
                                         .scales = absent == 1 ? NULL : &all[1],
                                         .zeros = absent == 2 ? NULL : &all[2],
                                         .groups = absent >= 3 ? NULL : &all[3]};
    if (absent == 4) n += fuzz_byte(&script);
    if (absent == 5) k += fuzz_byte(&script);
    struct matrix_view view;
    const enum status status = int4_tensors_view(&tensors, &config, n, k, true, &view);
    FUZZ_CHECK(status == STATUS_OK || *status_message());
    if (status == STATUS_OK) read_all(&view);
    for (int i = 0; i < 4; i++)
        free(memory[i]);
    return 0;
}
