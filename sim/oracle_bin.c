// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_bin.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "router/core/request_table.h"
#include "sim/oracle_chain.h"
#include "sim/oracle_waiting.h"

// What a node had left when a request of a bin was picked.
struct room {
    const struct sched_node *node;
    int64_t pass_rows, rows, blocks;
    int slots, picked;
    bool takes_long;
};

static int priority_of(const struct sched_request *r)
{
    int priority = r->spec->priority, max = PRIORITY_MAX;
    return priority > max ? max : priority < -max ? -max : priority;
}

static bool is_long(const struct room *room, const struct sched_request *r)
{
    return sched_request_rows(r) > room->pass_rows;
}

static bool room_fits(const struct room *room, const struct sched_request *r)
{
    int64_t rows = sched_request_rows(r), rows_left = room->picked ? room->rows : room->pass_rows;
    if (!r->packable || r->runs_alone || !sched_node_can_hold(room->node, r)) return false;
    if (sched_node_blocks_needed(room->node, r) > room->blocks) return false;
    if (!is_long(room, r)) return rows <= rows_left;
    return room->takes_long && (!room->picked || room->pass_rows / 2 <= room->rows);
}

// Before the first request of the bin, from the accounts that have all of them.
static struct room room_before(const struct sched_node *node, struct request *const *requests, int n)
{
    struct room room = {.node = node, .pass_rows = sched_node_pass_rows(node), .blocks = sched_node_blocks_left(node)};
    int long_prompts = node->account.long_prompts;
    for (int i = 0; i < n; i++) {
        long_prompts -= requests[i]->account.is_long;
        if (node->role == NODE_WORKER) room.blocks += requests[i]->account.own_blocks;
    }
    room.slots = node->limits.max_seqs - (node->account.requests.count - n);
    room.takes_long = !long_prompts;
    room.rows = long_prompts ? room.pass_rows - room.pass_rows / 2 : room.pass_rows;
    return room;
}

static void room_take(struct room *room, const struct request *r)
{
    bool is_long = r->account.is_long;
    room->rows -= is_long ? room->pass_rows / 2 : r->account.rows;
    if (room->node->role == NODE_WORKER) room->blocks -= r->account.own_blocks;
    room->takes_long &= !is_long;
    room->picked++;
}

// Of several slots, overdue requests get one at least, and the first one is due first. Whether a later one was picked
// because it was overdue cannot be told.
static bool goes_before_overdue(const struct room *room, const struct sched_request *r,
                                const struct sched_request *other)
{
    return !room->picked && room->slots > 1 && other->overdue && other->due_us < r->due_us;
}

// `other` waits and fits the room in which `r` was picked.
static bool goes_before(const struct room *room, const struct sched_request *r, bool was_overdue,
                        const struct sched_request *other)
{
    if (goes_before_overdue(room, r, other)) return true;
    if (was_overdue || priority_of(other) < priority_of(r)) return false;
    if (priority_of(other) > priority_of(r)) return true;
    if (other->tenant_queue != r->tenant_queue) return false; // see oracle_fair.h
    if (is_long(room, other) != is_long(room, r)) return is_long(room, other);
    return sched_request_rows(other) > sched_request_rows(r);
}

static void check_order(struct world *w, const struct core *c, const struct room *room, const struct request *r)
{
    const struct waiting_set *set = &c->waiting[room->node->role];
    const struct request_list *lists[] = {&set->overdue, &set->queue};
    bool was_overdue = r->sched.due_us <= c->view.now_us;
    for (int k = 0; k < 2; k++) {
        for (const struct sched_request *other = lists[k]->first; other; other = other->next) {
            if (!room_fits(room, other) || !goes_before(room, &r->sched, was_overdue, other)) continue;
            world_fail(w,
                       "request %llu has a place in a bin before one that is overdue, or of higher priority, or longer",
                       (unsigned long long)r->number);
        }
    }
}

static bool order_is_determined(const struct core *c, const struct sched_node *node)
{
    for (const struct sched_node *other = c->view.nodes; other; other = other->next)
        if (other->prefixes) return false;
    return c->options.policy == BIN_DATASET && c->view.reservation.node != node;
}

// The bin is the latest that the live page shows.
static void check_recent(struct world *w, const struct core *c, const struct core_node *node, uint64_t bin,
                         struct request *const *requests, int n)
{
    const struct recent_bin *recent = recent_bins_get(&c->recent[node->hello.role], 0);
    int64_t rows = 0;
    HOLDS(recent && recent->id == bin && recent->n == n && recent->sent_us == c->view.now_us);
    if (!recent) return;
    HOLDS(strcmp(recent->node_id, node->hello.node_id) == 0 && recent->token_budget == node->hello.token_budget);
    for (int i = 0; i < n; i++) {
        const struct recent_prompt *prompt = &recent->prompts[i];
        rows += requests[i]->account.rows;
        HOLDS(i >= RECENT_BIN_PROMPTS ||
              (prompt->tokens == requests[i]->spec.n_tokens && prompt->kept == requests[i]->usage.kept_tokens &&
               prompt->rows == requests[i]->account.rows));
    }
    HOLDS(node->sched.prefixes || recent->rows == rows); // the record of a cache may forget meanwhile
}

static void check_order_of_all(struct world *w, const struct core *c, const struct core_node *node,
                               struct request *const *requests, int n)
{
    struct room room = room_before(&node->sched, requests, n);
    for (int i = 0; i < n && !requests[i]->sched.runs_alone; i++) {
        check_order(w, c, &room, requests[i]);
        room_take(&room, requests[i]);
    }
}

void oracle_bin(struct world *w, const struct core *c, const struct core_node *node, uint64_t bin,
                const uint64_t *numbers, int n)
{
    if (!node || !n) return;
    const struct node_account *account = &node->sched.account;
    if (node->hello.role == NODE_WORKER)
        HOLDS(account->kv_blocks <= node->hello.kv_blocks && account->requests.count <= node->hello.max_seqs);
    struct request **requests = mem_alloc_array((size_t)n, sizeof(struct request *));
    for (int i = 0; i < n; i++)
        requests[i] = request_table_find(&c->table, numbers[i]);
    check_recent(w, c, node, bin, requests, n);
    for (int i = 0; i < n; i++)
        oracle_chain(w, c, requests[i], node->hello.role);
    if (order_is_determined(c, &node->sched)) check_order_of_all(w, c, node, requests, n);
    free(requests);
}
