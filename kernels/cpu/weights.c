// SPDX-License-Identifier: Apache-2.0
// Packs weights into the panels of isa.h, once, straight from the (usually mapped) checkpoint. int8 and int4 weights
// are quantised in the same step, unless the checkpoint stores them so. One layout serves gemms of any number of rows.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "kernels/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/int4.h"

enum {
    PACK_WORDS = 16,         // words of K packed at a time: one cache line of each source row
    PREFETCH_WORDS = 128,    // words of K prefetched ahead of packing
    MAX_INT8_COLUMNS = 65536 // largest K of an int8 gemm: 2^16 * 255 * 127 is below 2^31
};

// Source rows of packed outputs: the rows of all parts in order, or gate and up rows alternating in units of one vector
// (gate_up_unit).
struct weight_rows {
    const struct matrix_view *parts;
    int n_parts;
    int gate_up_unit; // number of rows taken alternately from gate and up; 0: parts in order
    int64_t rows;     // rows of all parts
};

static const struct matrix_view *unless_zero(const struct matrix_view *view)
{
    return view->data ? view : NULL;
}

// Returns the part of row n, and the row in this part. Returns NULL if the row is zero.
static const struct matrix_view *source_row(const struct weight_rows *source, int64_t n, int64_t *row_p)
{
    if (source->gate_up_unit) {
        int64_t unit = n / source->gate_up_unit;
        *row_p = unit / 2 * source->gate_up_unit + n % source->gate_up_unit;
        return *row_p < source->parts[0].rows ? unless_zero(&source->parts[unit % 2]) : NULL;
    }
    for (int p = 0; p < source->n_parts; n -= source->parts[p++].rows)
        if (n < source->parts[p].rows) {
            *row_p = n;
            return unless_zero(&source->parts[p]);
        }
    return NULL;
}

// Reads words [first_word, first_word + words) of a row, with zeros beyond K.
static void row_words(const struct matrix_view *view, int64_t row, int64_t first_word, int words, bool bf16,
                      uint32_t *out)
{
    float values[2 * PACK_WORDS] = {0};
    int per_word = bf16 ? 2 : 1;
    int64_t left = view->columns - first_word * per_word, n = left < words * per_word ? left : words * per_word;
    if (bf16 && view->data && view->dtype == DTYPE_BF16 && n == 2 * words) { // already in the packed format
        memcpy(out, (const char *)view->data + row * view->row_stride_bytes + 4 * first_word, (size_t)n * 2);
        return;
    }
    matrix_view_read(view, row, first_word * per_word, n, values);
    uint16_t halves[2 * PACK_WORDS];
    for (int i = 0; i < 2 * PACK_WORDS; i++) // a fixed count, so that the compiler vectorises the loop
        halves[i] = bf16_from_f32(values[i]);
    memcpy(out, bf16 ? (const void *)halves : values, (size_t)words * sizeof *out);
}

// ---- from rows to panels --------------------------------------------------------------------------------------------

typedef uint32_t quad __attribute__((vector_size(16)));

static quad quad_load(const void *from)
{
    quad value;
    memcpy(&value, from, sizeof value); // rows may be unaligned
    return value;
}

// Place of one column in a chunk, which has PACK_WORDS words of K of all columns of a panel. Word k of the column is at
// `at` + k * stride.
struct packed_column {
    size_t at, stride;
};

static struct packed_column packed_column_of(bool tiled, int column)
{
    if (!tiled) return (struct packed_column){(size_t)column, PANEL_COLUMNS};
    return (struct packed_column){(size_t)(column / TILE_SIDE * TILE_SIZE + column % TILE_SIDE), TILE_SIDE};
}

// Turns PACK_WORDS words of four rows into four neighbouring columns of `to`, whose words are `stride` apart.
static void transpose_four_rows(uint32_t *to, size_t stride, const char *const row[4])
{
    for (int k = 0; k < PACK_WORDS; k += 4) {
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
            memcpy(to + (size_t)(k + i) * stride, &columns[i], sizeof columns[i]);
    }
}

