// SPDX-License-Identifier: Apache-2.0
// Attention over bf16 and int8 KV blocks with AMX tiles (included by kernels.c if CPU_TILES is set). f32 uses the
// vector kernel. Softmax, state and segments are as in kernel_attention.h. The tile instruction computes q . K and
// weights . V, for every number of queries.
//
// Entries are processed in steps of ATTEND_STEP, and queries in pairs of tiles. The softmax of a pair uses vector
// instructions. The tile instructions of the neighbouring pairs are issued between the rows of the softmax and overlap
// with it (struct background):
//
//      scores    q [16 queries][words of D]   x K [words of D][16 entries]        a KV block as it is stored
//      weights   2^(scale * score - max), bf16, [16 queries][32 entries]          one tile
//      sums      weights [16][32 entries]     x V [words of 32 entries][16 dims]  two KV blocks, copied side by side
//
// Exactness is as in kernel_attention.h. A tile sums each of its queries separately. An entry that a query does not see
// has weight 0. If V of such an entry is not finite, each row is computed on a copy of V without the entry.
#pragma once

enum {
    STEP_BLOCKS = ATTEND_STEP / KV_BLOCK_TOKENS,
    STEP_GROUPS = ATTEND_STEP / (2 * TILE_SIDE), // tiles of weights for one tile of queries
    GROUP_ENTRIES = 2 * TILE_SIDE,
    WEIGHT_VECS = 8, // vectors of weights that are computed together
    WEIGHT_ENTRIES = WEIGHT_VECS * VEC,
};
_Static_assert((int)KV_BLOCK_TOKENS == (int)TILE_SIDE, "a KV block is one tile of K");

// Working memory of one item; all arrays start at a cache line.
struct tile_work {
    const struct attend_tile *tile;
    int queries, depth, steps; // number of words of D = depth * steps
    int dim_tiles;             // number of tiles for v_stride
    float scale;
    struct partial partial;                              // state of all queries, rounded up to pairs of tiles
    uint32_t *q;                                         // [tiles of queries][steps][16][depth]
    uint32_t *values;                                    // [STEP_GROUPS][dim_tiles][16 words of entries][16 dims]
    uint32_t *wide_keys;                                 // int8: [STEP_BLOCKS][words of D][16 entries]
    float *k_scale, *v_scale;                            // int8: [ATTEND_STEP]
    float *score;                                        // [2 pairs][2][STEP_BLOCKS][16 queries][16 entries]
    uint32_t *weight;                                    // [2 pairs][2][STEP_GROUPS][16 queries][16 words of entries]
    float *alone;                                        // [PAIR_QUERIES][v_stride] sums of rows computed one by one
    int first, end;                                      // entries of the step
    const uint32_t *keys[STEP_BLOCKS];                   // keys of the step
    const char *blocks[STEP_BLOCKS], *next[STEP_BLOCKS]; // blocks of the step and of the next step
    int n_next;
};

// Returns the largest divisor of D's words that a tile can hold, so that every tile of q and K has the same shape.
INLINE int tile_depth(int words)
{
    int depth = words < TILE_SIDE ? words : TILE_SIDE;
    while (words % depth)
        depth--;
    return depth;
}

// Configures the tiles: sums in tiles 0 to 3, queries or weights in 4 and 5, and `depth` words of K or V in 6 and 7.
INLINE void attend_configure(int depth)
{
    struct tile_config config = {.palette = 1};
    for (int t = 0; t < TILE_COUNT; t++) {
        config.rows[t] = (uint8_t)(t > 5 ? depth : TILE_SIDE);
        config.row_bytes[t] = (uint16_t)(t == 4 || t == 5 ? 4 * depth : TILE_BYTES);
    }
    tile_configure(&config);
}

// ---- the entries of a step ------------------------------------------------------------------------------------------

