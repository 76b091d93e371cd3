// SPDX-License-Identifier: Apache-2.0
// Messages of a router into a speculator (fuzz_role.h): prompts to score that are mostly well formed. Bits of a byte
// make one part of an item wrong each.
#include "tests/fuzz/fuzz_role.h"

enum { RANGES_MAX = 4 };

static struct item {
    Forepack__Cluster__V1__ScoreItem item;
    Forepack__Cluster__V1__Range ranges[RANGES_MAX], *range_list[RANGES_MAX];
    uint32_t tokens[FUZZ_TOKENS_MAX];
} items[FUZZ_ITEMS_MAX];

static void pinned_fill(struct fuzz_script *script, struct item *item)
{
    item->item.pinned = item->range_list;
    item->item.n_pinned = (size_t)fuzz_below(script, RANGES_MAX + 1);
    for (size_t i = 0; i < item->item.n_pinned; i++) {
        item->range_list[i] = &item->ranges[i];
        forepack__cluster__v1__range__init(&item->ranges[i]);
        item->ranges[i].first = (uint32_t)fuzz_number(script);
        item->ranges[i].last = (uint32_t)fuzz_number(script);
    }
}

static void item_fill(struct fuzz_script *script, struct item *item)
{
    Forepack__Cluster__V1__ScoreItem *m = &item->item;
    int flags = fuzz_byte(script);
    forepack__cluster__v1__score_item__init(m);
    m->request = fuzz_byte(script) % FUZZ_IDS;
    m->token_ids = item->tokens;
    m->n_token_ids = fuzz_tokens(script, item->tokens);
    m->keep_rate = flags & 1 ? fuzz_real(script) : 0.3;
    m->look_ahead = flags & 2 ? (uint32_t)fuzz_number(script) : 4;
    m->chunk_tokens = flags & 4 ? (int32_t)fuzz_number(script) : CHUNK_TOKENS_AUTO;
    m->pool_window = flags & 8 ? (uint32_t)fuzz_number(script) : 13;
    if (flags & 16) pinned_fill(script, item);
    m->tail_tokens = flags & 32 ? (uint32_t)fuzz_number(script) : 4;
    m->want_importance = flags & 64;
    m->paper_exact = flags & 128;
    m->salt = fuzz_byte(script) % 2;
}

static const Forepack__Cluster__V1__RouterMessage *bin_make(struct fuzz_script *script)
{
    static Forepack__Cluster__V1__RouterMessage message;
    static Forepack__Cluster__V1__ScoreBin bin;
    static Forepack__Cluster__V1__ScoreItem *list[FUZZ_ITEMS_MAX];
    forepack__cluster__v1__router_message__init(&message);
    forepack__cluster__v1__score_bin__init(&bin);
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN;
    message.score_bin = &bin;
    bin.n_items = (size_t)fuzz_below(script, FUZZ_ITEMS_MAX + 1);
    bin.items = list;
    for (size_t i = 0; i < bin.n_items; i++) {
        item_fill(script, &items[i]);
        list[i] = &items[i].item;
    }
    return &message;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_script script = {data, size};
    memset(items, 0, sizeof items);
    fuzz_role_run(&speculator_role, NODE_SPECULATOR, bin_make, &script);
    return 0;
}