// Uses non-temporal stores: a panel is next read when the model runs, and its lines are overwritten whole.
static void store_nontemporal(uint32_t *to, const uint32_t *from, size_t words)
{
#if defined(__SSE2__)
    for (size_t i = 0; i < words; i += 4)
        _mm_stream_si128((__m128i *)(void *)(to + i), _mm_load_si128((const __m128i *)(const void *)(from + i)));
#else
    memcpy(to, from, words * sizeof *to);
#endif
}

// Stores words [k, k + PACK_WORDS) of all columns of a panel.
static void chunk_store(const struct weight *w, int panel, int k, const uint32_t *chunk)
{
    uint32_t *to = w->panels + (size_t)panel * (size_t)w->words * PANEL_COLUMNS;
    int words = w->words - k < PACK_WORDS ? w->words - k : PACK_WORDS, half = PANEL_COLUMNS / 2;
    if (!w->tiled) {
        store_nontemporal(to + (size_t)k * PANEL_COLUMNS, chunk, (size_t)words * PANEL_COLUMNS);
        return;
    }
    for (int column = 0; column < PANEL_COLUMNS; column += half, chunk += PACK_WORDS * half)
        store_nontemporal(to + tiled_panel_at(w->words, k, column), chunk, (size_t)PACK_WORDS * (size_t)half);
}

static void store_fence(void) // orders the stores before another thread reads the panel
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

// Source of each column of one panel.
struct panel_source {
    const struct matrix_view *view[PANEL_COLUMNS]; // NULL: a column of zeros
    int64_t row[PANEL_COLUMNS];
    const char *from[PANEL_COLUMNS]; // start of the source row
    int word_bytes[PANEL_COLUMNS];   // source bytes of one word
    bool plain[PANEL_COLUMNS];       // source bytes are the packed words
};

static void panel_source_init(struct panel_source *columns, const struct weight_rows *source, int panel, bool bf16)
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

// Prefetches the source rows of a panel: they are 64 streams, more than the hardware prefetcher follows.
static void panel_source_prefetch(const struct panel_source *columns, int k, int words)
{
    for (int c = 0; c < PANEL_COLUMNS; c++)
        for (int i = 0; columns->view[c] && i < words; i += PACK_WORDS)
            __builtin_prefetch(columns->from[c] + (size_t)(k + i) * (size_t)columns->word_bytes[c], 0, 2);
}

// Transposes words [k, k + words) of four columns, at most PACK_WORDS. `plain`: the source rows have PACK_WORDS whole
// words there.
static void transpose_columns(uint32_t *to, bool tiled, const struct panel_source *columns, int first, int k, int words,
                              bool plain, bool bf16)
{
    uint32_t made[4][PACK_WORDS];
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
    struct packed_column column = packed_column_of(tiled, first);
    transpose_four_rows(to + column.at, column.stride, row);
}

struct packing {
    const struct cpu *cpu;
    struct weight *w;
    const struct weight_rows *source;
    // int8 and int4 working memory of each thread: one row as floats, and the rows of a panel as bytes.
    float *floats;
    uint8_t *bytes;
    // bf12: the bf16 words of a panel of each thread, in whole chunks.
    struct bf12_packing *bf12;
    uint32_t *words;
};

// Returns the words of one output in whole chunks.
static size_t chunk_words(const struct weight *w)
{
    return (size_t)(w->words + PACK_WORDS - 1) / PACK_WORDS * PACK_WORDS;
}

static void pack_panel(void *arg, int panel, int thread)
{
    const struct packing *p = arg;
    const struct weight *w = p->w;
    bool bf16 = p->cpu->bf16;
    // If K is odd, the last bf16 is half a word.
    int64_t plain_words = bf16 ? w->columns / 2 : w->columns;
    struct panel_source columns;
    panel_source_init(&columns, p->source, panel, bf16);
    panel_source_prefetch(&columns, 0, PREFETCH_WORDS);
    _Alignas(64) uint32_t chunk[PACK_WORDS * PANEL_COLUMNS];
    uint32_t *whole = p->words ? p->words + (size_t)thread * chunk_words(w) * PANEL_COLUMNS : NULL;
    for (int k = 0; k < w->words; k += PACK_WORDS) {
        int words = w->words - k < PACK_WORDS ? w->words - k : PACK_WORDS;
        uint32_t *to = whole ? whole + (size_t)k * PANEL_COLUMNS : chunk;
        panel_source_prefetch(&columns, k + PREFETCH_WORDS, 1);
        for (int c = 0; c < PANEL_COLUMNS; c += 4)
            transpose_columns(to, w->tiled, &columns, c, k, words, k + PACK_WORDS <= plain_words, bf16);
        if (!whole) chunk_store(w, panel, k, chunk);
    }
    store_fence();
    if (whole) bf12_pack_panel(p->bf12, panel, whole);
}