// Finds the addresses of the blocks with entries [first, end). Returns their number.
INLINE int step_addresses(const struct kv_view *kv, int first, int end, const char **blocks)
{
    int from = first / KV_BLOCK_TOKENS, n = (end - first + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    for (int i = 0; i < n; i++)
        blocks[i] = kv->base + (size_t)kv->blocks[from + i] * kv->block_bytes;
    return n;
}

// Widens two rows of 16 bytes of V to 16 words.
INLINE void widen_row(uint32_t *to, const int8_t *even, const int8_t *odd)
{
    for (int c = 0; c < TILE_SIDE; c += VEC) {
        vec_word words = vec_pair(vec_load_bytes(even + c), vec_load_bytes(odd + c));
        memcpy(to + c, &words, sizeof words);
    }
}

// Copies V of one block to its half of the tiles at `to`.
INLINE void values_copy_block(const struct kv_view *kv, const char *block, int dim_tiles, uint32_t *to, const bool int8)
{
    const char *v = block + kv->v_offset_bytes;
    for (int r = 0; r < KV_BLOCK_TOKENS / 2; r++)
        for (int c = 0; c < dim_tiles; c++) {
            uint32_t *row = to + c * TILE_SIZE + r * TILE_SIDE;
            if (int8) {
                const int8_t *even = (const int8_t *)v + 2 * r * kv->v_stride + c * TILE_SIDE;
                widen_row(row, even, even + kv->v_stride);
            } else {
                memcpy(row, v + 4 * ((size_t)r * (size_t)kv->v_stride + (size_t)(c * TILE_SIDE)), TILE_BYTES);
            }
        }
}

// Zeros the entries from `n` on in the tiles of V up to the end of their group.
INLINE void values_clear_from(uint32_t *values, int dim_tiles, int n)
{
    for (int word = n / 2; word % TILE_SIDE || 2 * word < n; word++) {
        uint32_t *row = values + (size_t)(word / TILE_SIDE * dim_tiles) * TILE_SIZE + word % TILE_SIDE * TILE_SIDE;
        uint32_t kept = 2 * word < n ? 0xffffu : 0;
        for (int c = 0; c < dim_tiles; c++, row += TILE_SIZE)
            for (int i = 0; i < TILE_SIDE; i++)
                row[i] &= kept;
    }
}

// Copies the step's first n entries of V as tiles, followed by zeros.
INLINE void values_copy(const struct tile_work *w, int n, const bool int8)
{
    for (int i = 0; KV_BLOCK_TOKENS * i < n; i++) {
        uint32_t *group = w->values + (size_t)(i / 2 * w->dim_tiles) * TILE_SIZE;
        values_copy_block(&w->tile->kv, w->blocks[i], w->dim_tiles, group + i % 2 * (TILE_SIZE / 2), int8);
    }
    if (n % GROUP_ENTRIES) values_clear_from(w->values, w->dim_tiles, n);
}

static bool values_finite(const uint32_t *values, int groups, int dim_tiles)
{
    uint32_t found = 0;
    for (int i = 0; i < groups * dim_tiles * TILE_SIZE; i++) {
        uint32_t word = values[i];
        found |= ((word & 0x7f800000u) == 0x7f800000u) | ((word & 0x7f80u) == 0x7f80u);
    }
    return !found;
}

// Sets the addresses of the step that starts at `first`, and copies the data that cannot be used in place.
INLINE void tile_step_begin(struct tile_work *w, int first, int end, const bool int8)
{
    const struct kv_view *kv = &w->tile->kv;
    w->first = first;
    w->end = end - first < ATTEND_STEP ? end : first + ATTEND_STEP;
    int n = step_addresses(kv, first, w->end, w->blocks), words = w->depth * w->steps;
    w->n_next =
        w->end < end ? step_addresses(kv, w->end, end - w->end < ATTEND_STEP ? end : w->end + ATTEND_STEP, w->next) : 0;
    for (int i = 0; i < n; i++) {
        w->keys[i] = (const uint32_t *)(const void *)w->blocks[i];
        if (!int8) continue;
        const float *scale = (const float *)(const void *)(w->blocks[i] + kv->scale_offset_bytes);
        memcpy(w->k_scale + i * KV_BLOCK_TOKENS, scale, KV_BLOCK_TOKENS * sizeof *scale);
        memcpy(w->v_scale + i * KV_BLOCK_TOKENS, scale + KV_BLOCK_TOKENS, KV_BLOCK_TOKENS * sizeof *scale);
        widen(w->wide_keys + i * words * KV_BLOCK_TOKENS, w->blocks[i], words, KV_BLOCK_TOKENS);
        w->keys[i] = w->wide_keys + i * words * KV_BLOCK_TOKENS;
    }
    if (n % 2) w->keys[n] = w->keys[n - 1]; // results are masked
    values_copy(w, w->end - first, int8);
}

// Prefetches one of `parts` equal shares of the next step's blocks into L2: share number `part`.
INLINE void tile_step_prefetch(const struct tile_work *w, int part, int parts)
{
    int lines = (int)((w->tile->kv.scale_offset_bytes + (w->tile->kv.int8 ? 128 : 0) + 63) / 64);
    int from = w->n_next * lines * part / parts, n = w->n_next * lines * (part + 1) / parts - from;
    for (int block = from / lines, line = from % lines; n > 0; n--) {
        __builtin_prefetch(w->next[block] + (size_t)line * 64, 0, 2);
        if (++line == lines) line = 0, block++;
    }
}

// ---- tile instructions of a pair, a few at a time -------------------------------------------------------------------
//
// K and V come from L2, once for each pair; queries and weights are reused from L1.

// One or two tiles of queries in the current step.
struct tile_pair {
    int query;    // first query
    bool two;     // there are two tiles
    int groups;   // groups of GROUP_ENTRIES entries that any query sees; 0: none
    float *score; // the pair's part of the working memory, like `weight`
    uint32_t *weight;
};

// Computes the i-th of (groups * steps) parts of the scores: one tile of D for 32 entries.
INLINE void tile_scores_part(const struct tile_work *w, const struct tile_pair *p, int i)
{
    const int e = i / w->steps * 2, k = i % w->steps;
    const size_t q_bytes = 4 * (size_t)w->depth, tile = (size_t)(TILE_SIDE * w->depth); // of q and of K
    const uint32_t *q = w->q + (size_t)(p->query * w->depth * w->steps) + (size_t)k * tile;
    if (k == 0) {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    }
    tile_load(4, q, q_bytes);
    tile_load_streamed(6, w->keys[e] + (size_t)k * tile, TILE_BYTES);
    tile_dot_bf16(0, 4, 6);
    tile_load_streamed(7, w->keys[e + 1] + (size_t)k * tile, TILE_BYTES);
    tile_dot_bf16(1, 4, 7);
    if (p->two) {
        tile_load(5, q + tile * (size_t)w->steps, q_bytes);
        tile_dot_bf16(2, 5, 6);
        tile_dot_bf16(3, 5, 7);
    }
    if (k < w->steps - 1) return;
    float *to = p->score + e * TILE_SIZE, *second = to + STEP_BLOCKS * TILE_SIZE;
    tile_store(0, to, TILE_BYTES);
    tile_store(1, to + TILE_SIZE, TILE_BYTES);
    if (!p->two) return;
    tile_store(2, second, TILE_BYTES);
    tile_store(3, second + TILE_SIZE, TILE_BYTES);
}

// Reads or writes the sums of 32 dims, or of 16 where v_stride ends.
#define TILE_SUMS_MOVE(tile_move)                                                                                      \
    do {                                                                                                               \
        tile_move(0, at, stride);                                                                                      \
        if (wide) tile_move(1, at + TILE_BYTES, stride);                                                               \
        if (p->two) tile_move(2, second, stride);                                                                      \
        if (p->two && wide) tile_move(3, second + TILE_BYTES, stride);                                                 \
    } while (0)

// Computes the i-th of (groups * pairs of dim tiles) parts of o [16 or 32][v_stride] += weights x V: 32 entries for 32
// dims.
INLINE void tile_sums_part(const struct tile_work *w, const struct tile_pair *p, float *o, int i)
{
    const int c = i / p->groups * 2, g = i % p->groups;
    const size_t stride = 4 * (size_t)w->tile->kv.v_stride;
    const bool wide = c + 1 < w->dim_tiles;
    char *at = (char *)(o + c * TILE_SIDE), *second = at + TILE_SIDE * stride;
    const uint32_t *values = w->values + (size_t)(g * w->dim_tiles + c) * TILE_SIZE;
    if (g == 0) TILE_SUMS_MOVE(tile_load);
    tile_load(4, p->weight + g * TILE_SIZE, TILE_BYTES);
    tile_load_streamed(6, values, TILE_BYTES);
    tile_dot_bf16(0, 4, 6);
    if (wide) tile_load_streamed(7, values + TILE_SIZE, TILE_BYTES);
    if (wide) tile_dot_bf16(1, 4, 7);
    if (p->two) tile_load(5, p->weight + (STEP_GROUPS + g) * TILE_SIZE, TILE_BYTES);
    if (p->two) tile_dot_bf16(2, 5, 6);
    if (p->two && wide) tile_dot_bf16(3, 5, 7);
    if (g == p->groups - 1) TILE_SUMS_MOVE(tile_store);
}

// Parts of the sums of one pair, and then of the scores of another pair, that are issued between the rows of a softmax.
struct background {
    const struct tile_pair *sums, *scores; // NULL if there are none
    int n_sums, n_scores, done;            // numbers of parts
};

INLINE struct background background_of(const struct tile_work *w, const struct tile_pair *sums,
                                       const struct tile_pair *scores)
{
    return (struct background){
        .sums = sums,
        .scores = scores,
        .n_sums = sums ? sums->groups * ((w->dim_tiles + 1) / 2) : 0,
        .n_scores = scores ? scores->groups * w->steps : 0,
    };
}

// Issues parts until the fraction part / parts of them is done.
INLINE void background_advance(const struct tile_work *w, struct background *b, int part, int parts)
{
    const int until = (b->n_sums + b->n_scores) * part / parts;
    for (; b->done < until; b->done++) {
        const int score = b->done - b->n_sums;
        if (w->depth != TILE_SIDE && (b->done == 0 || score == 0)) attend_configure(score < 0 ? TILE_SIDE : w->depth);
        if (score < 0)
            tile_sums_part(w, b->sums, w->partial.o + b->sums->query * w->tile->kv.v_stride, b->done);
        else
            tile_scores_part(w, b->scores, score);
    }
}

static __attribute__((noinline)) void background_finish(const struct tile_work *w, struct background *b)
{
    background_advance(w, b, 1, 1);
}

// ---- softmax of a pair ----------------------------------------------------------------------------------------------

// Returns vector i of a query's scores, which are stored in rows of tiles.
INLINE vec tile_score(const float *score, const float *k_scale, size_t i, const bool int8)
{
    vec s = vec_load(score + i * VEC / TILE_SIDE * TILE_SIZE + i * VEC % TILE_SIDE);
    return int8 ? s * vec_load(k_scale + i * VEC) : s;
}

// Returns the largest of a query's first `valid` scores, or minus infinity if there is none.
INLINE vec tile_largest(const struct tile_work *w, const float *score, int valid, const bool int8)
{
    vec largest = vec_set(-__builtin_inff());
    int i = 0;
    for (; (i + 1) * VEC <= valid; i++)
        largest = vec_max(largest, tile_score(score, w->k_scale, (size_t)i, int8));
    if (i * VEC < valid) {
        vec last = tile_score(score, w->k_scale, (size_t)i, int8);
        largest = vec_max(largest, vec_select(vec_first(valid - i * VEC), last, vec_set(-__builtin_inff())));
    }
    return largest;
}

// Raises the maxima of a tile's queries to the maxima of their first valid[i] entries. Sets rescale[i] to the factor
// for earlier sums of a query that sees any entry. Reducing all queries together takes a fifth of the instructions.
INLINE void tile_raise_max(const struct tile_work *w, const float *score, const int *valid, float *max, float *rescale,
                           const bool int8)
{
    for (int first = 0; first < TILE_SIDE; first += VEC) {
        vec largest[VEC];
        for (int i = 0, r = first; i < VEC; i++, r++)
            largest[i] = tile_largest(w, score + r * TILE_SIDE, valid[r], int8);
        vec before = vec_load(max + first),
            raised = vec_max(vec_round(vec_largest_of_each(largest) * w->scale), before);
        vec change = before - raised;
        vec_exp2(&change, 1);
        vec_store(rescale + first, change);
        vec_store(max + first, raised);
    }
}

// Computes x[i] = 2^(scale * x[i] - max) with a relative error of 3e-6, which rounding to bf16 hides. Exact for
// integers. Valid up to 127. The result is 0 for minus infinity, and below -126 it is subnormal, which becomes 0 in
// bf16. NaN stays NaN. A vector takes 7 instructions on the two ports that compute 512 bits, and two of these can use
// only one of the ports. Every copy of a register would add one instruction.
INLINE void weights_exp2(vec *x, float scale, float max)
{
    static const float c[] = {1.342668429e-02f, 5.224247419e-02f, 2.412802048e-01f, 6.930448449e-01f, 1};
    vec part[WEIGHT_VECS], y[WEIGHT_VECS];
#pragma GCC unroll 8
    for (int i = 0; i < WEIGHT_VECS; i++) {
        x[i] = vec_fma(x[i], vec_set(scale), vec_set(-max));
        part[i] = vec_fraction(x[i]);
        y[i] = vec_fma(vec_broadcast(&c[0]), part[i], vec_set(c[1]));
    }
#pragma GCC unroll 3
    for (int k = 2; k < 5; k++)
#pragma GCC unroll 8
        for (int i = 0; i < WEIGHT_VECS; i++)
            y[i] = vec_fma(y[i], part[i], vec_set(c[k]));
#pragma GCC unroll 8
    for (int i = 0; i < WEIGHT_VECS; i++)
        x[i] = vec_scale_exp2(y[i], x[i]);
}

// Computes the weights of WEIGHT_ENTRIES entries from `from` on, of which a query sees the first `valid`. Returns
// `total` plus the weights.
INLINE vec tile_weights(const struct tile_work *w, const float *score, size_t from, int valid, float max, vec total,
                        uint32_t *weight, const bool masked, const bool int8)
{
    const float *k_scale = w->k_scale + from, *v_scale = w->v_scale + from;
    vec x[WEIGHT_VECS];
    score += from / TILE_SIDE * TILE_SIZE;
    weight += from / GROUP_ENTRIES * TILE_SIZE;
#pragma GCC unroll 8
    for (int i = 0; i < WEIGHT_VECS; i++) {
        x[i] = vec_in_register(tile_score(score, k_scale, (size_t)i, int8));
        if (masked) x[i] = vec_select(vec_first(valid - i * VEC), x[i], vec_set(-__builtin_inff()));
    }
    weights_exp2(x, w->scale, max);
    total = total + (((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])));
#pragma GCC unroll 8
    for (int i = 0; i < WEIGHT_VECS; i++) {
        if (int8) x[i] = x[i] * vec_load(v_scale + i * VEC);
        // The scale of a masked entry may be NaN, and 0 * NaN is NaN.
        if (int8 && masked) x[i] = vec_select(vec_first(valid - i * VEC), x[i], vec_set(0));
    }
#pragma GCC unroll 4
    for (int i = 0; i < WEIGHT_VECS; i += 2) {
        uint32_t *row = weight + i * VEC / GROUP_ENTRIES * TILE_SIZE + i * VEC % GROUP_ENTRIES / 2;
        vec_store_bf16_pair((uint16_t *)(void *)row, x[i], x[i + 1], false);
    }
    return total;
}

