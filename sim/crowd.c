// SPDX-License-Identifier: Apache-2.0
#include "sim/crowd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "sim/node.h"
#include "sim/router.h"

// Tokens of prompts and answers, in all requests; sequence slots of a group; KV blocks of a sequence.
enum { PROMPT_MAX = 32, ANSWER_MIN = 100, ANSWER_MAX = 200, SHORT_MAX = 8, SLOTS_MAX = 32, SEQ_BLOCKS = 16 };
enum { CROWD = 2, OTHERS = 3 }; // tenants

// The largest number of passes that a group may begin between the arrival of a request and its first token: one more
// pass of other requests, the request's own pass, and one pass while the token is on its way.
enum { PASSES_MAX = 3 };

// --- scenarios

static int64_t between(struct random_source *random, int64_t least, int64_t most)
{
    return least + random_below(random, (int)(most - least + 1));
}

static void add_request(struct random_source *random, struct scenario *s, int64_t at_us, int tenant, int64_t max_tokens)
{
    struct action action = {.at_us = at_us, .kind = ACTION_REQUEST, .id = s->n_actions + 1};
    action.request = (struct scenario_request){.tokens = between(random, 1, PROMPT_MAX),
                                               .max_tokens = max_tokens,
                                               .ignore_eos = 1,
                                               .tenant = tenant,
                                               .mode = PREFILL_OFF};
    scenario_add_action(s, action);
}

void crowd_generate(struct random_source *random, struct scenario *s)
{
    scenario_init(s);
    int n_groups = (int)between(random, 1, 2), slots = (int)between(random, 4, SLOTS_MAX);
    int64_t fixed_us = between(random, 2000, 20000);
    s->options.noise_seed = (int64_t)(random_next(random) >> 2);
    s->options.delay_us = between(random, 20, fixed_us / 8);
    s->options.samples = 1;
    for (int i = 0; i < n_groups; i++)
        scenario_add_node(s, (struct scenario_node){.role = 1,
                                                    .id = i,
                                                    .up = 1,
                                                    .budget = 1024,
                                                    .kv_blocks = slots * SEQ_BLOCKS,
                                                    .max_seqs = slots,
                                                    .context = 400,
                                                    .fixed_us = fixed_us,
                                                    .row_ns = between(random, 100, 2000),
                                                    .pair_ps = 1,
                                                    .itl_target_ms = -1});
    for (int i = 0; i < 3 * slots * n_groups; i++)
        add_request(random, s, 1000000 + between(random, 0, 1000), CROWD, between(random, ANSWER_MIN, ANSWER_MAX));
    for (int i = 0; i < slots / 4 + 1; i++)
        add_request(random, s, 1000000 + fixed_us * between(random, 20, 300), (int)between(random, OTHERS, OTHERS + 2),
                    between(random, 1, SHORT_MAX));
    scenario_sort(s);
}

static bool node_is_plain(const struct scenario *s, const struct scenario_node *node)
{
    return node->role == 1 && node->up && node->budget >= 1024 && node->kv_blocks >= node->max_seqs * SEQ_BLOCKS &&
           node->max_seqs <= SLOTS_MAX && node->context >= PROMPT_MAX + ANSWER_MAX && node->itl_target_ms < 0 &&
           !node->noise_percent && !node->prefix_cache && !node->sample_us && !node->gap_us &&
           8 * s->options.delay_us <= node->fixed_us;
}

static bool request_is_plain(const struct scenario_request *r)
{
    const struct scenario_request plain = {.tokens = r->tokens,
                                           .max_tokens = r->max_tokens,
                                           .seed = r->seed,
                                           .ignore_eos = r->ignore_eos,
                                           .tenant = r->tenant,
                                           .mode = PREFILL_OFF};
    return memcmp(r, &plain, sizeof plain) == 0 && r->tokens <= PROMPT_MAX && r->max_tokens <= ANSWER_MAX;
}

bool crowd_applies(const struct scenario *s)
{
    const struct scenario_options *o = &s->options;
    if (s->load || o->jitter_us || o->loop_us || o->policy || o->bins_ahead < 2 || o->weight_of_1 != 1000) return false;
    for (int i = 0; i < s->n_nodes; i++)
        if (!node_is_plain(s, &s->nodes[i])) return false;
    for (int i = 0; i < s->n_actions; i++)
        if (s->actions[i].kind != ACTION_REQUEST || !request_is_plain(&s->actions[i].request)) return false;
    return true;
}

// --- the bound

// Returns true if all other requests are of one other tenant. At least two of them run, and one of these was never
// preempted and is on a group without an outstanding bin.
static bool meets_a_crowd(const struct client *client)
{
    const struct clients *clients = client->w->clients;
    int64_t crowd = -1;
    int running = 0;
    bool may_leave = false;
    for (int i = 0; i < client->w->scenario->n_actions; i++) {
        const struct client *other = &clients->of_action[i];
        if (!other->r || other == client) continue;
        if (crowd < 0) crowd = other->plan->request.tenant;
        if (other->plan->request.tenant != crowd || crowd == client->plan->request.tenant) return false;
        const struct core_node *node = other->r->account.node;
        running += node != NULL;
        may_leave |= node && !other->r->usage.preemptions && !node->sched.account.bins;
    }
    return running >= 2 && may_leave;
}

void crowd_submitted(struct client *client)
{
    const struct world *w = client->w;
    client->n_passes = 0;
    if (!w->clients->counts_passes || !client->r || !meets_a_crowd(client)) return;
    client->n_passes = w->scenario->n_nodes;
    client->passes = mem_resize(client->passes, (size_t)client->n_passes, sizeof *client->passes);
    for (int i = 0; i < client->n_passes; i++)
        client->passes[i] = sim_node_passes(w->nodes[i]);
}

void crowd_first_token(struct client *client)
{
    if (!client->n_passes) return;
    int node = sim_router_node_of(client->r->account.node->link);
    int64_t passes = sim_node_passes(client->w->nodes[node]) - client->passes[node];
    if (passes > PASSES_MAX)
        world_fail(client->w, "request %" PRId64 ": its first token came after %" PRId64 " passes, the bound is %d",
                   client->plan->id, passes, PASSES_MAX);
}
