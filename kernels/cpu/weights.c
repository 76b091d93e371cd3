// SPDX-License-Identifier: Apache-2.0
// Weights in the layout that the product kernel streams: panels of PANEL_COLUMNS outputs, word after word of K.
// They are packed once, straight from the (usually mapped) file, and serve every number of rows.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "kernels/convert.h"
#include "kernels/cpu/cpu.h"

enum {
    CHUNK_WORDS = 16,        // of K, packed at a time: a cache line of each source row
    AHEAD_WORDS = 128,       // of K, fetched before they are packed
    MAX_INT8_COLUMNS = 65536 // 2^16 * 255 * 127 is below 2^31
};

// Where packed output n comes from: rows of all parts one below the other, or gate and up alternating in units of a
// vector so that a register tile holds both halves of a SwiGLU.
struct source {
    const struct matrix_view *parts;
    int n_parts;
    int gate_up_unit; // 0: stacked
    int64_t rows;     // of all parts together
};

static const struct matrix_view *source_row(const struct source *source, int64_t n, int64_t *row_p)
{
    if (source->gate_up_unit) {
        int64_t unit = n / source->gate_up_unit;
        *row_p = unit / 2 * source->gate_up_unit + n % source->gate_up_unit;
        return *row_p < source->parts[0].rows ? &source->parts[unit % 2] : NULL;
    }
    for (int p = 0; p < source->n_parts; n -= source->parts[p++].rows)
        if (n < source->parts[p].rows) {
            *row_p = n;
            return &source->parts[p];
        }
    return NULL;
}

// Words [0, words) of a row of K elements, zeros beyond K.
static void row_words(const struct matrix_view *view, int64_t row, int64_t first_word, int words, bool bf16,
                      uint32_t *out)
{
    float values[2 * CHUNK_WORDS] = {0};
    int per_word = bf16 ? 2 : 1;
    int64_t left = view->columns - first_word * per_word, n = left < words * per_word ? left : words * per_word;
    if (bf16 && view->dtype == DTYPE_BF16 && n == 2 * words) { // as it lies
        memcpy(out, (const char *)view->data + row * view->row_stride_bytes + 4 * first_word, (size_t)n * 2);
        return;
    }
    matrix_view_read(view, row, first_word * per_word, n, values);
    uint16_t halves[2 * CHUNK_WORDS];
    for (int i = 0; i < 2 * CHUNK_WORDS; i++) // a fixed number of them becomes vectors
        halves[i] = bf16_from_f32(values[i]);
    memcpy(out, bf16 ? (const void *)halves : values, (size_t)words * sizeof *out);
}

// ---- from rows to panels --------------------------------------------------------------------------------------------

typedef uint32_t quad __attribute__((vector_size(16)));

static quad quad_load(const void *from)
{
    quad value;
    memcpy(&value, from, sizeof value); // rows need not be aligned
    return value;
}

// CHUNK_WORDS words of four rows become four neighbouring columns of `to` [CHUNK_WORDS][PANEL_COLUMNS].
static void transpose_four(uint32_t *to, const char *const row[4])
{
    for (int k = 0; k < CHUNK_WORDS; k += 4) {
        quad a = quad_load(row[0] + 4 * k), b = quad_load(row[1] + 4 * k);
        quad c = quad_load(row[2] + 4 * k), d = quad_load(row[3] + 4 * k);
        quad ab_low = __builtin_shuffle(a, b, (quad){0, 4, 1, 5}),
             ab_high = __builtin_shuffle(a, b, (quad){2, 6, 3, 7});
        quad cd_low = __builtin_shuffle(c, d, (quad){0, 4, 1, 5}),
             cd_high = __builtin_shuffle(c, d, (quad){2, 6, 3, 7});
        quad columns[4] = {__builtin_shuffle(ab_low, cd_low, (quad){0, 1, 4, 5}),
                           __builtin_shuffle(ab_low, cd_low, (quad){2, 3, 6, 7}),
                           __builtin_shuffle(ab_high, cd_high, (quad){0, 1, 4, 5}),
                           __builtin_shuffle(ab_high, cd_high, (quad){2, 3, 6, 7})};
        for (int i = 0; i < 4; i++)
            memcpy(to + (k + i) * PANEL_COLUMNS, &columns[i], sizeof columns[i]);
    }
}

// Past the caches: a panel is next read when the model runs, and the lines need not be fetched to be overwritten.
static void stream(uint32_t *to, const uint32_t *from, size_t words)
{
#if defined(__SSE2__)
    for (size_t i = 0; i < words; i += 4)
        _mm_stream_si128((__m128i *)(void *)(to + i), _mm_load_si128((const __m128i *)(const void *)(from + i)));
#else
    memcpy(to, from, words * sizeof *to);
#endif
}