// Computes the weights of one query, with zeros from entry `valid` on. `padded` is the number of entries of the tiles
// in use.
INLINE void tile_softmax(const struct tile_work *w, int query, const float *score, uint32_t *weight, int valid,
                         int padded, float rescale, const bool int8)
{
    float max = w->partial.max[query], *sum = w->partial.sum + query * SUM_LANES;
    vec total = vec_load(sum) * rescale;
    int from = 0;
    for (; from + WEIGHT_ENTRIES <= valid; from += WEIGHT_ENTRIES)
        total = tile_weights(w, score, (size_t)from, WEIGHT_ENTRIES, max, total, weight, false, int8);
    if (from < valid) {
        total = tile_weights(w, score, (size_t)from, valid - from, max, total, weight, true, int8);
        from += WEIGHT_ENTRIES;
    }
    for (; from < padded; from += GROUP_ENTRIES)
        memset(weight + from / GROUP_ENTRIES * TILE_SIZE, 0, TILE_BYTES);
    vec_store(sum, total);
}

INLINE void row_scale(float *row, int n, float factor)
{
    if (factor == 1) return;
    for (int i = 0; i < n; i += VEC)
        vec_store(row + i, vec_load(row + i) * factor);
}

// Returns how many entries of the step a query sees.
INLINE int tile_valid(const struct tile_work *w, int query)
{
    int valid = w->tile->first_valid + query / w->tile->group - w->first;
    return valid < w->end - w->first ? valid : w->end - w->first;
}

