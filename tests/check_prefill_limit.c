// SPDX-License-Identifier: Apache-2.0
// lib/text/prefill_limit: what each rule of an operator makes of what a request asks for.
#include "lib/text/prefill_limit.h"
#include "tests/suite.h"

static const struct limit_case {
    const char *rule;
    // asked: mode, keep rate, quality
    enum prefill_mode mode;
    double keep, quality;
    // allowed
    enum prefill_mode allowed_mode;
    double allowed_keep, allowed_quality, min_keep;
    bool limited;
} cases[] = {
    {"any", PREFILL_ON, 0.05, 0, PREFILL_ON, 0.05, 0, 0, false},
    {"any", PREFILL_REQUIRED, 0.3, 0.5, PREFILL_REQUIRED, 0.3, 0.5, 0, false},

    {"never", PREFILL_OFF, 0.3, 0, PREFILL_OFF, 0.3, 0, 0, false},
    {"never", PREFILL_AUTO, 0.3, 0, PREFILL_OFF, 0.3, 0, 0, true},
    {"never", PREFILL_ON, 1, 0.99, PREFILL_OFF, 1, 0.99, 0, true},
    {"never", PREFILL_REQUIRED, 0.9, 0, PREFILL_OFF, 0.9, 0, 0, true},
    {"never", PREFILL_ON, 1, 0, PREFILL_ON, 1, 0, 0, false},
    {"never", PREFILL_ON, 1, 1, PREFILL_ON, 1, 1, 0, false},
    {"never", PREFILL_ON, 0.3, 1, PREFILL_OFF, 0.3, 1, 0, true}, // 0.3 applies without a calibration

    {"quality-at-least:0.95", PREFILL_ON, 1, 0.99, PREFILL_ON, 1, 0.99, 0, false},
    {"quality-at-least:0.95", PREFILL_ON, 1, 0.95, PREFILL_ON, 1, 0.95, 0, false},
    {"quality-at-least:0.95", PREFILL_AUTO, 1, 0.9, PREFILL_AUTO, 1, 0.95, 0, true},
    {"quality-at-least:0.95", PREFILL_ON, 0.3, 0.99, PREFILL_ON, 1, 0.99, 0, true},
    {"quality-at-least:0.95", PREFILL_ON, 0.9, 0, PREFILL_ON, 1, 0.95, 0, true},
    {"quality-at-least:0.95", PREFILL_ON, 1, 0, PREFILL_ON, 1, 0, 0, false},
    {"quality-at-least:0.95", PREFILL_OFF, 0.3, 0, PREFILL_OFF, 0.3, 0, 0, false},

    {"keep-at-least:0.5", PREFILL_ON, 0.3, 0, PREFILL_ON, 0.5, 0, 0, true},
    {"keep-at-least:0.5", PREFILL_ON, 0.5, 0, PREFILL_ON, 0.5, 0, 0, false},
    {"keep-at-least:0.5", PREFILL_REQUIRED, 0.7, 0, PREFILL_REQUIRED, 0.7, 0, 0, false},
    {"keep-at-least:0.5", PREFILL_AUTO, 1, 0.9, PREFILL_AUTO, 1, 0.9, 0.5, true},
    {"keep-at-least:0.5", PREFILL_ON, 0.3, 0.9, PREFILL_ON, 0.5, 0.9, 0.5, true},
    {"keep-at-least:0.5", PREFILL_OFF, 0.3, 0, PREFILL_OFF, 0.3, 0, 0, false},

    {"required", PREFILL_REQUIRED, 0.2, 0, PREFILL_REQUIRED, 0.2, 0, 0, false},
    {"required", PREFILL_REQUIRED, 0.3, 0.9, PREFILL_REQUIRED, 0.3, 0.9, 0, false},
    {"required", PREFILL_AUTO, 0.2, 0, PREFILL_REQUIRED, 0.2, 0, 0, true},
    {"required", PREFILL_OFF, 0.2, 0, PREFILL_REQUIRED, 0.2, 0, 0, true},
    {"required", PREFILL_ON, 1, 0.9, PREFILL_REQUIRED, 0.3, 0.9, 0, true},
    {"required", PREFILL_ON, 1, 0, PREFILL_REQUIRED, 0.3, 0.98, 0, true}, // the router's quality
    {"required", PREFILL_ON, 0.2, 1, PREFILL_REQUIRED, 0.2, 0, 0, true},
    {"required", PREFILL_REQUIRED, 1, 1, PREFILL_REQUIRED, 0.3, 0.98, 0, true},
};

static struct prefill options(enum prefill_mode mode, double keep, double quality)
{
    struct prefill p;
    prefill_defaults(&p);
    p.mode = mode;
    p.keep_rate = keep;
    p.quality = quality;
    return p;
}

START_TEST(a_rule_bounds_what_a_request_asks_for)
{
    const struct limit_case *c = &cases[_i];
    const struct prefill router = options(PREFILL_OFF, 1, 0.98);
    struct prefill p = options(c->mode, c->keep, c->quality);
    struct prune_rule rule;
    ck_assert_int_eq(prune_rule_parse("rule", c->rule, &rule), STATUS_OK);
    ck_assert_int_eq(prefill_limit_prune(&rule, &router, &p), c->limited);
    ck_assert_int_eq(p.mode, c->allowed_mode);
    ck_assert_double_eq(p.keep_rate, c->allowed_keep);
    ck_assert_double_eq(p.quality, c->allowed_quality);
    ck_assert_double_eq(p.min_keep_rate, c->min_keep);
    ck_assert_int_eq(prefill_check(&p), STATUS_OK);
    ck_assert(!prefill_limit_prune(&rule, &router, &p)); // a second time changes nothing
}
END_TEST

START_TEST(a_router_that_keeps_all_tokens_still_prunes_where_it_must)
{
    const struct prefill router = options(PREFILL_OFF, 1, 1);
    struct prefill p = router;
    ck_assert(prefill_limit_prune(&(struct prune_rule){PRUNE_REQUIRED, 0}, &router, &p));
    ck_assert_int_eq(p.mode, PREFILL_REQUIRED);
    ck_assert_double_eq(p.keep_rate, 0.3);
    ck_assert_double_eq(p.quality, 0);
}
END_TEST

START_TEST(the_rules_of_a_key_go_before_those_of_the_router)
{
    const struct client_rules none = {0}, router = {{PRUNE_KEEP, 0.5}, DRAFT_RULE_OFF};
    const struct client_rules prune = {{PRUNE_ANY, 0}, DRAFT_RULE_UNSET}, drafts = {{0}, DRAFT_RULE_AUTO};
    ck_assert_int_eq(client_rules_first(&none, &router).prune.kind, PRUNE_KEEP);
    ck_assert_int_eq(client_rules_first(&none, &router).drafts, DRAFT_RULE_OFF);
    ck_assert_int_eq(client_rules_first(&prune, &router).prune.kind, PRUNE_ANY);
    ck_assert_int_eq(client_rules_first(&prune, &router).drafts, DRAFT_RULE_OFF);
    ck_assert_double_eq(client_rules_first(&drafts, &router).prune.bound, 0.5);
    ck_assert_int_eq(client_rules_first(&drafts, &router).drafts, DRAFT_RULE_AUTO);
}
END_TEST

SUITE("prefill_limit")
{
    EACH(a_rule_bounds_what_a_request_asks_for, cases);
    TEST(a_router_that_keeps_all_tokens_still_prunes_where_it_must);
    TEST(the_rules_of_a_key_go_before_those_of_the_router);
}