// ---- int8 -----------------------------------------------------------------------------------------------------------

// Returns true if the view holds the bytes of the weight, with one scale for each output.
static bool output_is_stored(const struct weight *w, const struct matrix_view *view)
{
    return w->type == GEMM_INT8 && view->dtype == DTYPE_INT8;
}

static uint32_t int8_start(const uint8_t *bytes, int n)
{
    int32_t sum = -128 * n;
    for (int i = 0; i < n; i++)
        sum += bytes[i];
    return (uint32_t)(-128 * sum);
}

static void copy_output(const struct weight *w, const struct matrix_view *view, int64_t row, uint8_t *bytes,
                        float *scale, uint32_t *start)
{
    const uint8_t *stored = (const uint8_t *)view->data + row * view->row_stride_bytes;
    for (int64_t i = 0; i < w->columns; i++)
        bytes[i] = stored[i] ^ 0x80;
    *scale = matrix_view_scale(view, row, 0);
    *start = int8_start(bytes, (int)w->columns);
}

// Quantises one output to bytes q + 128, with its scales and the start values of its sums.
static void quantise_output(const struct packing *p, const struct matrix_view *view, int64_t row, float *floats,
                            uint8_t *bytes, float *scale, uint32_t *start)
{
    const struct weight *w = p->w;
    int k = (int)w->columns, size = w->groups > 1 ? GROUP_SIZE : k;
    const char *raw = (const char *)view->data + row * view->row_stride_bytes;
    if (output_is_stored(w, view)) {
        copy_output(w, view, row, bytes, scale, start);
        return;
    }
    bool direct = view->dtype == DTYPE_BF16 && (uintptr_t)raw % 2 == 0;
    if (!direct) {
        matrix_view_read(view, row, 0, k, floats);
        raw = (const char *)floats;
    }
    for (int g = 0, at = 0; g < w->groups; g++, at += size) {
        int n = k - at < size ? k - at : size;
        scale[g * PANEL_COLUMNS] = p->cpu->isa->quantise(bytes + at, raw + at * (direct ? 2 : 4), direct, n);
        start[g * PANEL_COLUMNS] = int8_start(bytes + at, n);
    }
}

// Returns the bytes of one quantised output while its panel is packed: a multiple of PACK_WORDS words.
static size_t packed_row_bytes(const struct weight *w)
{
    return (size_t)(w->words + PACK_WORDS - 1) / PACK_WORDS * PACK_WORDS * 4;
}

// Stores a panel from rows of packed bytes. `flips` is applied to each word.
static void store_byte_rows(const struct weight *w, int panel, const uint8_t *bytes, size_t row_bytes, uint32_t flips)
{
    _Alignas(64) uint32_t chunk[PACK_WORDS * PANEL_COLUMNS];
    for (int k = 0; k < w->words; k += PACK_WORDS) {
        for (size_t c = 0; c < PANEL_COLUMNS; c += 4) {
            const char *at = (const char *)bytes + c * row_bytes + (size_t)k * 4;
            struct packed_column column = packed_column_of(w->tiled, (int)c);
            transpose_four_rows(chunk + column.at, column.stride,
                                (const char *[]){at, at + row_bytes, at + 2 * row_bytes, at + 3 * row_bytes});
        }
        for (int i = 0; i < PACK_WORDS * PANEL_COLUMNS; i++)
            chunk[i] ^= flips;
        chunk_store(w, panel, k, chunk);
    }
    store_fence();
}