// Turns the scores of one tile of a pair into weights. Rescales earlier sums.
INLINE void tile_softmax_all(const struct tile_work *w, const struct tile_pair *p, int tile, struct background *b,
                             const bool int8)
{
    const float *score = p->score + tile * STEP_BLOCKS * TILE_SIZE;
    uint32_t *weight = p->weight + tile * STEP_GROUPS * TILE_SIZE;
    const int query = p->query + tile * TILE_SIDE, stride = w->tile->kv.v_stride;
    float rescale[TILE_SIDE];
    int seen[TILE_SIDE];
    for (int r = 0; r < TILE_SIDE; r++)
        seen[r] = query + r < w->queries ? tile_valid(w, query + r) : 0;
    tile_raise_max(w, score, seen, w->partial.max + query, rescale, int8);
    for (int r = 0; r < TILE_SIDE; r++) {
        const int valid = seen[r];
        uint32_t *row = weight + r * TILE_SIDE;
        if (valid > 0) {
            row_scale(w->partial.o + (query + r) * stride, stride, rescale[r]);
            tile_softmax(w, query + r, score + r * TILE_SIDE, row, valid, p->groups * GROUP_ENTRIES, rescale[r], int8);
            tile_step_prefetch(w, query + r, w->queries);
        } else {
            for (int g = 0; g < p->groups; g++)
                memset(row + g * TILE_SIZE, 0, TILE_BYTES);
        }
        background_advance(w, b, tile * TILE_SIDE + r + 1, p->two ? PAIR_QUERIES : TILE_SIDE);
    }
}

