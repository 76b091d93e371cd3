// SPDX-License-Identifier: Apache-2.0
// Exactness of the CPU backend: a row has the same bits packed, chunked and alone.
//
// Each sequence first runs alone through a tiny Llama with random weights: whole, in one batch, on one thread. Then
// thousands of ragged batches mix random chunks of random sequences, with decode rows, gaps in the positions, and
// blocks that hold old entries of other sequences. All logits and all importance must have the same bits, on one thread
// and on two. All blocks are filled with NaN first, which shows if a row reads an entry that it must not see.
#include <math.h>
#include <stdio.h>

#include "kernels/cpu/cpu.h"
#include "tests/isa_levels.h"
#include "tests/kernel_fixture.h"
#include "tests/suite.h"

enum {
    LAYERS = 2,
    HEADS = 6,
    KV_HEADS = 2,
    HEAD_SIZE = 16,
    HIDDEN = 70,
    INNER = 90,
    VOCABULARY = 75,
    POISON = VOCABULARY - 1, // its embedding is NaN
    QKV = (HEADS + 2 * KV_HEADS) * HEAD_SIZE,
    MAX_LENGTH = 150,
    SEQUENCES = 16,
    LIVE = 6,
    MAX_ROWS = 260,
    SEQUENCE_BLOCKS = (MAX_LENGTH + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS,
    BLOCKS = LIVE * SEQUENCE_BLOCKS,
};

struct layer {
    struct weight *norm, *qkv, *qkv_bias, *q_gain, *k_gain, *o, *norm2, *gate_up, *down;
};

struct model {
    struct backend *b;
    struct layer layers[LAYERS];
    struct weight *table, *norm, *head;
    struct tensor *x, *normed, *qkv, *mixed, *inner, *logits, *last_x, *last_mixed;
};

struct sequence {
    int length;
    int32_t token[MAX_LENGTH], position[MAX_LENGTH];
    float logits[MAX_LENGTH][VOCABULARY]; // of the sequence when it runs alone
    int importance_keys;
    float importance[MAX_LENGTH]; // of the last row, when the sequence runs alone
};

enum { DTYPES = 6, KINDS = 8 };
static const enum dtype dtypes[DTYPES] = {DTYPE_F32,       DTYPE_BF16,      DTYPE_INT8,
                                          DTYPE_INT8_G128, DTYPE_INT4_G128, DTYPE_BF12};
static const struct kind {
    enum dtype dtype;
    enum dtype kv_dtype;
} kinds[KINDS] = {{DTYPE_F32, DTYPE_F32},        {DTYPE_BF16, DTYPE_BF16}, {DTYPE_INT8, DTYPE_BF16},
                  {DTYPE_INT8_G128, DTYPE_BF16}, {DTYPE_BF16, DTYPE_INT8}, {DTYPE_INT8, DTYPE_INT8},
                  {DTYPE_INT4_G128, DTYPE_BF16}, {DTYPE_BF12, DTYPE_BF16}};
static struct sequence sequences[SEQUENCES];

static void model_open(struct model *m, struct kind kind, int threads)
{
    float inv_freq[HEAD_SIZE / 2];
    rope_frequencies(inv_freq, HEAD_SIZE);
    struct backend_shape shape = {.n_layers = LAYERS,
                                  .n_heads = HEADS,
                                  .n_kv_heads = KV_HEADS,
                                  .head_size = HEAD_SIZE,
                                  .rope.inv_freq = inv_freq,
                                  .max_rows = MAX_ROWS,
                                  .max_seqs = LIVE,
                                  .max_context = MAX_LENGTH,
                                  .n_kv_blocks = BLOCKS,
                                  .kv_dtype = kind.kv_dtype};
    OK(backend_open_cpu(&shape, kind.dtype, threads, &m->b));
    struct backend *b = m->b;
    random_state = 0x853c49e6748fea9bu; // the same weights for every model
    for (int l = 0; l < LAYERS; l++) {
        float *gate = random_floats(INNER * HIDDEN, 0.4f), *up = random_floats(INNER * HIDDEN, 0.4f);
        struct matrix_view gate_view = float_view(gate, INNER, HIDDEN), up_view = float_view(up, INNER, HIDDEN);
        struct layer *layer = &m->layers[l];
        *layer = (struct layer){
            .norm = random_vector(b, HIDDEN, 1),
            .qkv = random_weight(b, QKV, HIDDEN, 0.5f),
            .qkv_bias = random_vector(b, QKV, 1),
            .q_gain = random_vector(b, HEAD_SIZE, 3),
            .k_gain = random_vector(b, HEAD_SIZE, 3),
            .o = random_weight(b, HIDDEN, HEADS * HEAD_SIZE, 0.5f),
            .norm2 = random_vector(b, HIDDEN, 1),
            .down = random_weight(b, HIDDEN, INNER, 0.5f),
        };
        OK(b->ops->weight_gate_up(b, &gate_view, &up_view, &layer->gate_up));
        free(gate);
        free(up);
    }
    float *table = random_floats(VOCABULARY * HIDDEN, 1);
    for (int i = 0; i < HIDDEN; i++)
        table[POISON * HIDDEN + i] = NAN;
    m->table = make_table(b, table, VOCABULARY, HIDDEN);
    free(table);
    m->norm = random_vector(b, HIDDEN, 1);
    m->head = random_weight(b, VOCABULARY, HIDDEN, 0.5f);
    m->x = make_tensor(b, TENSOR_F32, MAX_ROWS, HIDDEN);
    m->normed = make_tensor(b, TENSOR_ACTIVATION, MAX_ROWS, HIDDEN);
    m->qkv = make_tensor(b, TENSOR_F32, MAX_ROWS, QKV);
    m->mixed = make_tensor(b, TENSOR_ACTIVATION, MAX_ROWS, HEADS * HEAD_SIZE);
    m->last_x = make_tensor(b, TENSOR_F32, MAX_ROWS, HIDDEN);
    m->last_mixed = make_tensor(b, TENSOR_ACTIVATION, MAX_ROWS, HEADS * HEAD_SIZE);
    m->inner = make_tensor(b, TENSOR_ACTIVATION, MAX_ROWS, INNER);
    m->logits = make_tensor(b, TENSOR_F32, MAX_ROWS, VOCABULARY);
}

static void layer_finish(struct model *m, const struct layer *layer, struct tensor *x, struct tensor *mixed, int rows)
{
    struct backend *b = m->b;
    OK(b->ops->linear(b, x, mixed, layer->o, NULL, LINEAR_ADD, rows));
    OK(b->ops->rmsnorm(b, m->normed, x, layer->norm2, 1e-5f, NULL, rows));
    OK(b->ops->linear(b, m->inner, m->normed, layer->gate_up, NULL, LINEAR_SWIGLU, rows));
    OK(b->ops->linear(b, x, m->inner, layer->down, NULL, LINEAR_ADD, rows));
}

// Computes the logits of the batch's logit rows. Without a list of logit rows, computes those of all rows.
static void model_forward(struct model *m, const struct ragged_batch *batch, float *logits, float *importance)
{
    struct backend *b = m->b;
    struct tensor *x = m->x;
    int rows = batch->n_rows;
    OK(b->ops->begin(b, batch));
    OK(b->ops->embed(b, m->x, m->table));
    for (int l = 0; l < LAYERS; l++) {
        const struct layer *layer = &m->layers[l];
        OK(b->ops->rmsnorm(b, m->normed, m->x, layer->norm, 1e-5f, NULL, rows));
        OK(b->ops->linear(b, m->qkv, m->normed, layer->qkv, layer->qkv_bias, LINEAR_STORE, rows));
        OK(b->ops->rope_append(b, l, m->qkv, layer->q_gain, layer->k_gain, 1e-5f));
        if (l < LAYERS - 1 || !batch->logit_row) {
            OK(b->ops->attention(b, l, m->mixed, m->qkv));
            layer_finish(m, layer, x, m->mixed, rows);
            continue;
        }
        rows = batch->n_logit_rows;
        OK(b->ops->attention_last(b, l, m->mixed, m->qkv));
        OK(b->ops->gather_rows(b, m->last_mixed, m->mixed, batch->logit_row, rows));
        OK(b->ops->gather_rows(b, x = m->last_x, m->x, batch->logit_row, rows));
        layer_finish(m, layer, x, m->last_mixed, rows);
    }
    OK(b->ops->rmsnorm(b, m->normed, x, m->norm, 1e-5f, NULL, rows));
    OK(b->ops->linear(b, m->logits, m->normed, m->head, NULL, LINEAR_STORE, rows));
    OK(b->ops->read(b, m->logits, rows, logits));
    if (batch->n_importance_rows) OK(b->ops->importance_read(b, importance));
}

static void run_alone(struct model *m, struct sequence *q)
{
    int32_t blocks[SEQUENCE_BLOCKS];
    for (int i = 0; i < SEQUENCE_BLOCKS; i++)
        blocks[i] = i;
    const int32_t start[2] = {0, q->length}, none[1] = {0}, last[1] = {q->length - 1}, keys[1] = {q->importance_keys};
    struct ragged_batch batch = {.n_rows = q->length,
                                 .token = q->token,
                                 .position = q->position,
                                 .n_seqs = 1,
                                 .row_start = start,
                                 .kv_len = none,
                                 .block_table = blocks,
                                 .max_blocks = SEQUENCE_BLOCKS,
                                 .n_importance_rows = 1,
                                 .importance_row = last,
                                 .importance_keys = keys,
                                 .smoothing_window = 13};
    model_forward(m, &batch, &q->logits[0][0], q->importance);
    for (int i = 0; i < q->length * VOCABULARY; i++)
        ck_assert(isfinite((&q->logits[0][0])[i]));
}

static void make_sequences(struct model *alone)
{
    random_state = 0xda3e39cb94b95bdbu;
    for (int i = 0; i < SEQUENCES; i++) {
        struct sequence *q = &sequences[i];
        q->length = i < SEQUENCES / 2 ? 1 + random_below(40) : MAX_LENGTH - random_below(90);
        for (int t = 0, position = random_below(50); t < q->length; t++) {
            q->token[t] = random_below(POISON);
            q->position[t] = position;
            position += random_below(4) ? 1 : 1 + random_below(40); // pruning leaves gaps
        }
        q->importance_keys = 1 + random_below(q->length);
        run_alone(alone, q);
    }
}

// Fills every block with NaN.
static void poison_cache(struct model *m)
{
    int32_t token[MAX_LENGTH], position[MAX_LENGTH], blocks[SEQUENCE_BLOCKS], start[2] = {0, MAX_LENGTH}, none[1] = {0};
    float *logits = mem_alloc_array(MAX_LENGTH * VOCABULARY, sizeof *logits);
    for (int t = 0; t < MAX_LENGTH; t++)
        token[t] = POISON, position[t] = t;
    for (int s = 0; s < LIVE; s++) {
        for (int i = 0; i < SEQUENCE_BLOCKS; i++)
            blocks[i] = s * SEQUENCE_BLOCKS + i;
        struct ragged_batch batch = {.n_rows = MAX_LENGTH,
                                     .token = token,
                                     .position = position,
                                     .n_seqs = 1,
                                     .row_start = start,
                                     .kv_len = none,
                                     .block_table = blocks,
                                     .max_blocks = SEQUENCE_BLOCKS};
        model_forward(m, &batch, logits, NULL);
        ck_assert(isnan(logits[0]));
    }
    free(logits);
}

// ---- random batches -------------------------------------------------------------------------------------------------

struct live {
    const struct sequence *sequence;
    int done; // entries cached
    int32_t blocks[SEQUENCE_BLOCKS];
};

struct mixer {
    struct live live[LIVE];
    int32_t free_blocks[BLOCKS];
    int n_free;
};

static void live_start(struct mixer *mixer, struct live *live)
{
    live->sequence = &sequences[random_below(SEQUENCES)];
    live->done = 0;
    for (int i = 0; i < SEQUENCE_BLOCKS; i++) {
        int pick = random_below(mixer->n_free);
        live->blocks[i] = mixer->free_blocks[pick];
        mixer->free_blocks[pick] = mixer->free_blocks[--mixer->n_free];
    }
}

static void live_end(struct mixer *mixer, struct live *live)
{
    for (int i = 0; i < SEQUENCE_BLOCKS; i++)
        mixer->free_blocks[mixer->n_free++] = live->blocks[i];
    live->sequence = NULL;
}

static int random_chunk(int left)
{
    int rows = random_below(3) ? 1 : random_below(4) ? 1 + random_below(20) : left;
    return rows < left ? rows : left;
}

// Chooses about every eighth row, the last one first. Returns the number of chosen rows.
static int choose_logit_rows(int rows, int32_t *chosen)
{
    int n = 0;
    for (int row = rows - 1; row >= 0; row--)
        if (random_below(8) == 0) chosen[n++] = row;
    return n;
}

// Compares the logits of a row with those of its sequence alone. chosen: the sequences of the batch.
static void check_logits(const float *logits, const struct ragged_batch *batch, int row, struct live *const *chosen)
{
    int s = 0;
    while (row >= batch->row_start[s + 1])
        s++;
    const struct sequence *q = chosen[s]->sequence;
    const int at = chosen[s]->done + row - batch->row_start[s];
    ck_assert_msg(!memcmp(logits, q->logits[at], sizeof q->logits[0]),
                  "row %d of a sequence of %d: other bits in a batch of %d rows of %d sequences, %d with logits", at,
                  q->length, batch->n_rows, batch->n_seqs, batch->logit_row ? batch->n_logit_rows : batch->n_rows);
}

// Runs one batch of random chunks of some running sequences, in random order, and compares it with the sequences alone.
// Half of the batches have logits of some rows only.
static void mix_batch(struct mixer *mixer, struct model *m)
{
    int32_t token[MAX_ROWS], position[MAX_ROWS], start[LIVE + 1] = {0}, kv_len[LIVE], importance_row[LIVE], keys[LIVE];
    int32_t table[LIVE][SEQUENCE_BLOCKS], logit_row[MAX_ROWS];
    static float logits[MAX_ROWS * VOCABULARY], importance[LIVE * MAX_LENGTH];
    struct live *chosen[LIVE];
    int rows = 0, n = 0, n_importance_rows = 0, first = random_below(LIVE);
    for (int i = 0; i < LIVE; i++) {
        struct live *live = &mixer->live[(first + i) % LIVE];
        if (n && random_below(4) == 0) continue;
        if (!live->sequence) live_start(mixer, live);
        const struct sequence *q = live->sequence;
        int chunk = random_chunk(q->length - live->done);
        if (rows + chunk > MAX_ROWS - LIVE) chunk = 1;
        for (int r = 0; r < chunk; r++, rows++)
            token[rows] = q->token[live->done + r], position[rows] = q->position[live->done + r];
        if (live->done + chunk == q->length)
            importance_row[n_importance_rows] = rows - 1, keys[n_importance_rows++] = q->importance_keys;
        memcpy(table[n], live->blocks, sizeof table[n]);
        kv_len[n] = live->done;
        chosen[n++] = live;
        start[n] = rows;
    }
    struct ragged_batch batch = {.n_rows = rows,
                                 .token = token,
                                 .position = position,
                                 .n_seqs = n,
                                 .row_start = start,
                                 .kv_len = kv_len,
                                 .block_table = &table[0][0],
                                 .max_blocks = SEQUENCE_BLOCKS,
                                 .n_importance_rows = n_importance_rows,
                                 .importance_row = importance_row,
                                 .importance_keys = keys,
                                 .smoothing_window = 13};
    for (int row = 0; row < rows; row++)
        logit_row[row] = row;
    const bool some = random_below(2);
    const int n_logits = some ? choose_logit_rows(rows, logit_row) : rows;
    if (some) {
        batch.logit_row = logit_row;
        batch.n_logit_rows = n_logits;
    }
    model_forward(m, &batch, logits, importance);
    for (int i = 0; i < n_logits; i++)
        check_logits(logits + i * VOCABULARY, &batch, logit_row[i], chosen);
    const float *found = importance;
    for (int s = 0; s < n; s++) {
        const struct sequence *q = chosen[s]->sequence;
        chosen[s]->done += start[s + 1] - start[s];
        if (chosen[s]->done < q->length) continue;
        ck_assert_msg(!memcmp(found, q->importance, (size_t)q->importance_keys * sizeof *found), "other importance");
        found += q->importance_keys;
        live_end(mixer, chosen[s]);
    }
}

// _i encodes level, kind and threads - 1.
START_TEST(packed_chunked_and_alone_have_the_same_bits)
{
    const struct cpu_isa *isa = isas[_i / 2 / KINDS], *best = cpu_isa_best();
    struct kind kind = kinds[_i / 2 % KINDS];
    cpu_isa_prefer(isa);
    struct model alone, mixed;
    model_open(&alone, kind, 1);
    model_open(&mixed, kind, 1 + _i % 2);
    make_sequences(&alone);
    alone.b->ops->close(alone.b);
    poison_cache(&mixed);

    static struct mixer mixer;
    mixer = (struct mixer){.n_free = BLOCKS};
    for (int i = 0; i < BLOCKS; i++)
        mixer.free_blocks[i] = i;
    random_state = 0x2545f4914f6cdd1du + (uint64_t)_i;
    int batches = isa == best ? QUICK ? 25 : 300 : 60;
    for (int i = 0; i < batches; i++)
        mix_batch(&mixer, &mixed);
    mixed.b->ops->close(mixed.b);
}
END_TEST

// Opens a backend for gemms alone, at the level and in the dtype of loop index `i`.
static struct backend *gemm_backend_open(int i)
{
    cpu_isa_prefer(isas[i / DTYPES]);
    struct backend_shape shape = {.n_layers = 1,
                                  .n_heads = 1,
                                  .n_kv_heads = 1,
                                  .head_size = 2,
                                  .rope.inv_freq = (float[]){1},
                                  .max_rows = 1,
                                  .max_seqs = 1,
                                  .max_context = 1,
                                  .n_kv_blocks = 1};
    struct backend *b;
    OK(backend_open_cpu(&shape, dtypes[i % DTYPES], 2, &b));
    return b;
}

// Gemms alone, over two row blocks and several blocks of K.
START_TEST(gemms_have_the_same_bits_for_any_number_of_rows)
{
    enum { ROWS = 200, K = 1100, N = 70 };
    struct backend *b = gemm_backend_open(_i);
    struct tensor *x = make_tensor(b, TENSOR_F32, ROWS, K), *normed = make_tensor(b, TENSOR_ACTIVATION, ROWS, K);
    struct tensor *out = make_tensor(b, TENSOR_F32, ROWS, N);
    struct weight *w = random_weight(b, N, K, 1), *gain = random_vector(b, K, 1);
    float *values = random_floats(ROWS * K, 1), all[ROWS * N], some[20 * N];
    memcpy(b->ops->tensor_data(b, x), values, ROWS * K * sizeof *values);
    free(values);
    OK(b->ops->rmsnorm(b, normed, x, gain, 1e-5f, NULL, ROWS));
    OK(b->ops->linear(b, out, normed, w, NULL, LINEAR_STORE, ROWS));
    OK(b->ops->read(b, out, ROWS, all));
    for (int first = 0, rows; first < ROWS; first += rows) {
        rows = 1 + random_below(20);
        if (rows > ROWS - first) rows = ROWS - first;
        int32_t index[20];
        for (int r = 0; r < rows; r++)
            index[r] = first + r;
        OK(b->ops->rmsnorm(b, normed, x, gain, 1e-5f, index, rows));
        OK(b->ops->linear(b, out, normed, w, NULL, LINEAR_STORE, rows));
        OK(b->ops->read(b, out, rows, some));
        ck_assert_msg(!memcmp(some, all + first * N, (size_t)(rows * N) * sizeof *some), "%d rows from %d", rows,
                      first);
    }
    b->ops->close(b);
}
END_TEST

// Tests every prefetch of streamed weights, with numbers of rows around one and two tiles.
START_TEST(a_prefetch_changes_no_bit)
{
    enum { ROWS = 33, K = 1101, N = 70 };
    static const int some_rows[] = {1, 2, 5, 6, 7, 16, 17, 32, 33};
    struct backend *b = gemm_backend_open(_i);
    struct tensor *x = make_tensor(b, TENSOR_F32, ROWS, K), *normed = make_tensor(b, TENSOR_ACTIVATION, ROWS, K);
    struct tensor *out = make_tensor(b, TENSOR_F32, ROWS, N);
    struct weight *w = random_weight(b, N, K, 1), *gain = random_vector(b, K, 1);
    float *values = random_floats(ROWS * K, 1), without[ROWS * N], with[ROWS * N];
    tensor_write(b, x, values, ROWS * K);
    free(values);
    OK(b->ops->rmsnorm(b, normed, x, gain, 1e-5f, NULL, ROWS));
    for (size_t i = 0; i < sizeof some_rows / sizeof *some_rows; i++)
        for (int c = 0; c < STREAM_CANDIDATES; c++) {
            int rows = some_rows[i];
            ((struct cpu *)b)->prefetch = stream_candidates[c];
            OK(b->ops->linear(b, out, normed, w, NULL, LINEAR_STORE, rows));
            OK(b->ops->read(b, out, rows, c ? with : without));
            ck_assert_msg(!c || !memcmp(with, without, (size_t)(rows * N) * sizeof *with), "%d rows, %s %d bytes ahead",
                          rows, stream_target_name(stream_candidates[c].target), stream_candidates[c].ahead_bytes);
        }
    b->ops->close(b);
}
END_TEST

// Attention alone, over contexts of several segments: prefilled whole, then in chunks. Single rows, whose segments are
// separate items, are at and around every segment boundary.
START_TEST(long_contexts_have_the_same_bits_in_any_chunks)
{
    enum { LENGTH = 2 * SEGMENT_ENTRIES + 150, D = 24, GROUP = 3, COLUMNS = (GROUP + 2) * D };
    static const struct kind cases[] = {{DTYPE_F32, DTYPE_F32}, {DTYPE_BF16, DTYPE_BF16}, {DTYPE_BF16, DTYPE_INT8}};
    const struct cpu_isa *isa = isas[_i / 3];
    struct kind kind = cases[_i % 3];
    cpu_isa_prefer(isa);
    float inv_freq[D / 2];
    rope_frequencies(inv_freq, D);
    enum { N_BLOCKS = (LENGTH + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS };
    struct backend_shape shape = {.n_layers = 1,
                                  .n_heads = GROUP,
                                  .n_kv_heads = 1,
                                  .head_size = D,
                                  .rope.inv_freq = inv_freq,
                                  .max_rows = LENGTH,
                                  .max_seqs = 1,
                                  .max_context = LENGTH,
                                  .n_kv_blocks = N_BLOCKS,
                                  .kv_dtype = kind.kv_dtype};
    struct backend *b;
    OK(backend_open_cpu(&shape, kind.dtype, 2, &b));
    struct tensor *qkv = make_tensor(b, TENSOR_F32, LENGTH, COLUMNS);
    struct tensor *out = make_tensor(b, TENSOR_ACTIVATION, LENGTH, GROUP * D);
    int32_t *position = mem_alloc_array(LENGTH, sizeof *position), blocks[N_BLOCKS];
    float *values = random_floats(LENGTH * COLUMNS, 2), *whole = NULL;
    for (int i = 0; i < LENGTH; i++)
        position[i] = i;
    for (int i = 0; i < N_BLOCKS; i++)
        blocks[i] = N_BLOCKS - 1 - i;
    for (int done = 0, rows = LENGTH; done < LENGTH; done += rows) {
        if (whole) {
            int edge = (done + 3) % (SEGMENT_ENTRIES / 2);
            rows = edge < 6 || random_below(2) ? 1 : 1 + random_below(random_below(3) ? 30 : 400);
            if (edge >= 6 && rows > SEGMENT_ENTRIES / 2 - edge) rows = SEGMENT_ENTRIES / 2 - edge;
            if (rows > LENGTH - done) rows = LENGTH - done;
        }
        const int32_t start[2] = {0, rows}, kv_len[1] = {done};
        struct ragged_batch batch = {.n_rows = rows,
                                     .position = position + done,
                                     .n_seqs = 1,
                                     .row_start = start,
                                     .kv_len = kv_len,
                                     .block_table = blocks,
                                     .max_blocks = N_BLOCKS};
        memcpy(b->ops->tensor_data(b, qkv), values + done * COLUMNS, (size_t)(rows * COLUMNS) * sizeof *values);
        OK(b->ops->begin(b, &batch));
        OK(b->ops->rope_append(b, 0, qkv, NULL, NULL, 0));
        OK(b->ops->attention(b, 0, out, qkv));
        int n;
        float *result = read_activation(b, out, rows, GROUP * D, &n);
        if (whole) {
            ck_assert_msg(!memcmp(result, whole + done * n, (size_t)(rows * n) * sizeof *result),
                          "%d rows from %d: other bits", rows, done);
            free(result);
        } else {
            whole = result;
            rows = 0; // again, in chunks
        }
    }
    free(whole);
    free(values);
    free(position);
    b->ops->close(b);
}
END_TEST

SUITE("exactness")
{
    SKIP_UNLESS(choose_isas(argc, argv));
    LOOP(packed_chunked_and_alone_have_the_same_bits, 0, 2 * KINDS * n_isas);
    LOOP(gemms_have_the_same_bits_for_any_number_of_rows, 0, DTYPES * n_isas);
    LOOP(a_prefetch_changes_no_bit, 0, DTYPES * n_isas);
    LOOP(long_contexts_have_the_same_bits_in_any_chunks, 0, 3 * n_isas);
}