static void stream_end(void) // before another thread may read
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

// Where the words of a panel's columns come from.
struct columns {
    const struct matrix_view *view[PANEL_COLUMNS]; // NULL: they are zeros
    int64_t row[PANEL_COLUMNS];
    const char *from[PANEL_COLUMNS]; // where the row starts
    int word_bytes[PANEL_COLUMNS];   // of the row that make a word
    bool plain[PANEL_COLUMNS];       // they are the word
};

static void columns_find(struct columns *columns, const struct source *source, int panel, bool bf16)
{
    for (int c = 0; c < PANEL_COLUMNS; c++) {
        const struct matrix_view *view = source_row(source, (int64_t)panel * PANEL_COLUMNS + c, &columns->row[c]);
        columns->view[c] = view;
        if (!view) continue;
        columns->from[c] = (const char *)view->data + columns->row[c] * view->row_stride_bytes;
        columns->word_bytes[c] = (int)dtype_size_bytes(view->dtype) * (bf16 ? 2 : 1);
        columns->plain[c] = view->dtype == (bf16 ? DTYPE_BF16 : DTYPE_F32);
    }
}

// 64 rows at once are more than the hardware follows.
static void columns_prefetch(const struct columns *columns, int k, int words)
{
    for (int c = 0; c < PANEL_COLUMNS; c++)
        for (int i = 0; columns->view[c] && i < words; i += CHUNK_WORDS)
            __builtin_prefetch(columns->from[c] + (size_t)(k + i) * (size_t)columns->word_bytes[c], 0, 2);
}

// Words [k, k + words) of K of four columns, at most CHUNK_WORDS; `plain`: all of the words lie in the rows.
static void transpose_columns(uint32_t *to, const struct columns *columns, int first, int k, int words, bool plain,
                              bool bf16)
{
    uint32_t made[4][CHUNK_WORDS];
    const char *row[4];
    for (int i = 0; i < 4; i++) {
        const struct matrix_view *view = columns->view[first + i];
        if (view && plain && columns->plain[first + i]) {
            row[i] = columns->from[first + i] + (size_t)k * 4;
            continue;
        }
        row[i] = memset(made[i], 0, sizeof made[i]);
        if (view) row_words(view, columns->row[first + i], k, words, bf16, made[i]);
    }
    transpose_four(to + first, row);
}

struct packing {
    const struct cpu *cpu;
    struct weight *w;
    const struct source *source;
    // int8: of each thread, one row as floats and the rows of a panel as bytes.
    float *floats;
    uint8_t *bytes;
};

static void pack_panel(void *arg, int panel, int thread)
{
    const struct packing *p = arg;
    const struct weight *w = p->w;
    bool bf16 = p->cpu->bf16;
    // Of an odd K the last bf16 has no partner.
    int64_t plain_words = bf16 ? w->columns / 2 : w->columns;
    struct columns columns;
    columns_find(&columns, p->source, panel, bf16);
    columns_prefetch(&columns, 0, AHEAD_WORDS);
    uint32_t *to = w->panels + (size_t)panel * (size_t)w->words * PANEL_COLUMNS;
    _Alignas(64) uint32_t chunk[CHUNK_WORDS * PANEL_COLUMNS];
    for (int k = 0; k < w->words; k += CHUNK_WORDS) {
        int words = w->words - k < CHUNK_WORDS ? w->words - k : CHUNK_WORDS;
        columns_prefetch(&columns, k + AHEAD_WORDS, 1);
        for (int c = 0; c < PANEL_COLUMNS; c += 4)
            transpose_columns(chunk, &columns, c, k, words, k + CHUNK_WORDS <= plain_words, bf16);
        stream(to + (size_t)k * PANEL_COLUMNS, chunk, (size_t)words * PANEL_COLUMNS);
    }
    stream_end();
}

// ---- int8 -----------------------------------------------------------------------------------------------------------