// Computes the sums of each row of a pair on a copy of V that ends with the row's last entry.
static __attribute__((noinline)) void tile_sums_alone(const struct tile_work *w, const struct tile_pair *p, bool int8)
{
    int stride = w->tile->kv.v_stride, group = w->tile->group, query = p->query;
    int end = w->queries - query < PAIR_QUERIES ? w->queries : query + PAIR_QUERIES;
    if (w->depth != TILE_SIDE) attend_configure(TILE_SIDE);
    for (int i = query, next; i < end; i = next) {
        int valid = tile_valid(w, i);
        next = (i / group + 1) * group < end ? (i / group + 1) * group : end;
        if (valid <= 0) continue;
        memcpy(w->alone, w->partial.o + query * stride, (size_t)(PAIR_QUERIES * stride) * sizeof *w->alone);
        memset(w->values, 0, (size_t)(p->groups * w->dim_tiles * TILE_SIZE) * sizeof *w->values);
        values_copy(w, valid, int8);
        for (int part = 0; part < p->groups * ((w->dim_tiles + 1) / 2); part++)
            tile_sums_part(w, p, w->alone, part);
        memcpy(w->partial.o + i * stride, w->alone + (i - query) * stride,
               (size_t)((next - i) * stride) * sizeof *w->alone);
    }
    values_copy(w, w->end - w->first, int8);
}

