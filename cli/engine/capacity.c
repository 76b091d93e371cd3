// SPDX-License-Identifier: Apache-2.0
#include "cli/engine/capacity.h"

#include <math.h>

enum { FIXED_POINT_STEPS = 5000, BISECTIONS = 40, LOOK_AHEADS = 8 };

const char *capacity_limit_text(enum capacity_limit limit)
{
    static const char *const texts[] = {
        [CAPACITY_SEQUENCES] = "--max-num-seqs",
        [CAPACITY_KV] = "memory for the KV cache",
        [CAPACITY_BUDGET] = "--max-num-batched-tokens",
        [CAPACITY_PASS] = "the time of passes",
    };
    return texts[limit];
}

const char *capacity_part_text(const struct pass_parts *p)
{
    const struct {
        double us;
        const char *text;
    } parts[] = {{p->weights_us, "reading weights"},
                 {p->arithmetic_us, "arithmetic"},
                 {p->attention_us, "attention, with reading the KV cache"},
                 {p->sums_us, "sums over the ranks"},
                 {p->launch_us, "starting kernels"}};
    int longest = 0;
    for (int i = 1; i < (int)(sizeof parts / sizeof parts[0]); i++)
        if (parts[i].us > parts[longest].us) longest = i;
    return parts[longest].text;
}

// ---- single requests ------------------------------------------------------------------------------------------------

static struct pass_parts pass_parts_of(const struct capacity_node *node, double n, double rows, double cached)
{
    struct pass_work work = {0};
    pass_work_add(&work, &node->shape, n, rows, cached, true);
    return pass_cost_of(&node->shape, &work);
}

static double pass_us(const struct capacity_node *node, double n, double rows, double cached)
{
    return pass_parts_of(node, n, rows, cached).total_us + node->shape.device.host_us;
}

double capacity_prefill_us(const struct capacity_node *node, double rows, double cached)
{
    double us = 0, later_us = 0; // later_us: time of the last pass in the other stages
    while (rows > 0) {
        const double chunk = fmin(rows, node->token_budget);
        const struct pass_parts parts = pass_parts_of(node, 1, chunk, cached);
        us += parts.total_us + node->shape.device.host_us;
        later_us = parts.latency_us - parts.total_us;
        rows -= chunk;
        cached += chunk;
    }
    return us + later_us;
}

double capacity_decode_us(const struct capacity_node *node, double entries)
{
    return pass_parts_of(node, 1, 1, entries).latency_us + node->shape.device.host_us;
}

double capacity_score_us(const struct capacity_node *node, double rows)
{
    const double prompts = fmax(1, floor(node->token_budget / rows));
    const double together_us = prompts > 1 ? pass_us(node, prompts, rows, 0) : capacity_prefill_us(node, rows, 0);
    return (together_us + (LOOK_AHEADS - 1) * pass_us(node, prompts, 1, rows)) / prompts;
}

// ---- a steady state -------------------------------------------------------------------------------------------------

struct state {
    double us, decode_us, prompt_rows;
    double sequences, rows; // running sequences, and those with a row in a pass
    struct pass_parts parts;
};

static void state_compute(const struct capacity_node *node, const struct capacity_load *load, double rate, double us,
                          struct state *state)
{
    const struct pass_shape *shape = &node->shape;
    const double rows = fmax(load->prompt_tokens - load->cached_tokens, 1);
    const double entries = load->prompt_tokens + load->output_tokens / 2;
    struct pass_work decodes = {0};
    state->rows = rate * us / 1e6 * (load->output_tokens - 1); // the prompt's pass gives the first token
    state->sequences = shape->stages * state->rows;
    state->prompt_rows = rate * us / 1e6 * rows;
    pass_work_add(&decodes, shape, state->rows, 1, entries, true);
    struct pass_work all = decodes;
    pass_work_add(&all, shape, state->prompt_rows / rows, rows, load->cached_tokens, true);
    state->decode_us = pass_cost_of(shape, &decodes).total_us;
    state->parts = pass_cost_of(shape, &all);
    state->us = state->parts.total_us / (1 - pass_decode_bubble(shape, &state->parts));
}

// Finds the pass that repeats itself at a rate. Returns false if a limit of the node is exceeded first.
static bool state_find(const struct capacity_node *node, const struct capacity_load *load, double rate,
                       struct state *state, enum capacity_limit *limit_p)
{
    double us = pass_us(node, 1, 1, load->prompt_tokens);
    for (int i = 0; i < FIXED_POINT_STEPS; i++) {
        state_compute(node, load, rate, us, state);
        const double longest_us = node->pass_us > 0 ? node->pass_us : 2 * state->decode_us;
        const double kv_tokens = state->sequences * (load->prompt_tokens + load->output_tokens / 2);
        *limit_p = state->sequences > node->max_seqs                               ? CAPACITY_SEQUENCES
                   : kv_tokens > node->kv_tokens                                   ? CAPACITY_KV
                   : state->rows + state->prompt_rows > node->token_budget         ? CAPACITY_BUDGET
                   : load->output_tokens > 1 && state->parts.total_us > longest_us ? CAPACITY_PASS
                                                                                   : CAPACITY_LIMITS;
        if (*limit_p != CAPACITY_LIMITS) return false;
        if (state->us <= us * (1 + 1e-6)) return true;
        us = state->us;
    }
    *limit_p = CAPACITY_PASS;
    return false;
}

struct capacity capacity_of(const struct capacity_node *node, const struct capacity_load *load)
{
    struct capacity capacity = {.limit = CAPACITY_PASS};
    struct state state;
    enum capacity_limit limit;
    double held = 0, missed = 1;
    while (missed < 1e6 && state_find(node, load, missed, &state, &limit))
        missed *= 2;
    for (int i = 0; i < BISECTIONS; i++) {
        const double rate = (held + missed) / 2;
        if (state_find(node, load, rate, &state, &limit)) {
            held = rate;
            capacity.rate = rate;
            capacity.sequences = state.sequences;
            capacity.parts = state.parts;
            capacity.itl_us = node->shape.stages * state.us;
            capacity.bubble = pass_decode_bubble(&node->shape, &state.parts);
        } else {
            missed = rate;
            capacity.limit = limit;
        }
    }
    return capacity;
}
