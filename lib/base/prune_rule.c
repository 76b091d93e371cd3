// SPDX-License-Identifier: Apache-2.0
#include "lib/base/prune_rule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[PRUNE_KINDS] = {
    [PRUNE_UNSET] = "",
    [PRUNE_ANY] = "any",
    [PRUNE_NEVER] = "never",
    [PRUNE_QUALITY] = "quality-at-least",
    [PRUNE_KEEP] = "keep-at-least",
    [PRUNE_REQUIRED] = "required",
};
static const char *const draft_rules[] = {"", "auto", "off"};

static bool has_bound(enum prune_kind kind)
{
    return kind == PRUNE_QUALITY || kind == PRUNE_KEEP;
}

const char *prune_kind_name(enum prune_kind kind)
{
    return kinds[kind];
}

// Returns the kind whose name is the first `size` bytes of `text`, or PRUNE_UNSET.
static enum prune_kind kind_of(const char *text, size_t size)
{
    for (enum prune_kind kind = PRUNE_ANY; kind < PRUNE_KINDS; kind++)
        if (strlen(kinds[kind]) == size && memcmp(kinds[kind], text, size) == 0) return kind;
    return PRUNE_UNSET;
}

// Parses a bound such as 0.99. The digits after leading zeros are limited, so that the bound is written and read again
// as the same number.
static enum status bound_parse(const char *name, const char *kind, const char *text, double *bound_p)
{
    enum { DIGITS_MAX = 12 };
    size_t size = strspn(text, "0123456789.");
    char *end = NULL;
    double bound = size && size - strspn(text, "0") <= DIGITS_MAX && !text[size] ? strtod(text, &end) : 0;
    if (!end || *end || !(bound > 0 && bound < 1))
        return status_fail(STATUS_INVALID, "%s '%s:%.40s': the number must be over 0 and below 1, such as 0.95", name,
                           kind, text);
    *bound_p = bound;
    return STATUS_OK;
}

enum status prune_rule_parse(const char *name, const char *text, struct prune_rule *rule_p)
{
    const char *colon = strchr(text, ':');
    struct prune_rule rule = {.kind = kind_of(text, colon ? (size_t)(colon - text) : strlen(text))};
    if (!rule.kind || has_bound(rule.kind) != (colon != NULL))
        return status_fail(STATUS_INVALID, "%s '%.40s': must be " PRUNE_RULES, name, text);
    if (colon) TRY(bound_parse(name, kinds[rule.kind], colon + 1, &rule.bound));
    *rule_p = rule;
    return STATUS_OK;
}

void prune_rule_format(const struct prune_rule *rule, char text[PRUNE_RULE_ROOM])
{
    if (has_bound(rule->kind))
        snprintf(text, PRUNE_RULE_ROOM, "%s:%.12f", kinds[rule->kind], rule->bound);
    else
        snprintf(text, PRUNE_RULE_ROOM, "%s", kinds[rule->kind]);
    for (size_t n = strlen(text); has_bound(rule->kind) && text[n - 1] == '0'; n--)
        text[n - 1] = 0;
}

enum status draft_rule_parse(const char *name, const char *text, enum draft_rule *rule_p)
{
    for (enum draft_rule rule = DRAFT_RULE_AUTO; rule <= DRAFT_RULE_OFF; rule++) {
        if (strcmp(text, draft_rules[rule]) != 0) continue;
        *rule_p = rule;
        return STATUS_OK;
    }
    return status_fail(STATUS_INVALID, "%s '%.40s': must be " DRAFT_RULES, name, text);
}

const char *draft_rule_name(enum draft_rule rule)
{
    return draft_rules[rule];
}

struct client_rules client_rules_first(const struct client_rules *own, const struct client_rules *others)
{
    return (struct client_rules){
        .prune = own->prune.kind ? own->prune : others->prune,
        .drafts = own->drafts ? own->drafts : others->drafts,
    };
}