INLINE struct tile_pair tile_pair_at(const struct tile_work *w, int query)
{
    int last = w->queries - query < PAIR_QUERIES ? w->queries - 1 : query + PAIR_QUERIES - 1;
    int seen = tile_valid(w, last), buffer = query / PAIR_QUERIES % 2;
    return (struct tile_pair){
        .query = query,
        .two = w->queries - query > TILE_SIDE,
        .groups = seen > 0 ? (seen + GROUP_ENTRIES - 1) / GROUP_ENTRIES : 0,
        .score = w->score + buffer * 2 * STEP_BLOCKS * TILE_SIZE,
        .weight = w->weight + buffer * 2 * STEP_GROUPS * TILE_SIZE,
    };
}

// Returns true if V may be infinite or NaN for an entry that some row of the pair does not see.
INLINE bool tile_pair_needs_rows_alone(const struct tile_work *w, const struct tile_pair *p)
{
    return tile_valid(w, p->query) < w->end - w->first && !values_finite(w->values, p->groups, w->dim_tiles);
}

// Runs the step for all pairs: the scores of a pair, its softmax, its sums. Rows that see no entry of the step come
// first.
INLINE void tile_step(struct tile_work *w, const bool int8)
{
    int query = 0;
    while (!tile_pair_at(w, query).groups)
        query += PAIR_QUERIES;
    struct tile_pair before, pair, after = tile_pair_at(w, query);
    struct background b = background_of(w, NULL, &after);
    background_finish(w, &b);
    const struct tile_pair *sums = NULL;
    for (; query < w->queries; query += PAIR_QUERIES) {
        const bool last = query + PAIR_QUERIES >= w->queries;
        pair = after;
        if (!last) after = tile_pair_at(w, query + PAIR_QUERIES);
        b = background_of(w, sums, last ? NULL : &after);
        tile_softmax_all(w, &pair, 0, &b, int8);
        if (pair.two) tile_softmax_all(w, &pair, 1, &b, int8);
        const bool alone = tile_pair_needs_rows_alone(w, &pair);
        if (alone) tile_sums_alone(w, &pair, int8);
        before = pair;
        sums = alone ? NULL : &before;
    }
    b = background_of(w, sums, NULL);
    background_finish(w, &b);
}

