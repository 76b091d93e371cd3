// SPDX-License-Identifier: Apache-2.0
#include "sim/scenario.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/core/agreement.h"
#include "router/core/core_state.h"
#include "sim/calibrations.h"
#include "sim/lies.h"

// A member of a struct that is written as text.
struct member {
    const char *name;
    size_t offset;
};

#define OPTION_ROW(name)  {#name, offsetof(struct scenario_options, name)},
#define NODE_ROW(name)    {#name, offsetof(struct scenario_node, name)},
#define REQUEST_ROW(name) {#name, offsetof(struct action, request) + offsetof(struct scenario_request, name)},
static const struct member option_members[] = {SCENARIO_OPTIONS(OPTION_ROW){0}};
static const struct member node_members[] = {SCENARIO_NODE(NODE_ROW){0}};
static const struct member action_members[] = {{"id", offsetof(struct action, id)},
                                               {"node", offsetof(struct action, node)},
                                               {"for_us", offsetof(struct action, for_us)},
                                               {"value", offsetof(struct action, value)},
                                               SCENARIO_REQUEST(REQUEST_ROW){0}};

#define KIND_NAME(kind, name) name,
static const char *const kind_names[] = {SCENARIO_KINDS(KIND_NAME)};

static const char *action_kind_name(enum action_kind kind)
{
    return kind_names[kind];
}

void scenario_init(struct scenario *s)
{
    *s = (struct scenario){.options = {.noise_seed = 1,
                                       .vocab = 512,
                                       .delay_us = 100,
                                       .samples = 1,
                                       .heartbeat_ms = 1000,
                                       .max_queue_requests = 10000,
                                       .max_queue_tokens = 100000000,
                                       .queue_reserve = 10,
                                       .tenant_percent = 80,
                                       .max_wait_ms = 500,
                                       .score_timeout_ms = 10000,
                                       .worker_grace_ms = 30000,
                                       .step_timeout_ms = 120000,
                                       .stall_ms = 30000,
                                       .eject_ms = 10000,
                                       .min_tokens = 512,
                                       .tail_tokens = 128,
                                       .bins_ahead = 2,
                                       .batch_requests = 16,
                                       .weight_of_1 = 1000,
                                       .tick_work = CORE_TICK_WORK,
                                       .unread_max = 64}};
}

void scenario_fini(struct scenario *s)
{
    free(s->nodes);
    free(s->actions);
    *s = (struct scenario){0};
}

void scenario_add_node(struct scenario *s, struct scenario_node node)
{
    MEM_GROW(s->nodes, s->n_nodes, s->nodes_capacity);
    s->nodes[s->n_nodes++] = node;
}

void scenario_add_action(struct scenario *s, struct action action)
{
    MEM_GROW(s->actions, s->n_actions, s->actions_capacity);
    s->actions[s->n_actions++] = action;
}

void scenario_sort(struct scenario *s)
{
    for (int i = 1; i < s->n_actions; i++) { // stable, and fast for a list that is nearly sorted
        struct action action = s->actions[i];
        int at = i;
        for (; at && s->actions[at - 1].at_us > action.at_us; at--)
            s->actions[at] = s->actions[at - 1];
        s->actions[at] = action;
    }
}

// --- writing

static int64_t *member_of(void *object, const struct member *member)
{
    return (int64_t *)((char *)object + member->offset);
}

static void members_write(void *object, const struct member *members, bool zeros, FILE *file)
{
    for (; members->name; members++) {
        int64_t value = *member_of(object, members);
        if (value || zeros) fprintf(file, " %s=%lld", members->name, (long long)value);
    }
    fputc('\n', file);
}

void scenario_write(const struct scenario *s, FILE *file)
{
    fprintf(file, "option");
    members_write((void *)&s->options, option_members, true, file);
    for (int i = 0; i < s->n_nodes; i++) {
        fprintf(file, "node");
        members_write(&s->nodes[i], node_members, false, file);
    }
    for (int i = 0; i < s->n_actions; i++) {
        fprintf(file, "at %lld %s", (long long)s->actions[i].at_us, kind_names[s->actions[i].kind]);
        members_write(&s->actions[i], action_members, false, file);
    }
}

// --- reading