// One output of K values as bytes with 128 added; its scales and starts.
static void quantise_output(const struct packing *p, const struct matrix_view *view, int64_t row, float *floats,
                            uint8_t *bytes, float *scale, uint32_t *start)
{
    const struct weight *w = p->w;
    int k = (int)w->columns, size = w->groups > 1 ? GROUP_SIZE : k;
    const char *raw = (const char *)view->data + row * view->row_stride_bytes;
    bool direct = view->dtype == DTYPE_BF16 && (uintptr_t)raw % 2 == 0;
    if (!direct) {
        matrix_view_read(view, row, 0, k, floats);
        raw = (const char *)floats;
    }
    for (int g = 0, at = 0; g < w->groups; g++, at += size) {
        int n = k - at < size ? k - at : size;
        scale[g * PANEL_COLUMNS] = p->cpu->isa->quantise(bytes + at, raw + at * (direct ? 2 : 4), direct, n);
        int32_t sum = -128 * n;
        for (int i = 0; i < n; i++)
            sum += bytes[at + i];
        start[g * PANEL_COLUMNS] = (uint32_t)(-128 * sum);
    }
}

// Bytes of one output while its panel is packed: whole chunks.
static size_t output_bytes(const struct weight *w)
{
    return (size_t)(w->words + CHUNK_WORDS - 1) / CHUNK_WORDS * CHUNK_WORDS * 4;
}

static void pack_panel_bytes(void *arg, int panel, int thread)
{
    const struct packing *p = arg;
    const struct weight *w = p->w;
    size_t row_bytes = output_bytes(w), scales = (size_t)panel * (size_t)w->groups * PANEL_COLUMNS;
    uint8_t *bytes = p->bytes + (size_t)thread * PANEL_COLUMNS * row_bytes;
    memset(bytes, 128, PANEL_COLUMNS * row_bytes); // zeros, where nothing is
    memset(w->scale + scales, 0, (size_t)w->groups * PANEL_COLUMNS * sizeof *w->scale);
    memset(w->start + scales, 0, (size_t)w->groups * PANEL_COLUMNS * sizeof *w->start);
    for (size_t c = 0; c < PANEL_COLUMNS; c++) {
        int64_t row;
        const struct matrix_view *view = source_row(p->source, (int64_t)panel * PANEL_COLUMNS + (int64_t)c, &row);
        if (view)
            quantise_output(p, view, row, p->floats + (size_t)thread * (size_t)w->columns, bytes + c * row_bytes,
                            w->scale + scales + c, w->start + scales + c);
    }
    uint32_t *to = w->panels + (size_t)panel * (size_t)w->words * PANEL_COLUMNS;
    _Alignas(64) uint32_t chunk[CHUNK_WORDS * PANEL_COLUMNS];
    for (int k = 0; k < w->words; k += CHUNK_WORDS) {
        for (size_t c = 0; c < PANEL_COLUMNS; c += 4) {
            const char *at = (const char *)bytes + c * row_bytes + (size_t)k * 4;
            transpose_four(chunk + c, (const char *[]){at, at + row_bytes, at + 2 * row_bytes, at + 3 * row_bytes});
        }
        for (int i = 0; i < CHUNK_WORDS * PANEL_COLUMNS; i++)
            chunk[i] ^= 0x80808080u; // 128 less: signed
        int words = w->words - k < CHUNK_WORDS ? w->words - k : CHUNK_WORDS;
        stream(to + (size_t)k * PANEL_COLUMNS, chunk, (size_t)words * PANEL_COLUMNS);
    }
    stream_end();
}

static struct weight *weight_new(struct cpu *cpu, enum weight_kind kind, int64_t rows, int64_t columns)
{
    struct weight *w = mem_alloc(sizeof *w);
    *w = (struct weight){.next = cpu->weights, .kind = kind, .rows = rows, .columns = columns};
    int step = cpu->isa->step_words;
    w->words = kind == WEIGHT_MATRIX ? (product_words((int)columns, cpu->product) + step - 1) / step * step
                                     : words_of((int)columns, cpu->bf16);
    return cpu->weights = w; // from here on close frees it
}

static enum status no_memory(const struct weight *w)
{
    return status_fail(STATUS_EXHAUSTED, "no memory for a weight of %lld x %lld", (long long)w->rows,
                       (long long)w->columns);
}

// ---- kept in a file -------------------------------------------------------------------------------------------------

// A weight's arrays, as a file keeps them; none of a vector or a tied table.
static int weight_arrays(const struct weight *w, struct saved_array arrays[3])
{
    size_t words = (size_t)w->words * sizeof(uint32_t), scales = (size_t)w->n_panels * (size_t)w->groups;
    if (w->kind == WEIGHT_EMBEDDING && !w->head) {
        arrays[0] = (struct saved_array){w->table, (size_t)w->rows * words};
        return 1;
    }
    if (w->kind != WEIGHT_MATRIX) return 0;
    arrays[0] = (struct saved_array){w->panels, (size_t)w->n_panels * PANEL_COLUMNS * words};
    arrays[1] = (struct saved_array){w->scale, scales * PANEL_COLUMNS * sizeof *w->scale};
    arrays[2] = (struct saved_array){w->start, scales * PANEL_COLUMNS * sizeof *w->start};
    return w->groups ? 3 : 1;
}

