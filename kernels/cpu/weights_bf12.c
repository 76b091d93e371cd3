// SPDX-License-Identifier: Apache-2.0
// Compresses packed bf16 panels to 12 bits (kernels/bf12.h), and reads them back. A matrix with too many escapes is
// given up, and weights.c then packs it in bf16.
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "lib/base/log.h"

// ---- compressing ----------------------------------------------------------------------------------------------------

// Weights that all panels store, with their padding.
static uint64_t stored_weights(const struct weight *w)
{
    return (uint64_t)w->n_panels * PANEL_COLUMNS * 2 * (uint64_t)w->words;
}

bool bf12_packing_init(struct bf12_packing *p, struct weight *w)
{
    *p = (struct bf12_packing){.w = w, .limit = stored_weights(w) / BF12_ESCAPES_IN};
    const size_t panels = (size_t)w->n_panels;
    w->exponents = cpu_memory_alloc(panels, BF12_EXPONENTS, true);
    w->first_escape = cpu_memory_alloc(panels + 1, sizeof *w->first_escape, true);
    p->lists = mem_alloc_array(panels, sizeof *p->lists);
    atomic_init(&p->escapes, 0);
    return w->exponents && w->first_escape;
}

bool bf12_packing_failed(const struct bf12_packing *p)
{
    return atomic_load_explicit(&p->escapes, memory_order_relaxed) > p->limit;
}

// Lists the weights whose exponents have no code.
static void escapes_list(const uint32_t *words, int n, const uint8_t code[256], struct bf12_escape *to)
{
    for (int k = 0; k < n; k++)
        for (int c = 0; c < PANEL_COLUMNS; c++)
            for (int odd = 0; odd < 2; odd++) {
                const uint16_t half = (uint16_t)(words[k * PANEL_COLUMNS + c] >> 16 * odd);
                if (code[half >> 7 & 0xff] != BF12_NO_CODE) continue;
                *to++ = (struct bf12_escape){(uint32_t)k, (uint8_t)c, (uint8_t)odd, half};
            }
}

void bf12_pack_panel(struct bf12_packing *p, int panel, const uint32_t *words)
{
    struct weight *w = p->w;
    uint32_t count[256] = {0};
    uint8_t *exponent = w->exponents + (size_t)panel * BF12_EXPONENTS, code[256];
    for (int i = 0; i < w->words * PANEL_COLUMNS; i++) {
        count[words[i] >> 7 & 0xff]++;
        count[words[i] >> 23 & 0xff]++;
    }
    const uint64_t n = bf12_choose(count, exponent);
    if (atomic_fetch_add_explicit(&p->escapes, n, memory_order_relaxed) + n > p->limit) return;
    bf12_codes(exponent, code);
    w->first_escape[panel + 1] = (uint32_t)n;
    if (n) {
        p->lists[panel] = mem_alloc_array((size_t)n, sizeof **p->lists);
        escapes_list(words, w->words, code, p->lists[panel]);
    }
    uint32_t *to = w->panels + (size_t)panel * (size_t)gemm_stored_words(w->words, GEMM_BF12) * PANEL_COLUMNS;
    for (int k = 0; k < w->words; k += BF12_QUAD, to += BF12_QUAD_WORDS * PANEL_COLUMNS)
        for (int c = 0; c < PANEL_COLUMNS; c++) {
            uint32_t word[BF12_QUAD], quad[BF12_QUAD_WORDS];
            for (int i = 0; i < BF12_QUAD; i++)
                word[i] = k + i < w->words ? words[(k + i) * PANEL_COLUMNS + c] : 0;
            bf12_encode(word, code, quad);
            for (int i = 0; i < BF12_QUAD_WORDS; i++)
                to[i * PANEL_COLUMNS + c] = quad[i];
        }
}