static void pack_panel_int8(void *arg, int panel, int thread)
{
    const struct packing *p = arg;
    const struct weight *w = p->w;
    size_t row_bytes = packed_row_bytes(w), scales = (size_t)panel * (size_t)w->groups * PANEL_COLUMNS;
    uint8_t *bytes = p->bytes + (size_t)thread * PANEL_COLUMNS * row_bytes;
    memset(bytes, 128, PANEL_COLUMNS * row_bytes); // q = 0 in the padding
    memset(w->scale + scales, 0, (size_t)w->groups * PANEL_COLUMNS * sizeof *w->scale);
    memset(w->start + scales, 0, (size_t)w->groups * PANEL_COLUMNS * sizeof *w->start);
    for (size_t c = 0; c < PANEL_COLUMNS; c++) {
        int64_t row;
        const struct matrix_view *view = source_row(p->source, (int64_t)panel * PANEL_COLUMNS + (int64_t)c, &row);
        if (view)
            quantise_output(p, view, row, p->floats + (size_t)thread * (size_t)w->columns, bytes + c * row_bytes,
                            w->scale + scales + c, w->start + scales + c);
    }
    store_byte_rows(w, panel, bytes, row_bytes, 0x80808080u); // subtracts 128 from each byte
}

// ---- int4 -----------------------------------------------------------------------------------------------------------

// Returns the word of eight codes, see isa.h.
static uint32_t int4_word(const uint8_t *code)
{
    uint32_t word = 0;
    for (int i = 0; i < INT4_WORD; i++)
        word |= (uint32_t)code[i] << (4 * (i / 2) + 16 * (i % 2));
    return word;
}

// Packs the codes of one output, with its scales and zeros.
static void pack_output_int4(const struct weight *w, const struct matrix_view *view, int64_t row, uint32_t *words,
                             float *scale, int8_t *zero)
{
    const int k = (int)w->columns;
    for (int g = 0, at = 0; g < w->groups; g++, at += GROUP_SIZE) {
        struct int4_group group;
        const int n = k - at < GROUP_SIZE ? k - at : GROUP_SIZE;
        memset(group.code, INT4_MIDDLE, sizeof group.code); // code - 8 is 0 in the padding
        int4_group_read(view, row, at, n, &group);
        for (int i = 0; i < n; i += INT4_WORD)
            words[(at + i) / INT4_WORD] = int4_word(group.code + i);
        scale[g * PANEL_COLUMNS] = group.scale;
        zero[g * PANEL_COLUMNS] = (int8_t)(group.zero - INT4_MIDDLE);
    }
}

static void pack_panel_int4(void *arg, int panel, int thread)
{
    const struct packing *p = arg;
    const struct weight *w = p->w;
    size_t row_bytes = packed_row_bytes(w), scales = (size_t)panel * (size_t)w->groups * PANEL_COLUMNS;
    uint8_t *bytes = p->bytes + (size_t)thread * PANEL_COLUMNS * row_bytes;
    memset(bytes, INT4_MIDDLE * 0x11, PANEL_COLUMNS * row_bytes);
    memset(w->scale + scales, 0, (size_t)w->groups * PANEL_COLUMNS * sizeof *w->scale);
    memset(w->zero + scales, 0, (size_t)w->groups * PANEL_COLUMNS * sizeof *w->zero);
    for (size_t c = 0; c < PANEL_COLUMNS; c++) {
        int64_t row;
        const struct matrix_view *view = source_row(p->source, (int64_t)panel * PANEL_COLUMNS + (int64_t)c, &row);
        if (view)
            pack_output_int4(w, view, row, (uint32_t *)(void *)(bytes + c * row_bytes), w->scale + scales + c,
                             w->zero + scales + c);
    }
    store_byte_rows(w, panel, bytes, row_bytes, 0);
}

// Creates a weight. `type` is the type of a MATRIX.
static struct weight *weight_new(struct cpu *cpu, enum weight_kind kind, enum gemm_type type, int64_t rows,
                                 int64_t columns)
{
    struct weight *w = mem_alloc(sizeof *w);
    *w = (struct weight){.next = cpu->weights, .kind = kind, .type = type, .rows = rows, .columns = columns};
    int step = type == GEMM_INT4 ? INT4_STEP : cpu->isa->step_words;
    w->tiled = cpu_tiled(cpu) && type != GEMM_INT4 && type != GEMM_BF12;
    w->words = kind == WEIGHT_MATRIX ? (gemm_word_count((int)columns, type) + step - 1) / step * step
                                     : word_count((int)columns, cpu->bf16);
    return cpu->weights = w; // from now on `close` frees it
}

