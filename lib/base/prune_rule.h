// SPDX-License-Identifier: Apache-2.0
// Rules of an operator for pruning and drafts, as text in the key file and in options. A rule limits
// the options of a request; lib/text/prefill_limit.h applies it.
//
//   any                     no limit
//   never                   no prompt is pruned
//   quality-at-least:0.99   a pruned prompt has a quality, which is never lower; a fixed keep rate is not allowed
//   keep-at-least:0.5       no prompt is pruned below this keep rate
//   required                each prompt is pruned; a request that no speculator can score is refused
#pragma once

#include <stdbool.h>

#include "lib/base/status.h"

enum prune_kind {
    PRUNE_UNSET, // no rule is given: another rule applies (client_rules_first())
    PRUNE_ANY,
    PRUNE_NEVER,
    PRUNE_QUALITY,
    PRUNE_KEEP,
    PRUNE_REQUIRED,
    PRUNE_KINDS
};

struct prune_rule {
    enum prune_kind kind;
    double bound; // least quality or least keep rate, over 0 and below 1; 0 for other kinds
};

#define PRUNE_RULES "any, never, quality-at-least:Q, keep-at-least:R or required"

const char *prune_kind_name(enum prune_kind kind); // "quality-at-least" for PRUNE_QUALITY; "" for PRUNE_UNSET

// Returns INVALID, with an error message that begins with `name`, for a text that is not a rule.
enum status prune_rule_parse(const char *name, const char *text, struct prune_rule *rule_p);
enum { PRUNE_RULE_ROOM = 48 };
// Writes the text that prune_rule_parse() reads as the same rule; "" for PRUNE_UNSET.
void prune_rule_format(const struct prune_rule *rule, char text[PRUNE_RULE_ROOM]);

enum draft_rule { DRAFT_RULE_UNSET, DRAFT_RULE_AUTO, DRAFT_RULE_OFF };
#define DRAFT_RULES "auto or off"
enum status draft_rule_parse(const char *name, const char *text, enum draft_rule *rule_p);
const char *draft_rule_name(enum draft_rule rule); // "" for DRAFT_RULE_UNSET

// The rules of a key, or the router's rules for requests whose key has none.
struct client_rules {
    struct prune_rule prune;
    enum draft_rule drafts;
};

// Returns the rules of `own`. Each rule that `own` leaves unset is taken from `others`.
struct client_rules client_rules_first(const struct client_rules *own, const struct client_rules *others);
