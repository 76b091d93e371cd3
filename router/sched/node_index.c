// SPDX-License-Identifier: Apache-2.0
#include "router/sched/node_index.h"

#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/sched/node_choice.h"
#include "router/sched/node_time.h"
#include "router/sched/waiting_set.h"

#define NEVER INT64_MAX

enum {
    OVERDUE_SCAN_MAX = 8,
    SHARING_MAX = 16, // limit of examined nodes that have a prefix of the request
};

// --- the tree

static bool node_is_before(const struct sched_node *a, const struct sched_node *b)
{
    const struct node_place *x = &a->place, *y = &b->place;
    if (x->finish < y->finish || x->finish > y->finish) return x->finish < y->finish;
    return x->requests != y->requests ? x->requests < y->requests : x->ordinal > y->ordinal;
}

static uint64_t heap_weight(const struct sched_node *node)
{
    uint64_t x = node->place.ordinal * UINT64_C(0x9e3779b97f4a7c15);
    return (x ^ x >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
}

static struct node_room own_room(const struct sched_node *node)
{
    const struct node_place *p = &node->place;
    bool declined_any = p->is_open && p->takes_any && p->asks_rows == NEVER;
    return (struct node_room){.blocks = p->blocks_left,
                              .open_blocks = p->is_open && p->asks_rows > 0 ? p->blocks : -1,
                              .idle_blocks = declined_any ? p->blocks : -1,
                              .asks_rows = p->is_open ? p->asks_rows : NEVER,
                              .context = node->limits.context_tokens};
}

static void room_include(struct node_room *most, const struct node_room *other)
{
    if (other->blocks > most->blocks) most->blocks = other->blocks;
    if (other->open_blocks > most->open_blocks) most->open_blocks = other->open_blocks;
    if (other->idle_blocks > most->idle_blocks) most->idle_blocks = other->idle_blocks;
    if (other->asks_rows < most->asks_rows) most->asks_rows = other->asks_rows;
    if (other->context > most->context) most->context = other->context;
}

static struct sched_node *root_refresh(struct sched_node *root)
{
    struct node_room most = own_room(root);
    if (root->place.lower) room_include(&most, &root->place.lower->place.subtree);
    if (root->place.higher) room_include(&most, &root->place.higher->place.subtree);
    root->place.subtree = most;
    return root;
}

static void tree_split(struct sched_node *tree, const struct sched_node *at, struct sched_node **low_p,
                       struct sched_node **high_p)
{
    if (!tree) {
        *low_p = *high_p = NULL;
    } else if (node_is_before(tree, at)) {
        tree_split(tree->place.higher, at, &tree->place.higher, high_p);
        *low_p = root_refresh(tree);
    } else {
        tree_split(tree->place.lower, at, low_p, &tree->place.lower);
        *high_p = root_refresh(tree);
    }
}

static struct sched_node *tree_merge(struct sched_node *low, struct sched_node *high)
{
    if (!low || !high) return low ? low : high;
    if (heap_weight(low) > heap_weight(high)) {
        low->place.higher = tree_merge(low->place.higher, high);
        return root_refresh(low);
    }
    high->place.lower = tree_merge(low, high->place.lower);
    return root_refresh(high);
}

static struct sched_node *tree_add(struct sched_node *tree, struct sched_node *node)
{
    if (tree && heap_weight(tree) > heap_weight(node)) {
        struct sched_node **side = node_is_before(tree, node) ? &tree->place.higher : &tree->place.lower;
        *side = tree_add(*side, node);
        return root_refresh(tree);
    }
    tree_split(tree, node, &node->place.lower, &node->place.higher);
    return root_refresh(node);
}

static struct sched_node *tree_remove(struct sched_node *tree, struct sched_node *node)
{
    if (tree == node) return tree_merge(node->place.lower, node->place.higher);
    struct sched_node **side = node_is_before(tree, node) ? &tree->place.higher : &tree->place.lower;
    *side = tree_remove(*side, node);
    return root_refresh(tree);
}

static void place_remove(struct sched_node *node)
{
    if (!node->place.is_placed) return;
    node->place.index->root = tree_remove(node->place.index->root, node);
    node->place.is_placed = false;
}

static void place_add(struct sched_node *node)
{
    node->place.index->root = tree_add(node->place.index->root, node);
    node->place.is_placed = true;
}

// --- searches, in the order of the nodes

enum search_kind { SEARCH_ASKED, SEARCH_OPEN, SEARCH_OPEN_THIS_ROUND, SEARCH_IDLE, SEARCH_BLOCKS };

struct node_search {
    const struct sched_view *view;
    uint64_t visits;
    const struct sched_request *r; // the request that needs a node; NULL with SEARCH_ASKED
    int64_t rows;                  // SEARCH_ASKED: number of waiting rows
    int64_t blocks;                // KV blocks that the request needs on a node where it shares none
    enum search_kind kind;
    bool unasked; // true: finds only nodes that declined before r->joined
};

// Returns the kind of search for nodes that declined the last plan but may accept this request.
static enum search_kind search_kind(const struct sched_request *r)
{
    return r->overdue ? SEARCH_OPEN : SEARCH_IDLE;
}

static bool node_fits(const struct node_search *s, const struct sched_node *node)
{
    bool long_prompt = s->r->need.rows > sched_node_pass_rows(node) && !node->prefixes;
    return !(long_prompt && node->account.long_prompts) &&
           sched_node_blocks_asked(node, s->r) <= node_blocks_for_others(s->view, node) &&
           sched_node_can_hold(node, s->r);
}

static bool room_matches(const struct node_search *s, const struct node_room *room, int64_t needed)
{
    if (s->kind == SEARCH_ASKED) return room->asks_rows <= s->rows;
    int64_t blocks = s->kind == SEARCH_BLOCKS ? room->blocks
                     : s->kind == SEARCH_IDLE ? room->idle_blocks
                                              : room->open_blocks;
    return blocks >= needed && room->context >= s->r->need.context;
}

static bool node_matches(const struct node_search *s, const struct sched_node *node, int64_t needed)
{
    struct node_room own = own_room(node);
    if (!room_matches(s, &own, needed)) return false;
    if (s->kind == SEARCH_ASKED) return true;
    if (s->kind == SEARCH_BLOCKS)
        return sched_node_can_hold(node, s->r) && sched_node_blocks_asked(node, s->r) <= sched_node_blocks_left(node);
    if (s->kind == SEARCH_OPEN_THIS_ROUND && node->place.declined_round == node->place.index->round) return false;
    if (s->unasked && node->place.declined_joined >= s->r->joined) return false;
    return node_fits(s, node);
}

static struct sched_node *tree_first(struct sched_node *tree, struct node_search *s)
{
    s->visits++;
    if (!tree || !room_matches(s, &tree->place.subtree, s->blocks)) return NULL;
    struct sched_node *lower = tree_first(tree->place.lower, s);
    if (lower) return lower;
    return node_matches(s, tree, s->blocks) ? tree : tree_first(tree->place.higher, s);
}

static struct sched_node *index_find(struct node_index *index, struct node_search *s)
{
    s->visits = 0;
    struct sched_node *node = tree_first(index->root, s);
    index->visits += s->visits;
    return node;
}

// Finds a node for the request. Prefers a node with room for all KV blocks of the request. Otherwise finds a node where
// the request shares blocks and the remaining blocks fit. Returns NULL if there is none.
static struct sched_node *index_first(struct node_index *index, struct node_search *s)
{
    s->blocks = index->role == NODE_WORKER ? sched_request_kv_blocks(s->r, PREFIX_BLOCK) : 0;
    struct sched_node *node = index_find(index, s);
    if (node || s->r->need.blocks == s->blocks) return node;
    struct prefix_hit hits[SHARING_MAX];
    int n = prefix_index_lookup(s->view->prefixes[index->role], s->r->prefix, s->r->n_prefix, hits, SHARING_MAX);
    for (int i = 0; i < n; i++)
        if (node_matches(s, hits[i].node, sched_node_blocks_asked(hits[i].node, s->r))) return hits[i].node;
    return NULL;
}

// --- changes

// Returns the least number of waiting rows at which the node is asked: 0 while overdue requests wait.
static int64_t rows_asked(const struct sched_node *node, const struct sched_view *view)
{
    if (view->waiting[node->role].overdue.count) return 0;
    return node_min_bin_rows(view, node);
}

static int free_slots(const struct sched_node *node)
{
    return node->place.is_open ? node->limits.max_seqs - node->account.requests.count : 0;
}

static bool has_more_room(const struct sched_node *node)
{
    const struct node_place *p = &node->place;
    return p->blocks > p->least_blocks || sched_node_pass_rows(node) > p->least_pass_rows ||
           free_slots(node) > p->least_slots || node->account.bins < p->most_bins ||
           node->account.long_prompts < p->most_long_prompts;
}

// Records the node's room as the least room since the node declined. Requests that did not fit may fit once the node
// has more room.
static void note_room(struct sched_node *node)
{
    struct node_place *p = &node->place;
    p->least_blocks = p->blocks;
    p->least_pass_rows = sched_node_pass_rows(node);
    p->least_slots = free_slots(node);
    p->most_bins = node->account.bins;
    p->most_long_prompts = node->account.long_prompts;
}

static void place_update(struct node_index *index, const struct sched_view *view, struct sched_node *node)
{
    struct node_place *p = &node->place;
    bool known = node_time_is_known(view, node, (int64_t)index->prompt_rows);
    index->n_known += known - p->is_known;
    p->is_known = known;
    p->finish =
        index->by_time ? node_time_finish_us(node, (int64_t)index->prompt_rows, 0) : (double)node->account.bin_tokens;
    p->requests = node->account.requests.count;
    p->is_open = node_is_open(view, node);
    p->takes_any = node_min_bin_rows(view, node) == 1;
    p->blocks_left = sched_index_blocks(node, sched_node_blocks_left(node));
    p->blocks = sched_index_blocks(node, node_blocks_for_others(view, node));
    if (p->has_declined && !has_more_room(node)) {
        note_room(node);
        return;
    }
    p->has_declined = false;
    p->asks_rows = rows_asked(node, view);
}

static void update_changed(struct node_index *index, const struct sched_view *view)
{
    for (struct sched_node *node; (node = index->changed);) {
        index->changed = node->place.changed_next;
        node->place.is_changed = false;
        place_remove(node);
        place_update(index, view, node);
        place_add(node);
    }
}

static void note_all(struct node_index *index, struct sched_node *tree)
{
    if (!tree) return;
    note_all(index, tree->place.lower);
    note_all(index, tree->place.higher);
    node_index_note_change(tree);
}

// Sorts all nodes again if prompt_rows or by_time changes, because these define the order. This is rare.
static void index_refresh(struct node_index *index, const struct sched_view *view)
{
    double mean = view->waiting[index->role].mean_rows;
    bool other_prompt = mean > 2 * index->prompt_rows || 2 * mean < index->prompt_rows;
    update_changed(index, view);
    if (other_prompt) {
        index->prompt_rows = mean;
        note_all(index, index->root);
        update_changed(index, view);
    }
    bool by_time = index->n_known == index->n_nodes;
    if (by_time == index->by_time) return;
    index->by_time = by_time;
    note_all(index, index->root);
    update_changed(index, view);
}

void node_index_note_change(struct sched_node *node)
{
    struct node_place *p = &node->place;
    if (p->index) p->index->changes++;
    if (!p->index || p->is_changed) return;
    p->is_changed = true;
    p->changed_next = p->index->changed;
    p->index->changed = node;
}

void node_index_add(struct node_index *index, struct sched_node *node)
{
    node->place = (struct node_place){.index = index, .ordinal = ++index->last_ordinal};
    MEM_GROW(index->nodes, index->n_nodes, index->capacity);
    index->nodes[index->n_nodes++] = node;
    pool_limits_update(&index->limits, index->nodes, index->n_nodes);
    node_index_note_change(node);
}

void node_index_set_draining(struct sched_node *node, bool draining)
{
    struct node_index *index = node->place.index;
    node->draining = draining;
    pool_limits_update(&index->limits, index->nodes, index->n_nodes);
    node_index_note_change(node);
}

static void list_remove(struct sched_node **list, const struct sched_node *node, size_t link)
{
    while (*list && *list != node)
        list = (struct sched_node **)((char *)*list + link);
    if (*list) *list = *(struct sched_node **)((char *)*list + link);
}

static void nodes_remove(struct node_index *index, const struct sched_node *node)
{
    int i = 0;
    while (index->nodes[i] != node)
        i++;
    index->n_nodes--;
    memmove(&index->nodes[i], &index->nodes[i + 1], (size_t)(index->n_nodes - i) * sizeof(struct sched_node *));
    pool_limits_update(&index->limits, index->nodes, index->n_nodes);
}

void node_index_fini(struct node_index *index)
{
    free(index->nodes);
    pool_limits_fini(&index->limits);
}

void node_index_remove(struct sched_node *node)
{
    struct node_index *index = node->place.index;
    if (!index) return;
    place_remove(node);
    list_remove(&index->changed, node, offsetof(struct sched_node, place.changed_next));
    list_remove(&index->again, node, offsetof(struct sched_node, place.again_next));
    index->changes++;
    nodes_remove(index, node);
    index->n_known -= node->place.is_known;
    node->place = (struct node_place){.index = NULL};
}

// --- rounds

static void ask(struct sched_node *node, int64_t rows)
{
    place_remove(node);
    node->place.asks_rows = rows;
    node->place.has_declined = false;
    place_add(node);
}

void node_index_start_round(struct node_index *index, const struct sched_view *view)
{
    index->round++;
    for (struct sched_node *node; (node = index->again);) {
        index->again = node->place.again_next;
        node->place.is_again = false;
        node->place.has_declined = false;
        node_index_note_change(node);
    }
    index_refresh(index, view);
}

// Returns a node with room for one of the OVERDUE_SCAN_MAX requests that are due first, or NULL. The node may have
// declined in an earlier round, but not in this one.
static struct sched_node *next_for_overdue(struct node_index *index, const struct sched_view *view)
{
    const struct due_index *due = &view->waiting[index->role].due_next;
    if (!index->root || !due->root) return NULL;
    const struct node_room *most = &index->root->place.subtree;
    int blocks = most->open_blocks < INT_MAX ? (int)most->open_blocks : INT_MAX;
    struct request_need room = {.rows = INT_MAX, .blocks = blocks, .context = most->context};
    struct node_search s = {.view = view, .r = due_index_next(due, NULL, &room), .kind = SEARCH_OPEN_THIS_ROUND};
    for (int i = 0; i < OVERDUE_SCAN_MAX && s.r; i++, s.r = due_index_next(due, s.r, &room)) {
        struct sched_node *node = index_first(index, &s);
        if (node) return node;
    }
    return NULL;
}

struct sched_node *node_index_next(struct node_index *index, const struct sched_view *view)
{
    struct node_search s = {.view = view, .rows = view->waiting[index->role].rows, .kind = SEARCH_ASKED};
    index_refresh(index, view);
    struct sched_node *node = index_find(index, &s);
    if (!node) node = next_for_overdue(index, view);
    index->plans += node != NULL;
    return node;
}

struct sched_node *node_index_next_for(struct node_index *index, const struct sched_view *view,
                                       const struct sched_request *r)
{
    index_refresh(index, view);
    index->request_searches++;
    struct node_search s = {.view = view, .r = r, .kind = search_kind(r), .unasked = true};
    struct sched_node *node = index_first(index, &s);
    index->plans += node != NULL;
    return node;
}

void node_index_decline(struct sched_node *node, const struct sched_view *view, int64_t rows_missing, bool elsewhere)
{
    struct node_place *p = &node->place;
    ask(node, p->takes_any ? NEVER : view->waiting[node->role].rows + rows_missing);
    p->has_declined = true;
    p->declined_round = p->index->round;
    p->declined_joined = view->waiting[node->role].joined;
    note_room(node);
    if (!elsewhere || p->is_again) return;
    p->is_again = true;
    p->again_next = p->index->again;
    p->index->again = node;
}

static int tree_list(const struct sched_node *tree, const struct sched_node **nodes, int max)
{
    if (!tree || !max) return 0;
    int n = tree_list(tree->place.lower, nodes, max);
    if (n < max) nodes[n++] = tree;
    return n + tree_list(tree->place.higher, nodes + n, max - n);
}

int node_index_first(struct node_index *index, const struct sched_view *view, const struct sched_node **nodes, int max)
{
    update_changed(index, view);
    return tree_list(index->root, nodes, max);
}

bool node_index_has_blocks(struct node_index *index, const struct sched_view *view, const struct sched_request *r)
{
    update_changed(index, view);
    struct node_search s = {.view = view, .r = r, .kind = SEARCH_BLOCKS};
    return index_first(index, &s);
}