// Returns the type of a matrix: bf16 if the backend computes matrices as they are stored, and no part is quantised.
static enum gemm_type matrix_type(const struct cpu *cpu, const struct weight_rows *source)
{
    const enum dtype quantised = cpu->gemm_type == GEMM_INT4 ? DTYPE_INT4_G128 : DTYPE_INT8;
    if (!cpu->shape.as_stored || cpu->gemm_type == GEMM_F32) return cpu->gemm_type;
    for (int p = 0; p < source->n_parts; p++)
        if (source->parts[p].dtype == quantised) return cpu->gemm_type;
    return GEMM_BF16;
}

static enum status weight_no_memory(const struct weight *w)
{
    return status_fail(STATUS_EXHAUSTED, "no memory for a weight of %lld x %lld", (long long)w->rows,
                       (long long)w->columns);
}

// ---- packed weight cache --------------------------------------------------------------------------------------------

// Lists the arrays of a weight that the packed weight cache stores. A vector or a tied table has none.
static int weight_arrays(const struct weight *w, struct packed_array arrays[PACKED_ARRAYS])
{
    size_t words = (size_t)gemm_stored_words(w->words, w->type) * sizeof(uint32_t),
           scales = (size_t)w->n_panels * (size_t)w->groups;
    if (w->kind == WEIGHT_EMBEDDING && !w->head) {
        arrays[0] = (struct packed_array){w->table, (size_t)w->rows * words};
        return 1;
    }
    if (w->kind != WEIGHT_MATRIX) return 0;
    arrays[0] = (struct packed_array){w->panels, (size_t)w->n_panels * PANEL_COLUMNS * words};
    if (w->type == GEMM_BF12) {
        const size_t panels = (size_t)w->n_panels;
        arrays[1] = (struct packed_array){w->exponents, panels * BF12_EXPONENTS};
        arrays[2] = (struct packed_array){w->first_escape, (panels + 1) * sizeof *w->first_escape};
        arrays[3] =
            (struct packed_array){w->escapes, w->first_escape ? w->first_escape[panels] * sizeof *w->escapes : 0};
        return 4;
    }
    arrays[1] = (struct packed_array){w->scale, scales * PANEL_COLUMNS * sizeof *w->scale};
    if (w->type == GEMM_INT4)
        arrays[2] = (struct packed_array){w->zero, scales * PANEL_COLUMNS * sizeof *w->zero};
    else
        arrays[2] = (struct packed_array){w->start, scales * PANEL_COLUMNS * sizeof *w->start};
    return w->groups ? 3 : 1;
}

// Maps a bf12 matrix. The file decides whether the matrix was compressed, and the number of escapes.
static bool weight_map_bf12(struct cpu *cpu, struct weight *w)
{
    struct packed_array arrays[PACKED_ARRAYS] = {{0}};
    size_t bytes[PACKED_ARRAYS] = {0};
    if (packed_cache_next(cpu->packed_cache, bytes) == 1) {
        w->type = GEMM_BF16;
        w->tiled = cpu_tiled(cpu);
    }
    const int n = weight_arrays(w, arrays);
    if (n > 1) arrays[3].bytes = bytes[3];
    if (!packed_cache_lookup(cpu->packed_cache, w, arrays, n)) {
        w->type = GEMM_BF12;
        w->tiled = false;
        return false;
    }
    w->panels = arrays[0].data;
    if (n == 1) return true;
    w->exponents = arrays[1].data;
    w->first_escape = arrays[2].data;
    w->escapes = arrays[3].data;
    if (bf12_is_whole(w, arrays[3].bytes)) return true;
    packed_cache_refuse(cpu->packed_cache, "its escapes are damaged");
    *w = (struct weight){.next = w->next,
                         .kind = w->kind,
                         .type = w->type,
                         .gate_up = w->gate_up,
                         .rows = w->rows,
                         .columns = w->columns,
                         .words = w->words,
                         .n_panels = w->n_panels};
    return false;
}