// ---- one item -------------------------------------------------------------------------------------------------------

INLINE void tile_queries_load(const struct tile_work *w)
{
    const struct attend_tile *t = w->tile;
    int d = t->kv.head_size, words = w->depth * w->steps;
    if (w->queries % PAIR_QUERIES) {
        int last = w->queries / PAIR_QUERIES * PAIR_QUERIES * words;
        memset(w->q + last, 0, (size_t)(PAIR_QUERIES * words) * sizeof *w->q);
    }
    for (int i = 0; i < w->queries; i++) {
        uint32_t *row = (uint32_t *)(void *)w->alone;
        store_row(row, true, t->q + (size_t)(i / t->group) * (size_t)t->q_stride + (size_t)(i % t->group) * (size_t)d,
                  d);
        for (int k = 0; k < w->steps; k++)
            memcpy(w->q + ((i / TILE_SIDE * w->steps + k) * TILE_SIDE + i % TILE_SIDE) * w->depth, row + k * w->depth,
                   (size_t)w->depth * sizeof *row);
    }
}

// Divides `scratch` in the order in which attend_tiles_scratch_floats() adds it up.
INLINE void tile_work_init(struct tile_work *w, const struct attend_tile *t, struct partial *total)
{
    int queries = (t->rows * t->group + PAIR_QUERIES - 1) / PAIR_QUERIES * PAIR_QUERIES, stride = t->kv.v_stride;
    int words = word_count(t->kv.head_size, true);
    float *at = t->scratch;
#define TAKE(floats) (at += (floats), (void *)(at - (floats)))
    *w = (struct tile_work){
        .tile = t,
        .queries = t->rows * t->group,
        .depth = tile_depth(words),
        .dim_tiles = stride / TILE_SIDE,
        .scale = 1.44269504f / __builtin_sqrtf((float)t->kv.head_size),
    };
    w->steps = words / w->depth;
    w->partial = partial_in(TAKE(attend_partial_floats(queries, stride)), queries, stride);
    *total = partial_in(TAKE(attend_partial_floats(queries, stride)), queries, stride);
    w->q = TAKE(queries * stride / 2);
    w->values = TAKE(ATTEND_STEP / 2 * stride);
    w->wide_keys = TAKE(ATTEND_STEP / 2 * stride);
    w->k_scale = TAKE(ATTEND_STEP);
    w->v_scale = TAKE(ATTEND_STEP);
    w->score = TAKE(4 * STEP_BLOCKS * TILE_SIZE);
    w->weight = TAKE(4 * STEP_GROUPS * TILE_SIZE);
    w->alone = TAKE(PAIR_QUERIES * stride);
#undef TAKE
}

