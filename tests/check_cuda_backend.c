// SPDX-License-Identifier: Apache-2.0
// The CUDA backend beyond the tests of every backend: weights larger than the upload buffers, FP8 gemms with both ways
// of scaling, the file of saved algorithms, captured decode passes, and the message for missing memory. Runs on a GPU
// or an emulated one, which also counts launches and memory.
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/convert.h"
#include "tests/cuda_fixture.h"
#include "tests/forward.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"

extern int graphs_kept_most; // kernels/cuda/graphs.c

// ---- memory ---------------------------------------------------------------------------------------------------------

// Asks for more memory than any GPU has.
START_TEST(missing_memory_is_reported_with_sizes)
{
    enum { ROWS = 1 << 20, COLUMNS = 1 << 19 };
    struct backend *b = open_cuda(&small_shape, DTYPE_BF16);
    struct tensor *t;
    ck_assert_int_eq(b->ops->tensor_create(b, TENSOR_F32, ROWS, COLUMNS, &t), STATUS_EXHAUSTED);
    ck_assert_msg(strstr(status_message(), "needs 2097152 MiB for a tensor of 1048576 x 524288, GPU 0 has") != NULL,
                  "%s", status_message());
    float *values = random_floats(COLUMNS, 1); // all rows of the matrix lie at the same address
    struct matrix_view view = {.data = values, .dtype = DTYPE_F32, .rows = ROWS, .columns = COLUMNS};
    struct weight *w;
    ck_assert_int_eq(b->ops->weight_create(b, &view, 1, &w), STATUS_EXHAUSTED);
    ck_assert_msg(strstr(status_message(), "needs 1048576 MiB for a matrix of 1048576 x 524288, GPU 0 has") != NULL,
                  "%s", status_message());
    size_t total, available;
    OK(b->ops->memory(b, &total, &available));
    b->ops->close(b);
    free(values);

    struct backend_shape shape = small_shape;
    shape.n_kv_blocks = (int)(total >> 10); // of 1 KiB
    b = open_cuda(&shape, DTYPE_BF16);
    char *says = mem_format("MiB for %d KV blocks, GPU 0 has", shape.n_kv_blocks);
    const struct ragged_batch batch = ragged_warm_up_batch();
    ck_assert_int_eq(b->ops->begin(b, &batch), STATUS_EXHAUSTED);
    ck_assert_msg(strstr(status_message(), says) != NULL, "%s", status_message());
    b->ops->close(b);
    free(says);
    ck_assert_uint_eq(emulator_memory_used(), 0);
}
END_TEST

// ---- weights --------------------------------------------------------------------------------------------------------

// Returns rows of an embedding table, read back from the device.
static float *table_rows(struct backend *b, const struct weight *table, int columns, const int32_t *token, int rows)
{
    const struct ragged_batch batch = single_rows(token, rows);
    struct tensor *out = make_tensor(b, TENSOR_F32, rows, columns);
    OK(b->ops->begin(b, &batch));
    OK(b->ops->embed(b, out, table));
    return tensor_read(b, out, rows, columns);
}