static bool weight_map(struct cpu *cpu, struct weight *w)
{
    struct packed_array arrays[PACKED_ARRAYS] = {{0}};
    if (!cpu->packed_cache) return false;
    if (w->type == GEMM_BF12) return w->mapped = weight_map_bf12(cpu, w);
    int n = weight_arrays(w, arrays);
    if (!packed_cache_lookup(cpu->packed_cache, w, arrays, n)) return false;
    *(w->kind == WEIGHT_EMBEDDING ? &w->table : &w->panels) = arrays[0].data;
    if (n == 3) {
        w->scale = arrays[1].data;
        *(w->type == GEMM_INT4 ? (void **)&w->zero : (void **)&w->start) = arrays[2].data;
    }
    return w->mapped = true;
}

bool cpu_packed_cache_open(struct backend *b, const char *path, uint64_t key)
{
    struct cpu *cpu = cpu_of(b);
    char layout[48];
    snprintf(layout, sizeof layout, "cpu type %d panel %d vector %d step %d tiled %d", (int)cpu->gemm_type,
             PANEL_COLUMNS, cpu->isa->vector_floats, cpu->isa->step_words, cpu_tiled(cpu) ? TILED_BLOCK_WORDS : 0);
    char *full = mem_format("%s-cpu%d-%d.weights", path, cpu->isa->vector_floats, cpu->isa->step_words);
    cpu->packed_cache = packed_cache_open(full, layout, key);
    free(full);
    return packed_cache_hit(cpu->packed_cache);
}

static void packed_cache_save(struct cpu *cpu)
{
    int n = 0;
    for (const struct weight *w = cpu->weights; w; w = w->next)
        n++;
    int left = n;
    struct packed_weight *all = mem_alloc_array((size_t)n, sizeof *all);
    for (const struct weight *w = cpu->weights; w; w = w->next) { // the list starts with the newest
        struct packed_weight *to = &all[--left];
        to->weight = w;
        to->n = weight_arrays(w, to->arrays);
    }
    packed_cache_write(cpu->packed_cache, all, n);
    free(all);
}

void cpu_weights_finish(struct backend *b)
{
    struct cpu *cpu = cpu_of(b);
    cpu_stream_tune(cpu);
    if (cpu->gemm_type == GEMM_BF12) bf12_log(cpu);
    if (cpu->packed_cache) packed_cache_save(cpu);
    cpu_attention_prefault(cpu);
}

// ---- creating weights -----------------------------------------------------------------------------------------------

// Quantises and packs all panels. Frees the threads' working memory.
static enum status pack_quantised(struct packing *p)
{
    struct weight *w = p->w;
    const bool int4 = w->type == GEMM_INT4;
    const size_t panels = (size_t)w->n_panels, scales = panels * (size_t)w->groups;
    w->scale = cpu_memory_alloc(scales, PANEL_COLUMNS * sizeof *w->scale, false);
    if (int4)
        w->zero = cpu_memory_alloc(scales, PANEL_COLUMNS * sizeof *w->zero, false);
    else
        w->start = cpu_memory_alloc(scales, PANEL_COLUMNS * sizeof *w->start, false);
    p->floats = cpu_memory_alloc((size_t)p->cpu->threads, (size_t)w->columns * sizeof *p->floats, false);
    p->bytes = cpu_memory_alloc((size_t)p->cpu->threads, PANEL_COLUMNS * packed_row_bytes(w), false);
    bool enough = w->scale && (w->start || w->zero) && p->floats && p->bytes;
    if (enough)
        cpu_run(p->cpu, THREAD_POOL_STATIC, w->rows * w->columns, int4 ? pack_panel_int4 : pack_panel_int8, p,
                (int)panels);
    free(p->floats);
    free(p->bytes);
    return enough ? STATUS_OK : weight_no_memory(w);
}

static enum status panels_alloc(struct weight *w)
{
    const size_t words = (size_t)gemm_stored_words(w->words, w->type) * PANEL_COLUMNS;
    w->panels = cpu_memory_alloc((size_t)w->n_panels, words * sizeof *w->panels, false);
    return w->panels ? STATUS_OK : weight_no_memory(w);
}