// Copies the first `queries` of a partial result. The two results may have room for different numbers of queries.
INLINE void partial_copy(const struct partial *to, const struct partial *from, int queries, int v_stride)
{
    memcpy(to->o, from->o, (size_t)(queries * v_stride) * sizeof *to->o);
    memcpy(to->sum, from->sum, (size_t)(queries * SUM_LANES) * sizeof *to->sum);
    memcpy(to->max, from->max, (size_t)queries * sizeof *to->max);
}

INLINE void attend_tiles_typed(const struct attend_tile *t, const bool int8)
{
    struct tile_work w;
    struct partial total;
    tile_work_init(&w, t, &total);
    int stride = t->kv.v_stride, padded = (w.queries + PAIR_QUERIES - 1) / PAIR_QUERIES * PAIR_QUERIES;
    tile_queries_load(&w);
    partial_clear(&total, 0, w.queries, stride);
    attend_configure(TILE_SIDE);
    for (int first = t->first; first < t->end; first += SEGMENT_ENTRIES) {
        int end = t->end - first < SEGMENT_ENTRIES ? t->end : first + SEGMENT_ENTRIES;
        // Rows whose last entry is before this segment come first and are finished.
        int seen = t->first_valid > first ? 0 : (first - t->first_valid + 1) * t->group;
        partial_clear(&w.partial, 0, padded, stride);
        for (int entry = first; entry < end; entry += ATTEND_STEP) {
            tile_step_begin(&w, entry, end, int8);
            tile_step(&w, int8);
        }
        if (!t->partial) partial_merge(&total, &w.partial, seen, w.queries, stride);
    }
    tile_release();
    if (t->partial) {
        struct partial to = partial_in(t->partial, w.queries, stride);
        partial_copy(&to, &w.partial, w.queries, stride);
    } else {
        partial_finish(t, &total);
    }
}

static void attend_tiles(const struct attend_tile *t)
{
    if (t->kv.int8)
        attend_tiles_typed(t, true);
    else if (t->kv.bf16)
        attend_tiles_typed(t, false);
    else
        attend(t);
}