static bool take_saved(struct cpu *cpu, struct weight *w)
{
    struct saved_array arrays[3] = {{0}};
    int n = weight_arrays(w, arrays);
    if (!cpu->saved || !saved_take(cpu->saved, w, arrays, n)) return false;
    *(w->kind == WEIGHT_EMBEDDING ? &w->table : &w->panels) = arrays[0].data;
    if (n == 3) {
        w->scale = arrays[1].data;
        w->start = arrays[2].data;
    }
    return w->saved = true;
}

bool cpu_saved_open(struct backend *b, const char *path, uint64_t key)
{
    struct cpu *cpu = cpu_of(b);
    char layout[48];
    snprintf(layout, sizeof layout, "cpu type %d panel %d vector %d step %d", (int)cpu->product, PANEL_COLUMNS,
             cpu->isa->vector_floats, cpu->isa->step_words);
    char *full = mem_format("%s-cpu%d-%d.weights", path, cpu->isa->vector_floats, cpu->isa->step_words);
    cpu->saved = saved_open(full, layout, key);
    free(full);
    return saved_found(cpu->saved);
}

void cpu_saved_finish(struct backend *b)
{
    struct cpu *cpu = cpu_of(b);
    int n = 0;
    for (const struct weight *w = cpu->weights; w; w = w->next)
        n++;
    struct saved_weight *all = mem_alloc_array((size_t)n, sizeof *all);
    for (const struct weight *w = cpu->weights; w; w = w->next) { // the last made comes first
        struct saved_weight *to = &all[--n];
        to->weight = w;
        to->n = weight_arrays(w, to->arrays);
    }
    for (const struct weight *w = cpu->weights; w; w = w->next)
        n++;
    saved_write(cpu->saved, all, n);
    free(all);
}

// ---- making ---------------------------------------------------------------------------------------------------------

// Quantises and packs; what the threads work in is freed again.
static enum status pack_bytes(struct packing *p)
{
    struct weight *w = p->w;
    int panels = (int)w->n_panels;
    w->scale = cpu_memory((size_t)panels * (size_t)w->groups, PANEL_COLUMNS * sizeof *w->scale, false);
    w->start = cpu_memory((size_t)panels * (size_t)w->groups, PANEL_COLUMNS * sizeof *w->start, false);
    p->floats = cpu_memory((size_t)p->cpu->threads, (size_t)w->columns * sizeof *p->floats, false);
    p->bytes = cpu_memory((size_t)p->cpu->threads, PANEL_COLUMNS * output_bytes(w), false);
    bool enough = w->scale && w->start && p->floats && p->bytes;
    if (enough) cpu_run(p->cpu, THREAD_POOL_STATIC, w->rows * w->columns, pack_panel_bytes, p, panels);
    free(p->floats);
    free(p->bytes);
    return enough ? STATUS_OK : no_memory(w);
}

static enum status matrix_create(struct cpu *cpu, const struct source *source, struct weight **weight_p)
{
    struct weight *w = weight_new(cpu, WEIGHT_MATRIX, source->rows, source->parts[0].columns);
    w->gate_up = source->gate_up_unit > 0;
    w->n_panels = (w->rows + PANEL_COLUMNS - 1) / PANEL_COLUMNS;
    if (w->gate_up) {
        // Each half is padded to half a panel on its own.
        int64_t half = PANEL_COLUMNS / 2;
        w->n_panels = (w->rows / 2 + half - 1) / half;
    }
    if (cpu_int8(cpu) && w->columns > MAX_INT8_COLUMNS)
        return status_fail(STATUS_UNSUPPORTED, "a weight of %lld inputs: int8 sums hold at most %d",
                           (long long)w->columns, MAX_INT8_COLUMNS);
    if (cpu_int8(cpu)) w->groups = cpu_groups(cpu, (int)w->columns);
    *weight_p = w;
    if (take_saved(cpu, w)) return STATUS_OK;
    w->panels = cpu_memory((size_t)w->n_panels, (size_t)w->words * PANEL_COLUMNS * sizeof *w->panels, false);
    if (!w->panels) return no_memory(w);
    struct packing packing = {.cpu = cpu, .w = w, .source = source};
    if (cpu_int8(cpu)) return pack_bytes(&packing);
    cpu_run(cpu, THREAD_POOL_STATIC, w->rows * w->columns, pack_panel, &packing, (int)w->n_panels);
    return STATUS_OK;
}