// Packs all panels in bf12. If the matrix does not compress, gives its panels up and makes it a bf16 matrix.
static enum status pack_bf12(struct packing *p)
{
    struct weight *w = p->w;
    struct bf12_packing bf12;
    p->bf12 = &bf12;
    p->words = cpu_memory_alloc((size_t)p->cpu->threads, chunk_words(w) * PANEL_COLUMNS * sizeof *p->words, false);
    const bool enough = bf12_packing_init(&bf12, w) && p->words;
    if (enough) cpu_run(p->cpu, THREAD_POOL_STATIC, w->rows * w->columns, pack_panel, p, (int)w->n_panels);
    const bool failed = bf12_packing_failed(&bf12);
    free(p->words);
    p->words = NULL;
    if (!bf12_packing_finish(&bf12) && !failed) return weight_no_memory(w);
    if (failed || !enough) bf12_give_up(w);
    return enough ? STATUS_OK : weight_no_memory(w);
}

static enum status weight_matrix_create(struct cpu *cpu, const struct weight_rows *source, struct weight **weight_p)
{
    struct weight *w = weight_new(cpu, WEIGHT_MATRIX, matrix_type(cpu, source), source->rows, source->parts[0].columns);
    w->gate_up = source->gate_up_unit > 0;
    w->n_panels = (w->rows + PANEL_COLUMNS - 1) / PANEL_COLUMNS;
    if (w->gate_up) {
        // A panel has half as many gate columns and half as many up columns.
        int64_t half = PANEL_COLUMNS / 2;
        w->n_panels = (w->rows / 2 + half - 1) / half;
    }
    if (gemm_is_int8(w->type) && w->columns > MAX_INT8_COLUMNS)
        return status_fail(STATUS_UNSUPPORTED, "a weight with K %lld: int8 sums hold at most %d", (long long)w->columns,
                           MAX_INT8_COLUMNS);
    if (gemm_is_int8(w->type) || w->type == GEMM_INT4) w->groups = cpu_groups(cpu, (int)w->columns);
    *weight_p = w;
    if (weight_map(cpu, w)) return STATUS_OK;
    TRY(panels_alloc(w));
    struct packing packing = {.cpu = cpu, .w = w, .source = source};
    if (w->groups) return pack_quantised(&packing);
    if (w->type == GEMM_BF12) {
        TRY(pack_bf12(&packing));
        if (w->type == GEMM_BF12) return STATUS_OK;
        w->tiled = cpu_tiled(cpu);
        TRY(panels_alloc(w));
    }
    cpu_run(cpu, THREAD_POOL_STATIC, w->rows * w->columns, pack_panel, &packing, (int)w->n_panels);
    return STATUS_OK;
}

enum status cpu_weight_create(struct backend *b, const struct matrix_view *parts, int n_parts, struct weight **weight_p)
{
    struct weight_rows source = {.parts = parts, .n_parts = n_parts};
    for (int p = 0; p < n_parts; p++) {
        INVARIANT(parts[p].columns == parts[0].columns, "weight parts of K %lld and %lld", (long long)parts[0].columns,
                  (long long)parts[p].columns);
        source.rows += parts[p].rows;
    }
    return weight_matrix_create(cpu_of(b), &source, weight_p);
}

enum status cpu_weight_gate_up(struct backend *b, const struct matrix_view *gate, const struct matrix_view *up,
                               struct weight **weight_p)
{
    INVARIANT(gate->rows == up->rows && gate->columns == up->columns, "gate of %lld x %lld, up of %lld x %lld",
              (long long)gate->rows, (long long)gate->columns, (long long)up->rows, (long long)up->columns);
    const struct matrix_view parts[2] = {*gate, *up};
    struct weight_rows source = {parts, 2, cpu_of(b)->isa->vector_floats, 2 * gate->rows};
    return weight_matrix_create(cpu_of(b), &source, weight_p);
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
    for (int k = 0; k < p->w->words; k += PACK_WORDS)
        row_words(p->view, row, k, p->w->words - k < PACK_WORDS ? p->w->words - k : PACK_WORDS, p->cpu->bf16, to + k);
}

