// SPDX-License-Identifier: Apache-2.0
// Attention over the KV blocks of one sequence (included by kernels.c): online softmax (arXiv 1805.02867), tiled as in
// arXiv 2205.14135. A tile of queries shares every read of K and V. Both gemms use register tiles: queries by entries
// for q . K, queries by dimensions for weights . V. For the block layout see struct kv_view in isa.h.
//
// Units, all counted from the sequence's first entry:
//
//      entries    0 ... 63 | 64 ... 127 | .. | 960 .. 1023 | 1024 ..
//                 |- step -|--- step ---|    |--- step ----|
//                 |--------------- segment ----------------|- segment ..
//
// Exactness: a query walks its entries in steps of TILE_ENTRIES. The sums of each segment of SEGMENT_ENTRIES start at
// zero and are merged in order. An entry that a query does not see has weight 0 and is left out of the gemm with V. So
// a result does not depend on later entries (old data and NaN included), on the other queries of the tile, or on the
// number of threads that compute segments.
//
// Softmax weights are powers of 2 relative to a maximum rounded to an integer: rescaling is exact, and rounding a
// weight to bf16 does not depend on the maximum at that time.
#pragma once

enum {
    QUERY_TILE = ATTEND_QUERY_TILE,
    COLUMN_VECS = VEC == 16 ? 4 : 2, // 6 x 4 vectors in AVX-512's 32 registers, 6 x 2 elsewhere
    STEP_VECS = TILE_ENTRIES / VEC,
    TILE_BLOCKS = TILE_ENTRIES / KV_BLOCK_TOKENS,
};

// Addresses of K and V of one step.
struct step_blocks {
    const uint32_t *keys[TILE_BLOCKS], *values[TILE_BLOCKS];
    const float *k_scale, *v_scale; // int8: [TILE_ENTRIES], set by step_widen_int8
};

// Returns the blocks of a step. Blocks after the block of entry end - 1 repeat that block, and their results are
// masked.
INLINE struct step_blocks step_blocks_at(const struct kv_view *kv, int first, int end)
{
    struct step_blocks step;
    int last = (end - 1) / KV_BLOCK_TOKENS;
    for (int i = 0; i < TILE_BLOCKS; i++) {
        int block = first / KV_BLOCK_TOKENS + i;
        const char *at = kv->base + (size_t)kv->blocks[block < last ? block : last] * kv->block_bytes;
        step.keys[i] = (const uint32_t *)(const void *)at;
        step.values[i] = (const uint32_t *)(const void *)(at + kv->v_offset_bytes);
    }
    return step;
}