// Reads the rest of a line: NAME=VALUE, separated by blanks.
static enum status members_read(char *text, const struct member *members, void *object)
{
    for (char *word = strtok(text, " \t\r\n"); word; word = strtok(NULL, " \t\r\n")) {
        char *equals = strchr(word, '='), *end = "";
        const struct member *member = members;
        if (equals) *equals = 0;
        while (member->name && strcmp(member->name, word) != 0)
            member++;
        if (!equals || !member->name)
            return status_fail(STATUS_INVALID, "'%s': give NAME=VALUE with a name of docs/simulator.md", word);
        *member_of(object, member) = strtoll(equals + 1, &end, 10);
        if (end == equals + 1 || *end) return status_fail(STATUS_INVALID, "%s '%s': a number", word, equals + 1);
    }
    return STATUS_OK;
}

static enum status action_read(char *text, struct scenario *s)
{
    struct action action = {0};
    char kind[32] = "";
    int used = 0;
    long long at_us;
    if (sscanf(text, "%lld %31s%n", &at_us, kind, &used) < 2)
        return status_fail(STATUS_INVALID, "'at' needs a time and an action");
    action.at_us = at_us;
    while (action.kind < ACTION_KINDS && strcmp(kind_names[action.kind], kind) != 0)
        action.kind++;
    if (action.kind == ACTION_KINDS) return status_fail(STATUS_INVALID, "'%s': no such action", kind);
    TRY(members_read(text + used, action_members, &action));
    scenario_add_action(s, action);
    return STATUS_OK;
}

static enum status line_read(char *line, struct scenario *s)
{
    line[strcspn(line, "#\r\n")] = 0;
    char word[8] = "";
    int used = 0;
    struct scenario_node node = {0};
    if (sscanf(line, "%7s%n", word, &used) < 1) return STATUS_OK;
    if (strcmp(word, "option") == 0) return members_read(line + used, option_members, &s->options);
    if (strcmp(word, "at") == 0) return action_read(line + used, s);
    if (strcmp(word, "node") != 0)
        return status_fail(STATUS_INVALID, "'%s': a line begins with option, node or at", word);
    TRY(members_read(line + used, node_members, &node));
    scenario_add_node(s, node);
    return STATUS_OK;
}

// --- checking

struct bound {
    const char *name;
    int64_t value, least, most;
};

// Returns STATUS_INVALID with a message that names the first value out of bounds, or STATUS_OK. The last row of
// `bounds` has no name.
static enum status bounds_check(const char *what, const struct bound *bounds)
{
    for (; bounds->name; bounds++) {
        if (bounds->value >= bounds->least && bounds->value <= bounds->most) continue;
        return status_fail(STATUS_INVALID, "%s: %s %lld: must be from %lld to %lld", what, bounds->name,
                           (long long)bounds->value, (long long)bounds->least, (long long)bounds->most);
    }
    return STATUS_OK;
}

enum { COUNT_MAX = 1 << 30 };
#define TIME_MAX_US INT64_C(1000000000000) // eleven days

static enum status options_check(const struct scenario_options *o)
{
    const struct bound bounds[] = {{"vocab", o->vocab, 8, SCENARIO_VOCAB_MAX},
                                   {"delay_us", o->delay_us, 0, TIME_MAX_US},
                                   {"jitter_us", o->jitter_us, 0, TIME_MAX_US},
                                   {"loop_us", o->loop_us, 0, TIME_MAX_US},
                                   {"heartbeat_ms", o->heartbeat_ms, 1, TIME_MAX_US / 1000},
                                   {"max_queue_requests", o->max_queue_requests, 1, COUNT_MAX},
                                   {"queue_reserve", o->queue_reserve, 0, 49},
                                   {"tenant_percent", o->tenant_percent, 0, 100},
                                   {"max_wait_ms", o->max_wait_ms, 0, TIME_MAX_US / 1000},
                                   {"bins_ahead", o->bins_ahead, 1, COUNT_MAX},
                                   {"policy", o->policy, BIN_DATASET, BIN_NONE},
                                   {"batch_requests", o->batch_requests, 1, COUNT_MAX},
                                   {"weight_of_1", o->weight_of_1, 1, COUNT_MAX},
                                   {"tick_work", o->tick_work, 1, COUNT_MAX},
                                   {"draft_acceptance", o->draft_acceptance, -1, 1000},
                                   {"shadow", o->shadow, 0, 1000},
                                   {"shadow_per_s", o->shadow_per_s, 0, COUNT_MAX},
                                   {"shadow_measure", o->shadow_measure, AGREEMENT_UNWATCHED, AGREEMENT_ANSWER},
                                   {"shadow_promise", o->shadow_promise, 0, 990},
                                   {NULL, 0, 0, 0}};
    return bounds_check("option", bounds);
}