// Weights of 39 MiB and more pass through two buffers of 16 MiB: every stored dtype, aligned and not.
START_TEST(weights_are_uploaded_in_pieces)
{
    static const enum dtype stored[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_FP8};
    const enum dtype dtype = stored[_i / 2];
    const bool aligned = _i % 2;
    enum { TABLE = 10001, K = 2064 };
    const int64_t stride = (int64_t)dtype_size_bytes(dtype) * K + (aligned ? 0 : 3);
    unsigned char *raw = mem_alloc((size_t)(TABLE * stride + 1));
    for (int64_t i = 0; i < TABLE * stride + 1; i++)
        raw[i] = (unsigned char)(random_bits() & 0x3b); // no NaN, no infinity in any type
    float *scale = random_floats(TABLE, 1);
    struct matrix_view view = {.data = raw + !aligned,
                               .dtype = dtype,
                               .rows = TABLE,
                               .columns = K,
                               .row_stride_bytes = stride,
                               .scale = scale,
                               .scale_dtype = DTYPE_F32,
                               .scale_stride = aligned};
    struct backend *b = open_cuda(&small_shape, DTYPE_BF16);
    struct weight *table;
    OK(b->ops->weight_embedding(b, &view, 0, NULL, &table));
    const int32_t token[8] = {0, 4063, 4064, 4065, 4066, TABLE - 2, TABLE - 1, 2000};
    float *got = table_rows(b, table, K, token, 8), want[K];
    for (int r = 0; r < 8; r++) {
        matrix_view_read(&view, token[r], 0, K, want);
        for (int c = 0; c < K; c++)
            ck_assert_msg(got[r * K + c] == bf16_to_f32(bf16_from_f32(want[c])), "row %d, column %d: %g, not %g",
                          token[r], c, (double)got[r * K + c], (double)want[c]);
    }
    b->ops->close(b);
    ck_assert_uint_eq(emulator_memory_used(), 0);
    free(raw), free(scale), free(got);
}
END_TEST

START_TEST(the_address_is_that_of_the_pci_bus)
{
    struct backend *b = open_cuda(&small_shape, DTYPE_BF16);
    unsigned domain, bus, device;
    char end;
    ck_assert_int_eq(sscanf(b->ops->gpu_address(b), "%x:%x:%x.0%c", &domain, &bus, &device, &end), 3);
    if (EMULATED) ck_assert_str_eq(b->ops->gpu_address(b), "0000:01:00.0");
    b->ops->close(b);
}
END_TEST

START_TEST(a_tied_table_shares_the_memory_of_the_head)
{
    struct backend *b = open_cuda(&small_shape, DTYPE_BF16);
    float *values = random_floats(40 * 1000, 1);
    struct matrix_view view = float_view(values, 40, 1000);
    struct weight *head = make_weight(b, values, 40, 1000), *tied, *own;
    size_t before = emulator_memory_used();
    OK(b->ops->weight_embedding(b, &view, 3, head, &tied));
    ck_assert_uint_eq(emulator_memory_used(), before);
    OK(b->ops->weight_embedding(b, &view, 3, NULL, &own));
    if (EMULATED) ck_assert_uint_gt(emulator_memory_used(), before);
    const int32_t token[2] = {3, 42};
    float *a = table_rows(b, tied, 1000, token, 2), *c = table_rows(b, own, 1000, token, 2);
    ck_assert_mem_eq(a, c, 1000 * sizeof *a);
    b->ops->close(b);
    free(values), free(a), free(c);
}
END_TEST

// ---- gemms in FP8 ---------------------------------------------------------------------------------------------------

// With scales applied by the library (9.0) and by the epilogue kernel (8.9), against the reference.
START_TEST(fp8_gemms_match_the_reference)
{
    if (!fp8_is_here()) return;
    if (_i) emulator_set_capability(8, 9);
    static const int ns[] = {16, 48, 50, 1}, ks[] = {16, 30, 64, 7};
    for (int i = 0; i < 16; i++) {
        const int n = 2 * ns[i % 4], k = ks[i / 4], rows = 1 + random_below(20);
        float *x = random_floats((size_t)(rows * k), 2), *w = random_floats((size_t)(n * k), 1),
              *gain = random_floats((size_t)k, 1);
        float *bias = random_floats((size_t)n, 1), *y[2][3];
        for (int side = 0; side < 2; side++) {
            struct backend *b;
            if (side)
                b = open_cuda(&small_shape, DTYPE_FP8);
            else
                OK(backend_open_reference(&small_shape, DTYPE_FP8, &b));
            struct tensor *normed = make_normed(b, x, gain, rows, k);
            struct weight *weight = make_weight(b, w, n, k);
            for (int mode = 0; mode < 3; mode++) {
                struct tensor *out = make_tensor(b, TENSOR_F32, rows, n);
                struct weight *v = mode == 2 ? make_vector(b, bias, n) : NULL;
                OK(b->ops->linear(b, out, normed, weight, v, mode == 1 ? LINEAR_ADD : LINEAR_STORE, rows));
                y[side][mode] = tensor_read(b, out, rows, n);
            }
            b->ops->close(b);
        }
        for (int mode = 0; mode < 3; mode++) {
            // A norm near a bf16 rounding boundary may quantise to the next byte: 2^-4 of one of k terms.
            for (int j = 0; j < rows * n; j++)
                ck_assert_msg(fabsf(y[1][mode][j] - y[0][mode][j]) <= 0.05f, "%d x %d x %d: %g, not %g", rows, n, k,
                              (double)y[1][mode][j], (double)y[0][mode][j]);
            free(y[0][mode]), free(y[1][mode]);
        }
        free(x), free(w), free(gain), free(bias);
    }
}
END_TEST