bool bf12_packing_finish(struct bf12_packing *p)
{
    struct weight *w = p->w;
    const bool failed = bf12_packing_failed(p);
    for (int64_t i = 0; i < w->n_panels && !failed; i++)
        w->first_escape[i + 1] += w->first_escape[i];
    const size_t n = w->first_escape[w->n_panels];
    if (!failed) w->escapes = cpu_memory_alloc(n + 1, sizeof *w->escapes, false); // never NULL if there is memory
    for (int64_t i = 0; i < w->n_panels; i++) {
        const uint32_t first = w->first_escape[i];
        if (w->escapes && p->lists[i])
            memcpy(w->escapes + first, p->lists[i], (w->first_escape[i + 1] - first) * sizeof *w->escapes);
        free(p->lists[i]);
    }
    free(p->lists);
    return w->escapes != NULL;
}

void bf12_give_up(struct weight *w)
{
    free(w->panels);
    free(w->exponents);
    free(w->first_escape);
    w->panels = NULL;
    w->exponents = NULL;
    w->first_escape = NULL;
    w->type = GEMM_BF16;
}

// ---- reading --------------------------------------------------------------------------------------------------------

bool bf12_is_whole(const struct weight *w, size_t escape_bytes)
{
    const size_t n_escapes = escape_bytes / sizeof *w->escapes;
    if (escape_bytes % sizeof *w->escapes) return false;
    if (w->first_escape[0] != 0 || w->first_escape[w->n_panels] != n_escapes) return false;
    for (int64_t panel = 0; panel < w->n_panels; panel++) {
        const uint32_t first = w->first_escape[panel], end = w->first_escape[panel + 1];
        if (end < first || end > n_escapes) return false;
        for (uint32_t i = first; i < end; i++) {
            const struct bf12_escape *e = &w->escapes[i];
            if (e->word >= (uint32_t)w->words || e->column >= PANEL_COLUMNS || e->odd > 1) return false;
            if (i > first && e->word < e[-1].word) return false;
        }
    }
    return true;
}

void bf12_row_convert(const struct weight *w, int64_t row, int64_t columns, float *out)
{
    const int64_t panel = row / PANEL_COLUMNS;
    const int column = (int)(row % PANEL_COLUMNS);
    const uint8_t *exponent = w->exponents + panel * BF12_EXPONENTS;
    const uint32_t *quad = w->panels + (size_t)panel * (size_t)gemm_stored_words(w->words, w->type) * PANEL_COLUMNS;
    for (int64_t i = 0; i < columns; i++) {
        const uint32_t *from = quad + i / (2 * BF12_QUAD) * BF12_QUAD_WORDS * PANEL_COLUMNS + column;
        const uint32_t stored[BF12_QUAD_WORDS] = {from[0], from[PANEL_COLUMNS], from[2 * PANEL_COLUMNS]};
        const uint32_t word = bf12_decode(stored, exponent, (int)(i / 2 % BF12_QUAD));
        out[i] = f32_from_bits(i % 2 ? word & 0xffff0000u : word << 16);
    }
    const struct bf12_escape *end = w->escapes + w->first_escape[panel + 1];
    for (const struct bf12_escape *e = w->escapes + w->first_escape[panel]; e < end; e++)
        if (e->column == column && 2 * (int64_t)e->word + e->odd < columns)
            out[2 * (int64_t)e->word + e->odd] = bf16_to_f32(e->half);
}

void bf12_log(const struct cpu *cpu)
{
    int matrices = 0, in_bf16 = 0;
    uint64_t bytes = 0, escapes = 0, weights = 0;
    for (const struct weight *w = cpu->weights; w; w = w->next) {
        if (w->kind != WEIGHT_MATRIX) continue;
        matrices++;
        in_bf16 += w->type == GEMM_BF16;
        bytes += (uint64_t)w->n_panels * PANEL_COLUMNS * 4 * (uint64_t)gemm_stored_words(w->words, w->type);
        if (w->type != GEMM_BF12) continue;
        const uint64_t n = w->first_escape[w->n_panels];
        bytes += n * sizeof *w->escapes + (uint64_t)w->n_panels * (BF12_EXPONENTS + sizeof *w->first_escape);
        escapes += n;
        weights += stored_weights(w);
    }
    log_event(LOG_INFO, "weights_compressed", LOG_FIELD("matrices", matrices), LOG_FIELD("in_bf16", in_bf16),
              LOG_FIELD("bytes", bytes),
              LOG_FIELD("escapes_per_million", weights ? 1e6 * (double)escapes / (double)weights : 0));
}