INLINE int step_n_blocks(int first, int end)
{
    return end - first < TILE_ENTRIES ? (end - first + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS : TILE_BLOCKS;
}

// Prefetches one of `parts` equal shares of a step's blocks into L2: share number `part`. The hardware cannot predict
// the address of a block.
INLINE void step_prefetch(const struct step_blocks *step, size_t block_bytes, int part, int parts)
{
    size_t lines = block_bytes / 64, from = lines * (size_t)part / (size_t)parts;
    size_t to = lines * (size_t)(part + 1) / (size_t)parts;
    for (int i = 0; i < TILE_BLOCKS; i++)
        for (size_t line = from; line < to; line++)
            __builtin_prefetch((const char *)step->keys[i] + line * 64, 0, 2);
}

// Widens pairs of rows of bytes to rows of bf16 words.
INLINE void widen(uint32_t *to, const void *from, int pairs, int columns)
{
    const int8_t *bytes = from;
    for (int r = 0; r < pairs; r++, bytes += 2 * columns, to += columns)
        for (int c = 0; c < columns; c += VEC) {
            vec_word words = vec_pair(vec_load_bytes(bytes + c), vec_load_bytes(bytes + columns + c));
            memcpy(to + c, &words, sizeof words);
        }
}

// Widens a step's first n int8 blocks to bf16 in `memory` [step_words_floats], once for all queries of a tile. Later
// blocks repeat the last one, as in step_blocks_at.
static __attribute__((noinline)) struct step_blocks
step_widen_int8(const struct kv_view *kv, const struct step_blocks *step, int n, float *memory, bool with_values)
{
    float *k_scale = memory, *v_scale = memory + TILE_ENTRIES;
    uint32_t *words = (uint32_t *)(void *)(memory + 2 * TILE_ENTRIES);
    struct step_blocks wide = {.k_scale = k_scale, .v_scale = v_scale};
    for (int i = 0; i < n; i++) {
        const float *scale = (const float *)(const void *)((const char *)step->keys[i] + kv->scale_offset_bytes);
        memcpy(k_scale + i * KV_BLOCK_TOKENS, scale, KV_BLOCK_TOKENS * sizeof *scale);
        memcpy(v_scale + i * KV_BLOCK_TOKENS, scale + KV_BLOCK_TOKENS, KV_BLOCK_TOKENS * sizeof *scale);
        wide.keys[i] = words;
        widen(words, step->keys[i], kv->head_size / 2, KV_BLOCK_TOKENS);
        words += kv->head_size / 2 * KV_BLOCK_TOKENS;
        wide.values[i] = words;
        if (with_values) widen(words, step->values[i], KV_BLOCK_TOKENS / 2, kv->v_stride);
        words += KV_BLOCK_TOKENS / 2 * kv->v_stride;
    }
    for (int i = n; i < TILE_BLOCKS; i++) {
        wide.keys[i] = wide.keys[n - 1];
        wide.values[i] = wide.values[n - 1];
    }
    return wide;
}

// Computes score[r][e] = q_r . k_e for the TILE_ENTRIES entries of a step. q is [queries][words].
INLINE void step_scores(const uint32_t *const *keys, const uint32_t *q, int words, float *score, const int queries,
                        const bool bf16)
{
    for (int first = 0; first < STEP_VECS; first += COLUMN_VECS) {
        vec acc[QUERY_TILE][COLUMN_VECS];
        const uint32_t *from[COLUMN_VECS];
#pragma GCC unroll 4
        for (int j = 0; j < COLUMN_VECS; j++)
            from[j] = keys[(first + j) * VEC / KV_BLOCK_TOKENS] + (first + j) * VEC % KV_BLOCK_TOKENS;
#pragma GCC unroll 6
        for (int r = 0; r < queries; r++)
#pragma GCC unroll 4
            for (int j = 0; j < COLUMN_VECS; j++)
                acc[r][j] = vec_set(0);
        for (int k = 0; k < words; k++) {
            vec_word key[COLUMN_VECS];
#pragma GCC unroll 4
            for (int j = 0; j < COLUMN_VECS; j++)
                key[j] = vec_load_words(from[j] + k * KV_BLOCK_TOKENS);
#pragma GCC unroll 6
            for (int r = 0; r < queries; r++) {
                uint32_t word;
                memcpy(&word, q + r * words + k, sizeof word); // memcpy: q may hold bf16
                vec_word x = vec_set_words(word);
#pragma GCC unroll 4
                for (int j = 0; j < COLUMN_VECS; j++)
                    acc[r][j] = vec_dot(acc[r][j], x, key[j], bf16);
            }
        }
#pragma GCC unroll 6
        for (int r = 0; r < queries; r++)
#pragma GCC unroll 4
            for (int j = 0; j < COLUMN_VECS; j++)
                vec_store(score + r * TILE_ENTRIES + (first + j) * VEC, acc[r][j]);
    }
}

// Returns vector `i` of a query's scores, masked from entry `valid` on.
INLINE vec step_score(const float *score, const float *k_scale, int i, int valid, const bool int8)
{
    vec s = vec_load(score + i * VEC);
    if (int8) s = s * vec_load(k_scale + i * VEC);
    return valid < TILE_ENTRIES ? vec_select(vec_first(valid - i * VEC), s, vec_set(-__builtin_inff())) : s;
}

// Turns scores into weights 2^(scale * score - max), which are 0 from entry `valid` on. Raises max, adds the weights to
// the lanes of sum, and returns in `rescale` the factors for earlier sums. Queries advance together to hide the
// latency of each maximum. With int8, scores are multiplied by the scales of K and weights by the scales of V.
INLINE void step_softmax(const struct step_blocks *step, const float *score, int valid, float scale, float *max,
                         float *sum, uint32_t *weight, float *rescale, const int queries, const bool bf16,
                         const bool int8)
{
    vec largest[QUERY_TILE];
    float old_max[SUM_LANES] = {0}, new_max[SUM_LANES] = {0};
#pragma GCC unroll 6
    for (int r = 0; r < queries; r++) {
        largest[r] = vec_set(-__builtin_inff());
#pragma GCC unroll 16
        for (int i = 0; i < STEP_VECS; i++)
            largest[r] = vec_max(largest[r], step_score(score + r * TILE_ENTRIES, step->k_scale, i, valid, int8));
    }
#pragma GCC unroll 4
    for (int width = VEC / 2; width; width /= 2)
#pragma GCC unroll 6
        for (int r = 0; r < queries; r++)
            largest[r] = vec_max(largest[r], vec_swap(largest[r], width));
#pragma GCC unroll 6
    for (int r = 0; r < queries; r++) {
        largest[r] = vec_max(vec_round(largest[r] * scale), vec_set(max[r]));
        old_max[r] = max[r];
        new_max[r] = max[r] = largest[r][0];
    }
    for (int r = 0; r < QUERY_TILE; r += VEC) {
        vec change = vec_load(old_max + r) - vec_load(new_max + r);
        vec_exp2(&change, 1);
        vec_store(rescale + r, change);
    }
    for (int r = 0; r < queries; r++) {
        vec w[STEP_VECS], total = vec_load(sum + r * SUM_LANES) * rescale[r];
#pragma GCC unroll 16
        for (int i = 0; i < STEP_VECS; i++) {
            vec s = step_score(score + r * TILE_ENTRIES, step->k_scale, i, valid, int8);
            w[i] = vec_fma(s, vec_set(scale), vec_set(-new_max[r]));
        }
        vec_exp2(w, STEP_VECS);
        uint32_t *to = weight + r * word_count(TILE_ENTRIES, bf16);
#pragma GCC unroll 16
        for (int i = 0; i < STEP_VECS; i++) {
            total = total + w[i];
            if (int8) w[i] = w[i] * vec_load(step->v_scale + i * VEC);
            // The scale of a masked entry may be NaN, and 0 * NaN is NaN.
            if (int8 && valid < TILE_ENTRIES) w[i] = vec_select(vec_first(valid - i * VEC), w[i], vec_set(0));
            if (bf16)
                vec_store_bf16((uint16_t *)(void *)to + i * VEC, w[i]);
            else
                vec_store((float *)(void *)to + i * VEC, w[i]);
        }
        vec_store(sum + r * SUM_LANES, total);
    }
}

// Computes o[r] = o[r] * rescale[r] + sum over the step's first `valid` entries, in order, of weight[r][e] * v_e, for
// `vecs` vectors of dimensions from `column` on. `weight` is [queries][words of TILE_ENTRIES].
INLINE void step_weighted_sum_columns(const uint32_t *const *values, int stride, const uint32_t *weight, int valid,
                                      const float *rescale, float *o, int column, const int queries, const int vecs,
                                      const bool bf16)
{
    const int block_words = word_count(KV_BLOCK_TOKENS, bf16), weight_stride = word_count(TILE_ENTRIES, bf16);
    vec acc[QUERY_TILE][COLUMN_VECS];
#pragma GCC unroll 6
    for (int r = 0; r < queries; r++)
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            acc[r][j] = vec_load(o + r * stride + column + j * VEC) * rescale[r];
    for (int words = word_count(valid, bf16), block = 0; words > 0; block++, words -= block_words) {
        const uint32_t *v = values[block] + column, *w = weight + block * block_words;
        int n = words < block_words ? words : block_words;
        // The second entry of the last word may be beyond `valid` and NaN, and 0 * NaN is NaN.
        uint32_t last = bf16 && valid % 2 && words <= block_words ? 0xffffu : ~0u;
        for (int i = 0; i < n; i++) {
            vec_word value[COLUMN_VECS];
#pragma GCC unroll 4
            for (int j = 0; j < vecs; j++)
                value[j] = vec_load_words(v + i * stride + j * VEC);
            if (bf16 && i == n - 1 && last != ~0u)
#pragma GCC unroll 4
                for (int j = 0; j < vecs; j++)
                    value[j] &= last;
#pragma GCC unroll 6
            for (int r = 0; r < queries; r++) {
                vec_word x = vec_set_words(w[r * weight_stride + i]);
#pragma GCC unroll 4
                for (int j = 0; j < vecs; j++)
                    acc[r][j] = vec_dot(acc[r][j], x, value[j], bf16);
            }
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < queries; r++)
#pragma GCC unroll 4
        for (int j = 0; j < vecs; j++)
            vec_store(o + r * stride + column + j * VEC, acc[r][j]);
}

INLINE void step_weighted_sum(const uint32_t *const *values, int stride, const uint32_t *weight, int valid,
                              const float *rescale, float *o, const int queries, const bool bf16)
{
    int column = 0;
    for (; column + COLUMN_VECS * VEC <= stride; column += COLUMN_VECS * VEC)
        step_weighted_sum_columns(values, stride, weight, valid, rescale, o, column, queries, COLUMN_VECS, bf16);
    for (; column + 2 * VEC <= stride; column += 2 * VEC)
        step_weighted_sum_columns(values, stride, weight, valid, rescale, o, column, queries, 2, bf16);
    for (; column < stride; column += VEC)
        step_weighted_sum_columns(values, stride, weight, valid, rescale, o, column, queries, 1, bf16);
}

// Compute the three parts of a step for any number of queries up to QUERY_TILE. As separate functions, each part has
// all registers for its loops.
static __attribute__((noinline)) void any_scores(const uint32_t *const *keys, const uint32_t *q, int words,
                                                 float *score, int queries, bool bf16)
{
    switch (queries + (bf16 ? 0 : QUERY_TILE)) {
    case 1: step_scores(keys, q, words, score, 1, true); break;
    case 2: step_scores(keys, q, words, score, 2, true); break;
    case 3: step_scores(keys, q, words, score, 3, true); break;
    case 4: step_scores(keys, q, words, score, 4, true); break;
    case 5: step_scores(keys, q, words, score, 5, true); break;
    case 6: step_scores(keys, q, words, score, 6, true); break;
    case QUERY_TILE + 1: step_scores(keys, q, words, score, 1, false); break;
    case QUERY_TILE + 2: step_scores(keys, q, words, score, 2, false); break;
    case QUERY_TILE + 3: step_scores(keys, q, words, score, 3, false); break;
    case QUERY_TILE + 4: step_scores(keys, q, words, score, 4, false); break;
    case QUERY_TILE + 5: step_scores(keys, q, words, score, 5, false); break;
    case QUERY_TILE + 6: step_scores(keys, q, words, score, 6, false); break;
    }
}

static __attribute__((noinline)) void any_softmax(const struct step_blocks *step, const float *score, int valid,
                                                  float scale, float *max, float *sum, uint32_t *weight, float *rescale,
                                                  int queries, bool bf16, bool int8)
{
    switch (queries + (int8 ? 2 * QUERY_TILE : bf16 ? 0 : QUERY_TILE)) {
    case 1: step_softmax(step, score, valid, scale, max, sum, weight, rescale, 1, true, false); break;
    case 2: step_softmax(step, score, valid, scale, max, sum, weight, rescale, 2, true, false); break;
    case 3: step_softmax(step, score, valid, scale, max, sum, weight, rescale, 3, true, false); break;
    case 4: step_softmax(step, score, valid, scale, max, sum, weight, rescale, 4, true, false); break;
    case 5: step_softmax(step, score, valid, scale, max, sum, weight, rescale, 5, true, false); break;
    case 6: step_softmax(step, score, valid, scale, max, sum, weight, rescale, 6, true, false); break;
    case QUERY_TILE + 1: step_softmax(step, score, valid, scale, max, sum, weight, rescale, 1, false, false); break;
    case QUERY_TILE + 2: step_softmax(step, score, valid, scale, max, sum, weight, rescale, 2, false, false); break;
    case QUERY_TILE + 3: step_softmax(step, score, valid, scale, max, sum, weight, rescale, 3, false, false); break;
    case QUERY_TILE + 4: step_softmax(step, score, valid, scale, max, sum, weight, rescale, 4, false, false); break;
    case QUERY_TILE + 5: step_softmax(step, score, valid, scale, max, sum, weight, rescale, 5, false, false); break;
    case QUERY_TILE + 6: step_softmax(step, score, valid, scale, max, sum, weight, rescale, 6, false, false); break;
    case 2 * QUERY_TILE + 1: step_softmax(step, score, valid, scale, max, sum, weight, rescale, 1, true, true); break;
    case 2 * QUERY_TILE + 2: step_softmax(step, score, valid, scale, max, sum, weight, rescale, 2, true, true); break;
    case 2 * QUERY_TILE + 3: step_softmax(step, score, valid, scale, max, sum, weight, rescale, 3, true, true); break;
    case 2 * QUERY_TILE + 4: step_softmax(step, score, valid, scale, max, sum, weight, rescale, 4, true, true); break;
    case 2 * QUERY_TILE + 5: step_softmax(step, score, valid, scale, max, sum, weight, rescale, 5, true, true); break;
    case 2 * QUERY_TILE + 6: step_softmax(step, score, valid, scale, max, sum, weight, rescale, 6, true, true); break;
    }
}

static __attribute__((noinline)) void any_weighted_sum(const uint32_t *const *values, int stride,
                                                       const uint32_t *weight, int valid, const float *rescale,
                                                       float *o, int queries, bool bf16)
{
    switch (queries + (bf16 ? 0 : QUERY_TILE)) {
    case 1: step_weighted_sum(values, stride, weight, valid, rescale, o, 1, true); break;
    case 2: step_weighted_sum(values, stride, weight, valid, rescale, o, 2, true); break;
    case 3: step_weighted_sum(values, stride, weight, valid, rescale, o, 3, true); break;
    case 4: step_weighted_sum(values, stride, weight, valid, rescale, o, 4, true); break;
    case 5: step_weighted_sum(values, stride, weight, valid, rescale, o, 5, true); break;
    case 6: step_weighted_sum(values, stride, weight, valid, rescale, o, 6, true); break;
    case QUERY_TILE + 1: step_weighted_sum(values, stride, weight, valid, rescale, o, 1, false); break;
    case QUERY_TILE + 2: step_weighted_sum(values, stride, weight, valid, rescale, o, 2, false); break;
    case QUERY_TILE + 3: step_weighted_sum(values, stride, weight, valid, rescale, o, 3, false); break;
    case QUERY_TILE + 4: step_weighted_sum(values, stride, weight, valid, rescale, o, 4, false); break;
    case QUERY_TILE + 5: step_weighted_sum(values, stride, weight, valid, rescale, o, 5, false); break;
    case QUERY_TILE + 6: step_weighted_sum(values, stride, weight, valid, rescale, o, 6, false); break;
    }
}

// ---- one tile of queries --------------------------------------------------------------------------------------------

// Running softmax state of queries over one segment, or over all segments so far.
struct partial {
    float *o, *sum, *max; // [queries][v_stride], [queries][SUM_LANES], [queries]
};

INLINE struct partial partial_in(float *memory, int queries, int v_stride)
{
    float *sum = memory + queries * v_stride;
    return (struct partial){memory, sum, sum + queries * SUM_LANES};
}

INLINE void partial_clear(const struct partial *p, int first, int queries, int v_stride)
{
    memset(p->o + first * v_stride, 0, (size_t)((queries - first) * v_stride) * sizeof *p->o);
    memset(p->sum + first * SUM_LANES, 0, (size_t)((queries - first) * SUM_LANES) * sizeof *p->sum);
    for (int i = first; i < queries; i++)
        p->max[i] = -__builtin_inff();
}

// Merges the next segment's state `p` into `total`, for the queries from `first` on.
INLINE void partial_merge(const struct partial *total, const struct partial *p, int first, int queries, int v_stride)
{
    for (int i = first; i < queries; i++) {
        vec old = vec_set(total->max[i]), more = vec_set(p->max[i]), max = vec_max(old, more);
        vec scale[2] = {old - max, more - max};
        vec_exp2(scale, 2);
        for (int j = 0; j < v_stride; j += VEC) {
            float *o = total->o + i * v_stride + j;
            vec_store(o, vec_load(o) * scale[0] + vec_load(p->o + i * v_stride + j) * scale[1]);
        }
        float *sum = total->sum + i * SUM_LANES;
        vec_store(sum, vec_load(sum) * scale[0] + vec_load(p->sum + i * SUM_LANES) * scale[1]);
        total->max[i] = max[0];
    }
}

INLINE void partial_finish(const struct attend_tile *t, const struct partial *total)
{
    int d = t->kv.head_size, stride = t->kv.v_stride;
    for (int i = 0; i < t->rows * t->group; i++) {
        float *o = total->o + i * stride, scale = 1 / vec_sum(vec_load(total->sum + i * SUM_LANES));
        for (int j = 0; j < stride; j += VEC)
            vec_store(o + j, vec_load(o + j) * scale);
        store_columns(t->out, t->row + i / t->group, t->column + i % t->group * d, o, d);
    }
}

// Working memory of one tile.
struct attend_work {
    const struct attend_tile *tile;
    int words; // words of D
    float scale;
    float *widened; // int8: K and V of a step, see step_widen_int8
    uint32_t *q;    // [queries][words]
    struct partial partial;
    float *score;     // [QUERY_TILE][TILE_ENTRIES]
    uint32_t *weight; // [QUERY_TILE][words of TILE_ENTRIES]
};

// Computes queries i .. i + queries - 1, which all see the first `valid` entries of this step.
INLINE void attend_queries(const struct attend_work *w, const struct step_blocks *step, int i, int valid, int queries,
                           const bool bf16, const bool int8)
{
    int stride = w->tile->kv.v_stride;
    float rescale[SUM_LANES];
    any_scores(step->keys, w->q + i * w->words, w->words, w->score, queries, bf16);
    any_softmax(step, w->score, valid, w->scale, w->partial.max + i, w->partial.sum + i * SUM_LANES, w->weight, rescale,
                queries, bf16, int8);
    any_weighted_sum(step->values, stride, w->weight, valid, rescale, w->partial.o + i * stride, queries, bf16);
}

// Computes one step, TILE_ENTRIES entries from `first` on, for all queries that see any of these entries. Rows that see
// only a part of the step are computed row by row. The remaining rows are computed together in equal tiles: 7 queries
// are 4 + 3, not 6 + 1.
INLINE void attend_step(const struct attend_work *w, int first, int end, const bool bf16, const bool int8)
{
    const struct attend_tile *t = w->tile;
    bool more = first + TILE_ENTRIES < end;
    struct step_blocks step = step_blocks_at(&t->kv, first, end), next;
    if (int8) step = step_widen_int8(&t->kv, &step, step_n_blocks(first, end), w->widened, true);
    if (more) next = step_blocks_at(&t->kv, first + TILE_ENTRIES, end);
    int row = t->first_valid > first ? 0 : first - t->first_valid + 1;
    for (; row < t->rows && t->first_valid + row - first < TILE_ENTRIES; row++)
        for (int head = 0, n; head < t->group; head += n) {
            n = t->group - head < QUERY_TILE ? t->group - head : QUERY_TILE;
            attend_queries(w, &step, row * t->group + head, t->first_valid + row - first, n, bf16, int8);
        }
    int i = row * t->group, queries = t->rows * t->group - i, tiles = (queries + QUERY_TILE - 1) / QUERY_TILE;
    for (int j = 0; j < tiles; j++) {
        int from = queries * j / tiles, n = queries * (j + 1) / tiles - from;
        if (more) step_prefetch(&next, t->kv.scale_offset_bytes + (int8 ? 128 : 0), j, tiles);
        attend_queries(w, &step, i + from, TILE_ENTRIES, n, bf16, int8);
    }
}

INLINE void attend_typed(const struct attend_tile *t, const bool bf16, const bool int8)
{
    int d = t->kv.head_size, stride = t->kv.v_stride, queries = t->rows * t->group;
    float *q = t->scratch + step_words_floats(d), *partials = q + queries * stride;
    float *total_at = partials + attend_partial_floats(queries, d);
    float *score = total_at + attend_partial_floats(queries, d);
    struct attend_work w = {
        .tile = t,
        .words = word_count(d, bf16),
        .scale = 1.44269504f / __builtin_sqrtf((float)d),
        .widened = t->scratch,
        .q = (uint32_t *)(void *)q,
        .partial = partial_in(t->partial ? t->partial : partials, queries, stride),
        .score = score,
        .weight = (uint32_t *)(void *)(score + QUERY_TILE * TILE_ENTRIES),
    };
    for (int i = 0; i < queries; i++)
        store_row(w.q + i * w.words, bf16,
                  t->q + (size_t)(i / t->group) * (size_t)t->q_stride + (size_t)(i % t->group) * (size_t)d, d);
    struct partial total = partial_in(total_at, queries, stride);
    partial_clear(&total, 0, queries, stride);
    for (int first = t->first; first < t->end; first += SEGMENT_ENTRIES) {
        int end = t->end - first < SEGMENT_ENTRIES ? t->end : first + SEGMENT_ENTRIES;
        // Rows whose last entry is before this segment come first and are finished.
        int i = t->first_valid > first ? 0 : (first - t->first_valid + 1) * t->group;
        partial_clear(&w.partial, i, queries, stride);
        for (int entry = first; entry < end; entry += TILE_ENTRIES)
            attend_step(&w, entry, end, bf16, int8);
        if (!t->partial) partial_merge(&total, &w.partial, i, queries, stride);
    }
    if (!t->partial) partial_finish(t, &total);
}

static void attend(const struct attend_tile *t)
{
    if (t->kv.int8)
        attend_typed(t, true, true);
    else if (t->kv.bf16)
        attend_typed(t, true, false);
    else
        attend_typed(t, false, false);
}

static void attend_merge(const struct attend_tile *t, int segments)
{
    int queries = t->rows * t->group, stride = t->kv.v_stride;
    struct partial total = partial_in(t->scratch, queries, stride);
    partial_clear(&total, 0, queries, stride);
    for (int s = 0; s < segments; s++) {
        size_t at = (size_t)s * attend_partial_floats(queries, t->kv.head_size);
        struct partial partial = partial_in(t->partial + at, queries, stride);
        partial_merge(&total, &partial, 0, queries, stride);
    }
    partial_finish(t, &total);
}

// ---- importance -----------------------------------------------------------------------------------------------------

// Computes p[i] = 2^(scale * p[i] - max) for the first n entries and 0 up to the end of the last step. Returns the sum.
INLINE float softmax_row(float *p, int n, float scale)
{
    vec max = vec_set(-__builtin_inff()), sum = vec_set(0);
    for (int i = 0; i < n; i += VEC)
        max = vec_max(max, vec_select(vec_first(n - i), vec_load(p + i), vec_set(-__builtin_inff())));
    max = vec_set(vec_largest(max) * scale);
    for (int i = 0; i < n; i += TILE_ENTRIES) {
        vec weight[STEP_VECS];
        for (int j = 0; j < STEP_VECS; j++)
            weight[j] = vec_fma(vec_load(p + i + j * VEC), vec_set(scale), -max);
        vec_exp2(weight, STEP_VECS);
        for (int j = 0; j < STEP_VECS; j++) {
            weight[j] = vec_select(vec_first(n - i - j * VEC), weight[j], vec_set(0));
            vec_store(p + i + j * VEC, weight[j]);
            sum = sum + weight[j];
        }
    }
    return vec_sum(sum);
}

// Computes maximum[j] = max(maximum[j], scale * sum of p over the window centred at j). There are TILE_ENTRIES zeros on
// both sides of p.
INLINE void importance_raise(float *maximum, const float *p, int n, int reach, float scale)
{
    for (int first = 0; first < n; first += TILE_ENTRIES) {
        vec sum[STEP_VECS];
        for (int i = 0; i < STEP_VECS; i++)
            sum[i] = vec_set(0);
        // Skip the shifts that read only zeros.
        int from = -reach > -first - TILE_ENTRIES ? -reach : -first - TILE_ENTRIES + 1;
        int to = reach < n - first ? reach : n - first - 1;
        for (int shift = from; shift <= to; shift++)
#pragma GCC unroll 16
            for (int i = 0; i < STEP_VECS; i++)
                sum[i] = sum[i] + vec_load(p + first + shift + i * VEC);
        for (int i = 0; i < STEP_VECS && first + i * VEC < n; i++) {
            float *at = maximum + first + i * VEC, last[VEC] = {0};
            int left = n - first - i * VEC;
            if (left < VEC) memcpy(last, at, (size_t)left * sizeof *last);
            vec raised = vec_max(sum[i] * scale, vec_load(left < VEC ? last : at));
            vec_store(left < VEC ? last : at, raised);
            if (left < VEC) memcpy(at, last, (size_t)left * sizeof *last);
        }
    }
}

INLINE void importance_heads(const struct importance_tile *t, int head, int heads, const bool bf16, const bool int8)
{
    const struct kv_view *kv = &t->kv;
    int d = kv->head_size, n = t->n, words = word_count(d, bf16);
    float *first_p = t->scratch + step_words_floats(d), *p = first_p + TILE_ENTRIES;
    float *score = first_p + QUERY_TILE * t->stride;
    float scale = 1.44269504f / __builtin_sqrtf((float)d);
    uint32_t *q = (uint32_t *)(void *)(score + QUERY_TILE * TILE_ENTRIES);
    for (int r = 0; r < heads; r++)
        store_row(q + r * words, bf16, t->q + (head + r) * d, d);
    for (int first = 0; first < n; first += TILE_ENTRIES) {
        struct step_blocks step = step_blocks_at(kv, first, n);
        if (int8) step = step_widen_int8(kv, &step, step_n_blocks(first, n), t->scratch, false);
        any_scores(step.keys, q, words, score, heads, bf16);
        for (int r = 0; r < heads; r++)
            for (int i = 0; i < STEP_VECS; i++)
                vec_store(p + (size_t)r * t->stride + first + i * VEC,
                          step_score(score + r * TILE_ENTRIES, step.k_scale, i, TILE_ENTRIES, int8));
    }
    for (int r = 0; r < heads; r++, p += t->stride) {
        float sum = softmax_row(p, n, scale);
        if (!__builtin_isfinite(sum)) { // then no weight is finite, and a maximum would drop NaN
            for (int j = 0; j < n; j++)
                t->maximum[j] = __builtin_inff();
            continue;
        }
        memset(p - TILE_ENTRIES, 0, TILE_ENTRIES * sizeof *p);
        memset(p + (n + TILE_ENTRIES - 1) / TILE_ENTRIES * TILE_ENTRIES, 0, TILE_ENTRIES * sizeof *p);
        importance_raise(t->maximum, p, n, t->window / 2, 1 / (sum * (float)t->window));
    }
}

INLINE void importance_typed(const struct importance_tile *t, const bool bf16, const bool int8)
{
    for (int head = 0; head < t->group; head += QUERY_TILE)
        importance_heads(t, head, t->group - head < QUERY_TILE ? t->group - head : QUERY_TILE, bf16, int8);
}

static void importance(const struct importance_tile *t)
{
    if (t->kv.int8)
        importance_typed(t, true, true);
    else if (t->kv.bf16)
        importance_typed(t, true, false);
    else
        importance_typed(t, false, false);
}