// ---- algorithms -----------------------------------------------------------------------------------------------------

static char cache[] = "/tmp/check_cuda_backend.XXXXXX";

// Returns the path of the only file in the cache, or NULL. The caller frees it.
static char *cache_file(void)
{
    char *folder = mem_format("%s/forepack", cache), *path = NULL;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (entry->d_name[0] != '.') {
            ck_assert_msg(!path, "%s beside %s", entry->d_name, path);
            path = mem_format("%s/%s", folder, entry->d_name);
        }
    if (dir) closedir(dir);
    free(folder);
    return path;
}

static char *file_text(const char *path)
{
    char *text = mem_alloc(1 << 16);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    size_t n = fread(text, 1, (1 << 16) - 1, file);
    text[n] = 0;
    fclose(file);
    return text;
}

static void file_write(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

static int lines_of(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

// Returns the status of the file in the cache, or zeros without a file.
static struct stat file_stat(void)
{
    struct stat info = {0};
    char *path = cache_file();
    if (path) ck_assert_int_eq(stat(path, &info), 0);
    free(path);
    return info;
}

// Opens a backend, runs one gemm and tunes. Returns true if tuning timed algorithms (three buckets of rows), false if
// the file had them.
static bool tune_times(void)
{
    struct stat now = file_stat();
    struct backend *b = open_cuda(&small_shape, DTYPE_BF16);
    struct tensor *x = make_tensor(b, TENSOR_ACTIVATION, 40, 32), *out = make_tensor(b, TENSOR_F32, 40, 48);
    OK(b->ops->linear(b, out, x, random_weight(b, 48, 32, 1), NULL, LINEAR_ADD, 1));
    int before = emulator_launches();
    OK(b->ops->tune(b));
    int gemms = emulator_launches() - before;
    b->ops->close(b);
    if (EMULATED) ck_assert(gemms <= 1 || gemms > 3); // the first gemm may have been pending
    struct stat after = file_stat();
    bool written = after.st_ino != now.st_ino || after.st_mtim.tv_sec != now.st_mtim.tv_sec ||
                   after.st_mtim.tv_nsec != now.st_mtim.tv_nsec;
    if (EMULATED && after.st_ino) ck_assert_int_eq(written, gemms > 1);
    return EMULATED ? gemms > 1 : written;
}

START_TEST(algorithms_are_timed_once_and_saved)
{
    ck_assert_ptr_nonnull(mkdtemp(cache));
    setenv("XDG_CACHE_HOME", cache, 1);
    ck_assert(tune_times()); // buckets of 16, 32 and 40 rows
    char *path = cache_file();
    ck_assert_ptr_nonnull(path);
    char *good = file_text(path);
    ck_assert_int_eq(lines_of(good), 2 + 3);
    char *device = strchr(good, '\n') + 1; // "NVIDIA H100 .., cuBLASLt .."
    ck_assert_ptr_nonnull(strstr(device, ", cuBLASLt "));
    ck_assert(!tune_times());

    // A file that is damaged, is of another GPU or has an unknown algorithm is ignored and replaced.
    char *cut = mem_string(good), *foreign = mem_string(good), *odd = mem_string(good);
    cut[strlen(cut) - 20] = 0;
    memcpy(foreign + (device - good), "imagined", 8);
    strchr(strstr(odd, "\n48 32"), ' ')[1] = 'x';
    char *unknown = mem_format("%.*s", (int)(strstr(good, "\n48 32") - good), good);
    char *lying = mem_format("%s\n48 32 48 0 0 1 0 0 0 40 777 0 0 0 0 0 0 0\n", unknown);
    const char *bad[] = {cut, foreign, odd, lying, "", "\n", "forepack gemm 1\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        file_write(path, bad[i]);
        ck_assert(tune_times());
        char *again = file_text(path), *only = cache_file();
        ck_assert_int_eq(lines_of(again), lines_of(good)); // perhaps in another order
        ck_assert_ptr_null(strstr(again, " 40 777 0 0 0 "));
        ck_assert(!strncmp(again, good, strlen(unknown)));
        ck_assert_str_eq(only, path);
        free(again), free(only);
    }

    // A good file is not written again, even if it is read-only.
    file_write(path, good);
    chmod(path, 0444);
    ck_assert(!tune_times());
    unlink(path);
    char *folder = mem_format("%s/forepack", cache);
    rmdir(folder);
    file_write(folder, "in the way of the folder\n");
    ck_assert(tune_times() || !EMULATED);
    unlink(folder);
    rmdir(cache);
    free(path), free(good), free(cut), free(foreign), free(odd), free(unknown), free(lying), free(folder);
}
END_TEST

// ---- captured passes ------------------------------------------------------------------------------------------------

static struct forward f;

static struct model_options options_for(const char *dir)
{
    return (struct model_options){.dir = dir,
                                  .backend = "cuda",
                                  .dtype = "bf16",
                                  .max_rows = 300,
                                  .max_seqs = 14,
                                  .n_kv_blocks = 14 * FORWARD_MAX_BLOCKS};
}

enum { SEQUENCES = 12, PROMPT = 250 };

static int32_t token_of(int sequence, int position)
{
    return 1 + (sequence * 31 + position * 7 + sequence * position % 11) % 250; // 0 is the padding token
}

// Prefills the sequences of slots 0 .. SEQUENCES - 1. Every third has about 250 entries and soon needs a second split.
static void prefill(struct ranks *ranks, int *length)
{
    for (int s = 0; s < SEQUENCES; s++) {
        int32_t token[PROMPT];
        length[s] = s % 3 == 1 ? PROMPT - s : 3 + s;
        for (int i = 0; i < length[s]; i++)
            token[i] = token_of(s, i);
        forward_start(&f, 14);
        forward_add(&f, s, 0, token, NULL, length[s], LOGITS_LAST);
        ranks_forward(ranks, &f.batch);
    }
}

// On a GPU another number of rows may use another gemm algorithm, which sums in another order.
static void check_alike(const float *a, const float *b, int n)
{
    float largest = 0;
    for (int i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(a[i]));
    for (int i = 0; i < n; i++)
        ck_assert_msg(fabsf(a[i] - b[i]) <= (EMULATED ? 0 : 0.02f * largest), "number %d of %d: %g and %g", i, n,
                      (double)a[i], (double)b[i]);
}

// Returns the rows of a sequence in a step: one, plus draft rows in most steps if `drafts` is true.
static int step_rows(bool drafts, int step, int sequence)
{
    return 1 + (!drafts ? 0 : step % 4 == 0 ? 2 : (step + sequence) % 3);
}

// Replayed graphs give the bits of passes that are launched eagerly, over changing sets of sequences. The eager passes
// have an importance row, which prevents capture. _i is 0: decode; 1: with drafts that are verified; 2: with drafts,
// and heads whose tiles run by wgmma.
START_TEST(replays_equal_eager_passes)
{
    struct tiny_model spec = tiny_model_spec("qwen2");
    spec.dtype = DTYPE_BF16;
    if (_i == 2) spec.n_heads = 4, spec.n_kv_heads = 2, spec.head_size = 64;
    char *dir = tiny_model_temp(&spec);
    struct model_options options = options_for(dir);
    options.max_logit_rows = 64;
    struct ranks captured, eager;
    ranks_open(&captured, &options, 1);
    ranks_open(&eager, &options, 1);
    int length[SEQUENCES], vocab = spec.vocab_size, replays = 0;
    prefill(&captured, length);
    prefill(&eager, length);
    for (int step = 0; step < (_i && !EMULATED ? 80 : 40); step++) {
        int n = 1 + (step * 5 + step / 7) % SEQUENCES, first = step % 3;
        if (first + n > SEQUENCES) n = SEQUENCES - first;
        const float *logits[2];
        for (int side = 0; side < 2; side++) {
            forward_start(&f, 14);
            for (int s = first; s < first + n; s++) {
                const int rows = step_rows(_i > 0, step, s);
                int32_t token[3];
                for (int i = 0; i < rows; i++)
                    token[i] = token_of(s, length[s] + i) + (i && step % 2); // half of the drafts are wrong
                forward_add(&f, s, length[s], token, NULL, rows, LOGITS_ALL);
            }
            if (side) forward_add_importance(&f, 1, 1);
            int before = emulator_graph_launches();
            logits[side] = ranks_forward(side ? &eager : &captured, &f.batch).logits;
            int launched = emulator_graph_launches() - before;
            ck_assert_int_le(launched, 1 - side);
            replays += launched;
        }
        check_alike(logits[0], logits[1], f.batch.n_rows * vocab);
        for (int s = first; s < first + n; s++)
            length[s]++;
    }
    if (EMULATED) ck_assert_int_gt(replays, 20);
    ranks_close(&captured);
    ranks_close(&eager);
    ck_assert_uint_eq(emulator_memory_used(), 0);
    tiny_model_remove(dir);
}
END_TEST

// A pass of one stage that embeds its rows.
struct embed_pass {
    struct backend *b;
    struct tensor *out;
    const struct weight *table;
    int issued, rows;   // calls of the stage, rows of the last call
    bool read_in_stage; // the stage waits for the device, which prevents a capture
};

static enum status embed_stage(void *context, int i, int first_row, int rows)
{
    struct embed_pass *p = context;
    float got[3 * 16];
    p->issued++;
    p->rows = rows;
    enum status status = p->b->ops->embed(p->b, p->out, p->table);
    if (status == STATUS_OK && p->read_in_stage) status = p->b->ops->read(p->b, p->out, 3, got);
    p->read_in_stage = false;
    return status;
}

static void embed_open(struct embed_pass *p, float *values)
{
    *p = (struct embed_pass){.b = open_cuda(&small_shape, DTYPE_BF16)};
    p->table = make_table(p->b, values, 10, 16);
    p->out = make_tensor(p->b, TENSOR_F32, 8, 16);
}

// Runs three rows. Checks the result, how often the stage was issued, and for how many rows.
static void embed_check(struct embed_pass *p, const int32_t token[3], int max_logit_rows, int issued, int rows,
                        const float *values)
{
    const struct ragged_batch batch = single_rows(token, 3);
    float got[3 * 16];
    p->issued = 0;
    OK(p->b->ops->run_pass(p->b, &(struct pass){&batch, p, embed_stage, no_logits, 1, max_logit_rows}));
    ck_assert_int_eq(p->issued, issued);
    if (issued) ck_assert_int_eq(p->rows, rows);
    OK(p->b->ops->read(p->b, p->out, 3, got));
    for (int i = 0; i < 3 * 16; i++)
        ck_assert(got[i] == bf16_to_f32(bf16_from_f32(values[token[i / 16] * 16 + i % 16])));
}

// The first pass of a kind runs eagerly, the second is captured, and later ones are replayed with other tokens.
START_TEST(the_third_pass_of_a_kind_is_a_replay)
{
    float *values = random_floats(10 * 16, 1);
    struct embed_pass p;
    embed_open(&p, values);
    for (int i = 0; i < 5; i++)
        embed_check(&p, (int32_t[]){i, 9 - i, i / 2}, 8, i < 2, 4, values);
    p.b->ops->close(p.b);
    free(values);
}
END_TEST

// Only the graphs used last are kept. A kind that has lost its graph is captured again.
START_TEST(the_least_recently_used_graph_is_dropped)
{
    const int most = graphs_kept_most;
    float *values = random_floats(10 * 16, 1);
    const int32_t token[3] = {1, 9, 4};
    struct embed_pass p;
    graphs_kept_most = 1;
    embed_open(&p, values);
    for (int i = 0; i < 3; i++)
        embed_check(&p, token, 8, i < 2, 4, values);
    for (int i = 0; i < 3; i++) { // another kind: one row
        const struct ragged_batch one = single_rows(token, 1);
        p.issued = 0;
        OK(p.b->ops->run_pass(p.b, &(struct pass){&one, &p, embed_stage, no_logits, 1, 8}));
        ck_assert_int_eq(p.issued, i < 2);
    }
    embed_check(&p, token, 8, 1, 4, values); // captured again
    embed_check(&p, token, 8, 0, 4, values);
    p.b->ops->close(p.b);
    graphs_kept_most = most;
    free(values);
}
END_TEST

// If a capture fails, the pass and all later ones of its kind are issued eagerly. They are padded too, because other
// ranks of a group may have captured the pass, and a captured pass sums padded rows.
START_TEST(a_pass_that_cannot_be_captured_runs_eagerly)
{
    float *values = random_floats(10 * 16, 1);
    const int32_t token[3] = {1, 9, 4};
    struct embed_pass p;
    embed_open(&p, values);
    embed_check(&p, token, 8, 1, 4, values);
    p.read_in_stage = true;
    embed_check(&p, token, 8, 2, 4, values);
    embed_check(&p, token, 8, 1, 4, values);
    p.b->ops->close(p.b);

    embed_open(&p, values);
    for (int i = 0; i < 3; i++)
        embed_check(&p, token, 3, 1, 3, values); // no logit rows for padding
    p.b->ops->close(p.b);

    setenv("FOREPACK_CUDA_GRAPHS", "off", 1);
    embed_open(&p, values);
    for (int i = 0; i < 4; i++)
        embed_check(&p, token, 8, 1, 4, values);
    p.b->ops->close(p.b);
    unsetenv("FOREPACK_CUDA_GRAPHS");
    free(values);
}
END_TEST

SUITE("cuda_backend")
{
    SKIP_UNLESS(cuda_is_here());
    TIMEOUT(120);
    TEST(missing_memory_is_reported_with_sizes);
    LOOP(weights_are_uploaded_in_pieces, 0, 8);
    TEST(the_address_is_that_of_the_pci_bus);
    TEST(a_tied_table_shares_the_memory_of_the_head);
    LOOP(fp8_gemms_match_the_reference, 0, EMULATED ? 2 : 1);
    TEST(algorithms_are_timed_once_and_saved);
    LOOP(replays_equal_eager_passes, 0, 3);
    TEST(the_third_pass_of_a_kind_is_a_replay);
    TEST(the_least_recently_used_graph_is_dropped);
    TEST(a_pass_that_cannot_be_captured_runs_eagerly);
}