static enum status node_check(const struct scenario_node *node)
{
    const struct bound bounds[] = {{"role", node->role, NODE_SPECULATOR, NODE_WORKER},
                                   {"context", node->context, 2, COUNT_MAX},
                                   {"budget", node->budget, 1, 1 << 20},
                                   {"kv_blocks", node->kv_blocks, 1, COUNT_MAX},
                                   {"max_seqs", node->max_seqs, 1, node->budget},
                                   {"noise_percent", node->noise_percent, 0, 99},
                                   {"sample_us", node->sample_us, 0, 1000000},
                                   {"gap_us", node->gap_us, 0, 1000000},
                                   {"calibration", node->calibration, 0, node->role ? 0 : SIM_CALIBRATIONS},
                                   {"draft_blocks", node->draft_blocks, 0, node->kv_blocks},
                                   {NULL, 0, 0, 0}};
    return bounds_check("node", bounds);
}

static enum status action_check(const struct scenario *s, const struct action *action)
{
    const struct scenario_request *r = &action->request;
    const struct bound common[] = {{"the time", action->at_us, 0, TIME_MAX_US},
                                   {"node", action->node, 0, s->n_nodes - 1},
                                   {"for_us", action->for_us, 0, TIME_MAX_US},
                                   {NULL, 0, 0, 0}};
    const struct bound request[] = {{"tokens", r->tokens, 1, COUNT_MAX},
                                    {"max_tokens", r->max_tokens, 0, COUNT_MAX},
                                    {"min_tokens", r->min_tokens, 0, r->max_tokens},
                                    {"mode", r->mode, PREFILL_AUTO, PREFILL_REQUIRED},
                                    {"keep", r->keep, 0, 1000},
                                    {"quality", r->quality, 0, 1000},
                                    {"rule", r->rule, 0, PRUNE_KINDS - 1},
                                    {"bound", r->bound, 0, 999},
                                    {"pin_first", r->pin_first, 0, r->pin_last ? r->pin_last : COUNT_MAX},
                                    {"pin_last", r->pin_last, 0, r->tokens - 1},
                                    {NULL, 0, 0, 0}};
    TRY(bounds_check(action_kind_name(action->kind), common));
    if (action->kind == ACTION_REQUEST) return bounds_check("request", request);
    if (action->kind == ACTION_LIE && (action->value < 0 || action->value >= LIES))
        return status_fail(STATUS_INVALID, "lie: value %lld: must be from 0 to %d", (long long)action->value, LIES - 1);
    return STATUS_OK;
}

static enum status scenario_check(const struct scenario *s)
{
    if (!s->n_nodes) return status_fail(STATUS_INVALID, "the scenario has no node");
    TRY(options_check(&s->options));
    for (int i = 0; i < s->n_nodes; i++)
        TRY(node_check(&s->nodes[i]));
    for (int i = 0; i < s->n_actions; i++)
        TRY(action_check(s, &s->actions[i]));
    return STATUS_OK;
}

enum status scenario_read(const char *path, struct scenario *s)
{
    FILE *file = fopen(path, "r");
    if (!file) return status_fail(STATUS_NOT_FOUND, "%s: %s", path, strerror(errno));
    scenario_init(s);
    char *line = NULL;
    size_t capacity = 0;
    int number = 0;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && getline(&line, &capacity, file) > 0) {
        number++;
        status = line_read(line, s);
        if (status != STATUS_OK) status_context(status, "%s:%d", path, number);
    }
    free(line);
    fclose(file);
    if (status == STATUS_OK) status = scenario_check(s);
    if (status == STATUS_OK) {
        scenario_sort(s);
    } else {
        scenario_fini(s);
    }
    return status;
}