enum status cpu_weight_create(struct backend *b, const struct matrix_view *parts, int n_parts, struct weight **weight_p)
{
    struct source source = {.parts = parts, .n_parts = n_parts};
    for (int p = 0; p < n_parts; p++) {
        assert(parts[p].columns == parts[0].columns);
        source.rows += parts[p].rows;
    }
    return matrix_create(cpu_of(b), &source, weight_p);
}

enum status cpu_weight_gate_up(struct backend *b, const struct matrix_view *gate, const struct matrix_view *up,
                               struct weight **weight_p)
{
    assert(gate->rows == up->rows && gate->columns == up->columns);
    const struct matrix_view parts[2] = {*gate, *up};
    struct source source = {parts, 2, cpu_of(b)->isa->vector_floats, 2 * gate->rows};
    return matrix_create(cpu_of(b), &source, weight_p);
}

struct table_packing {
    const struct cpu *cpu;
    struct weight *w;
    const struct matrix_view *view;
};

static void pack_table_row(void *arg, int row, int thread)
{
    const struct table_packing *p = arg;
    uint32_t *to = p->w->table + (size_t)row * (size_t)p->w->words;
    for (int k = 0; k < p->w->words; k += CHUNK_WORDS)
        row_words(p->view, row, k, p->w->words - k < CHUNK_WORDS ? p->w->words - k : CHUNK_WORDS, p->cpu->bf16, to + k);
}

enum status cpu_weight_embedding(struct backend *b, const struct matrix_view *table, int32_t first_row,
                                 struct weight *shared_head, struct weight **weight_p)
{
    struct cpu *cpu = cpu_of(b);
    struct weight *w = weight_new(cpu, WEIGHT_EMBEDDING, table->rows, table->columns);
    w->first_row = first_row;
    w->head = cpu_int8(cpu) ? NULL : shared_head; // rows of an int8 head are not what the model embeds
    if (w->head) {
        assert(shared_head->kind == WEIGHT_MATRIX && !shared_head->gate_up && shared_head->rows == table->rows &&
               shared_head->columns == table->columns);
    } else if (!take_saved(cpu, w)) {
        w->table = cpu_memory((size_t)w->rows, (size_t)w->words * sizeof *w->table, false);
        if (!w->table) return no_memory(w);
        struct table_packing packing = {cpu, w, table};
        cpu_run(cpu, THREAD_POOL_STATIC, w->rows * w->columns, pack_table_row, &packing, (int)w->rows);
    }
    *weight_p = w;
    return STATUS_OK;
}

enum status cpu_weight_vector(struct backend *b, const struct matrix_view *parts, int n_parts, struct weight **weight_p)
{
    int64_t columns = 0;
    for (int p = 0; p < n_parts; p++) {
        assert(parts[p].rows == 1);
        columns += parts[p].columns;
    }
    struct weight *w = weight_new(cpu_of(b), WEIGHT_VECTOR, 1, columns);
    w->vector = cpu_memory((size_t)(columns + PANEL_COLUMNS), sizeof *w->vector, true);
    if (!w->vector) return no_memory(w);
    float *out = w->vector;
    for (int p = 0; p < n_parts; out += parts[p++].columns)
        matrix_view_read(&parts[p], 0, 0, parts[p].columns, out);
    *weight_p = w;
    return STATUS_OK;
}

void cpu_weight_free(struct weight *w)
{
    if (!w->saved) {
        free(w->panels);
        free(w->scale);
        free(w->start);
        free(w->table);
    }
    free(w->vector);
    free(w);
}

void cpu_embedding_row(const struct weight *table, bool bf16, int32_t token, float *out)
{
    int64_t row = (int64_t)token - table->first_row;
    if (row < 0 || row >= table->rows) {
        memset(out, 0, (size_t)table->columns * sizeof *out);
        return;
    }
    // A row of a tied table is a column of a panel of the head.
    size_t step = table->head ? PANEL_COLUMNS : 1;
    const uint32_t *words = table->table + (size_t)row * (size_t)table->words;
    if (table->head)
        words = table->head->panels + (size_t)(row / PANEL_COLUMNS) * (size_t)table->head->words * PANEL_COLUMNS +
                row % PANEL_COLUMNS;
    for (int64_t i = 0; i < table->columns; i++) {
        uint32_t word = words[(size_t)(bf16 ? i / 2 : i) * step];
        out[i] = f32_from_bits(!bf16 ? word : i % 2 ? word & 0xffff0000 : word << 16);
    }
}