enum status cpu_weight_embedding(struct backend *b, const struct matrix_view *table, int32_t first_row,
                                 struct weight *shared_head, struct weight **weight_p)
{
    struct cpu *cpu = cpu_of(b);
    struct weight *w = weight_new(cpu, WEIGHT_EMBEDDING, GEMM_BF16, table->rows, table->columns);
    w->first_row = first_row;
    // A quantised head is no embedding: that is not quantised.
    w->head = shared_head && !shared_head->groups ? shared_head : NULL;
    if (w->head) {
        INVARIANT(shared_head->kind == WEIGHT_MATRIX && !shared_head->gate_up && shared_head->rows == table->rows &&
                      shared_head->columns == table->columns,
                  "tied head of kind %d, %lld x %lld, table of %lld x %lld", (int)shared_head->kind,
                  (long long)shared_head->rows, (long long)shared_head->columns, (long long)table->rows,
                  (long long)table->columns);
    } else if (!weight_map(cpu, w)) {
        w->table = cpu_memory_alloc((size_t)w->rows, (size_t)w->words * sizeof *w->table, false);
        if (!w->table) return weight_no_memory(w);
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
        INVARIANT(parts[p].rows == 1, "vector part of %lld rows", (long long)parts[p].rows);
        columns += parts[p].columns;
    }
    struct weight *w = weight_new(cpu_of(b), WEIGHT_VECTOR, GEMM_F32, 1, columns);
    w->vector = cpu_memory_alloc((size_t)(columns + PANEL_COLUMNS), sizeof *w->vector, true);
    if (!w->vector) return weight_no_memory(w);
    float *out = w->vector;
    for (int p = 0; p < n_parts; out += parts[p++].columns)
        matrix_view_read(&parts[p], 0, 0, parts[p].columns, out);
    *weight_p = w;
    return STATUS_OK;
}

void cpu_weight_free(struct weight *w)
{
    if (!w->mapped) {
        free(w->panels);
        free(w->scale);
        free(w->start);
        free(w->zero);
        free(w->exponents);
        free(w->first_escape);
        free(w->escapes);
        free(w->table);
    }
    free(w->vector);
    free(w);
}

// Converts `columns` numbers of a row to floats. The words that hold them are `stride` words apart.
static void words_convert(const uint32_t *word, int64_t stride, bool bf16, int64_t columns, float *out)
{
    if (!bf16) {
        for (int64_t i = 0; i < columns; i++)
            out[i] = f32_from_bits(word[i * stride]);
        return;
    }
    for (int64_t i = 0; i < columns / 2; i++) {
        out[2 * i] = f32_from_bits(word[i * stride] << 16);
        out[2 * i + 1] = f32_from_bits(word[i * stride] & 0xffff0000);
    }
    if (columns % 2) out[columns - 1] = f32_from_bits(word[columns / 2 * stride] << 16);
}

// Converts a row of a tied table, which is a column of one of the head's panels.
static void head_row_convert(const struct weight *head, int64_t row, bool bf16, int64_t columns, float *out)
{
    if (head->type == GEMM_BF12) {
        bf12_row_convert(head, row, columns, out);
        return;
    }
    const uint32_t *panel = head->panels + (size_t)(row / PANEL_COLUMNS) * (size_t)head->words * PANEL_COLUMNS;
    const int column = (int)(row % PANEL_COLUMNS);
    if (!head->tiled) {
        words_convert(panel + column, PANEL_COLUMNS, bf16, columns, out);
        return;
    }
    const int64_t of_tile = bf16 ? 2 * TILE_SIDE : TILE_SIDE;
    for (int64_t at = 0; at < columns; at += of_tile) {
        const size_t tile = tiled_panel_at(head->words, (int)(bf16 ? at / 2 : at), column - column % TILE_SIDE);
        words_convert(panel + tile + column % TILE_SIDE, TILE_SIDE, bf16,
                      columns - at < of_tile ? columns - at : of_tile, out + at);
    }
}

void cpu_embedding_row(const struct weight *table, bool bf16, int32_t token, float *out)
{
    int64_t row = (int64_t)token - table->first_row;
    if (row < 0 || row >= table->rows) {
        memset(out, 0, (size_t)table->columns * sizeof *out);
        return;
    }
    if (table->head)
        head_row_convert(table->head, row, bf16, table->columns, out);
    else
        words_convert(table->table + row * table->words, 1, bf16, table->columns, out);
}
