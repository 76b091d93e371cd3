// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_steps.h"

#include <limits.h>
#include <string.h>

#include "router/core/requests.h"
#include "sim/oracle_waiting.h"

// From this many losses in a row on, a request runs alone; with one more it ends.
enum { LOSSES_ALONE = 2 };

static struct world *world; // one router runs at a time

void oracle_steps_begin(struct world *w)
{
    world = w;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

static int from_zero_to(int most, int value)
{
    return value < 0 ? 0 : least(value, most);
}

// --- results

// Returns true if the router has to book the result: the request runs on the node, in the result's bin.
static bool is_for(const struct request *r, const struct core_node *node, const struct sequence_result *result)
{
    return r && r->number == result->request && r->account.node == node &&
           (r->state == REQUEST_PREFILL || r->state == REQUEST_DECODE) &&
           (!result->bin || result->bin == r->account.bin_id);
}

static void step_expect(struct client *client, const struct core_node *node, const struct sequence_result *result)
{
    // With two results for one request in a message, only the sum of both could be checked.
    client->step_is_double = client->step != NULL;
    client->step_is_wrong = !is_for(client->r, node, result);
    client->step = result;
    client->before_step = client->r->usage;
    if (!client->tainted && !client->step_is_wrong && result->cached_tokens > 0 && !client->r->account.bin)
        client_fail(client, "a worker group reported its cached tokens twice");
}

// Checks the usage after the result. A result that the router must not book changes nothing.
static void step_check(const struct client *client)
{
    struct world *w = client->w;
    const struct request *r = client->r;
    if (client->step_is_wrong) {
        HOLDS(memcmp(&client->before_step, &r->usage, sizeof r->usage) == 0);
        return;
    }
    const struct sequence_result *result = client->step;
    const struct request_usage *before = &client->before_step, *now = &r->usage;
    int n_used = now->completion_tokens - before->completion_tokens;
    int verified = from_zero_to(r->spec.sampling.max_tokens - before->completion_tokens, result->draft_tokens);
    int accepted = from_zero_to(least(verified, n_used), result->draft_accepted_tokens);
    int cached = result->cached_tokens > 0 ? least(result->cached_tokens, now->kept_tokens) : before->cached_tokens;
    bool stops = client->plan->request.stop_after || r->spec.sampling.no_output;
    HOLDS(stops ? n_used >= 0 && n_used <= result->n_tokens : n_used == result->n_tokens);
    HOLDS(now->cached_tokens == cached);
    HOLDS(now->draft_tokens == least(before->draft_tokens + verified, INT_MAX / 2));
    HOLDS(now->draft_accepted_tokens == before->draft_accepted_tokens + accepted);
    HOLDS(now->replays == before->replays && now->preemptions == before->preemptions);
    HOLDS(!result->n_tokens || r->account.losses == 0);
}

void oracle_steps_ended(struct client *client)
{
    bool is_refused = client->r->state == REQUEST_FAILED; // a refused result is not booked
    if (!client->step || client->step_is_double) return;
    if (client->step_is_wrong) client_fail(client, "ended by a result of another node or of an earlier attempt");
    if (!is_refused && !client->step_is_wrong) step_check(client);
    client->step = NULL;
}

void __real_core_step(struct core *c, struct core_node *node, const struct sequence_result *results, int n,
                      int64_t now_us);
void __wrap_core_step(struct core *c, struct core_node *node, const struct sequence_result *results, int n,
                      int64_t now_us);

void __wrap_core_step(struct core *c, struct core_node *node, const struct sequence_result *results, int n,
                      int64_t now_us)
{
    for (int i = 0; i < n; i++) {
        struct client *client = client_of_number(world, results[i].request);
        if (client && client->r && client->r->number == results[i].request) step_expect(client, node, &results[i]);
    }
    __real_core_step(c, node, results, n, now_us);
    for (int i = 0; i < n; i++) {
        struct client *client = client_of_number(world, results[i].request);
        if (!client || client->step != &results[i]) continue;
        if (client->r && !client->step_is_double) step_check(client);
        client->step = NULL;
    }
}

// --- lost groups

void __real_core_request_replay(struct core *c, struct request *r, enum node_loss loss, int64_t now_us);
void __wrap_core_request_replay(struct core *c, struct request *r, enum node_loss loss, int64_t now_us);

void __wrap_core_request_replay(struct core *c, struct request *r, enum node_loss loss, int64_t now_us)
{
    struct world *w = world;
    struct client *client = r->shadow ? NULL : client_of_number(w, r->number);
    int replays = r->usage.replays + 1;
    __real_core_request_replay(c, r, loss, now_us);
    if (!client) return;
    int losses = ++client->losses;
    HOLDS((losses > LOSSES_ALONE) == !client->r);
    if (!client->r) return;
    bool is_alone = losses >= LOSSES_ALONE && c->options.policy == BIN_DATASET;
    HOLDS(client->r->sched.runs_alone == is_alone);
    HOLDS(client->r->usage.replays == replays && client->r->account.losses == losses);
}
