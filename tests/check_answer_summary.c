// SPDX-License-Identifier: Apache-2.0
// cli/answer_summary: the closing line of an answer says how much of the prompt was kept, and why all of it was.
#include <stdlib.h>
#include <string.h>

#include "cli/answer_summary.h"
#include "router/core/request.h"
#include "tests/suite.h"

static char *summary(const char *prefill, double pruned_ms, double whole_ms)
{
    json_t *completion =
        json_pack("{s:s,s:s,s:{s:i,s:i,s:i},s:{s:f}}", "finish_reason", "length", "prefill", prefill, "usage",
                  "completion_tokens", 64, "kept_tokens", 975, "prompt_tokens", 975, "timing", "ttft_ms", 20.0);
    json_t *timing = json_object_get(completion, "timing");
    if (whole_ms > 0) json_object_set_new(timing, "predicted_whole_ms", json_real(whole_ms));
    if (whole_ms > 0) json_object_set_new(timing, "predicted_pruned_ms", json_real(pruned_ms));
    char *line;
    size_t n;
    FILE *file = open_memstream(&line, &n);
    answer_summary_print(completion, file);
    fclose(file);
    json_decref(completion);
    return line;
}

static const struct {
    const char *prefill;
    double pruned_ms, whole_ms;
    const char *after; // the text after "prompt tokens"
} cases[] = {
    {"whole:cost", 25, 21,
     ": pruning was predicted to take 25 ms, all tokens 21 ms (--prefill on prunes anyway); first token after 20.0 "
     "ms]"},
    {"whole:cost", 20, 21,
     ": pruning was predicted to save less than a tenth, 20 ms instead of 21 ms (--prefill on prunes anyway); first "
     "token after 20.0 ms]"},
    {"whole:cost", 0, 0,
     ": the times could not be predicted yet (--prefill on prunes anyway); first token after 20.0 ms]"},
    {"whole:timeout", 15, 21, ": the speculator did not answer in time; first token after 20.0 ms]"},
    {"speculated", 15, 21, "; first token after 20.0 ms]"},
    {"whole:\x1b[2J", 0, 0, "; first token after 20.0 ms]"},
};

START_TEST(a_line_says_why_a_prompt_was_kept_whole)
{
    char expected[256], *line = summary(cases[_i].prefill, cases[_i].pruned_ms, cases[_i].whole_ms);
    snprintf(expected, sizeof expected, "[64 tokens, length; kept 975 of 975 prompt tokens%s\n", cases[_i].after);
    ck_assert_str_eq(line, expected);
    free(line);
}
END_TEST

START_TEST(a_rule_is_found_by_its_whole_name)
{
    json_t *completion = json_pack("{s:s}", "prefill_limit", "keep-at-least:0.5,drafts-off");
    ck_assert_str_eq(answer_summary_rule(completion, "keep-at-least"), "0.5,drafts-off");
    ck_assert_str_eq(answer_summary_rule(completion, "drafts-off"), "");
    ck_assert_ptr_null(answer_summary_rule(completion, "keep"));
    ck_assert_ptr_null(answer_summary_rule(completion, "never"));
    json_object_set_new(completion, "prefill_limit", json_string("never"));
    ck_assert_ptr_nonnull(answer_summary_rule(completion, "never"));
    json_object_del(completion, "prefill_limit");
    ck_assert_ptr_null(answer_summary_rule(completion, "never"));
    json_decref(completion);
}
END_TEST

START_TEST(a_rule_that_forbids_pruning_is_named)
{
    json_t *completion = json_pack("{s:s,s:s}", "prefill", "whole:off", "prefill_limit", "never,drafts-off");
    char *text;
    size_t n;
    FILE *file = open_memstream(&text, &n);
    answer_summary_print_reason(completion, file);
    fclose(file);
    ck_assert_str_eq(text, ": a rule of the operator forbids pruning");
    free(text);
    json_decref(completion);
}
END_TEST

START_TEST(each_reason_of_the_router_has_words)
{
    for (int reason = SKIP_NONE + 1; reason < SKIP_COUNT; reason++) {
        char prefill[64];
        snprintf(prefill, sizeof prefill, "whole:%s", skip_reason_name((enum skip_reason)reason));
        char *line = summary(prefill, 0, 0);
        ck_assert_msg(strstr(line, "975 prompt tokens: "), "%s has no words: %s", prefill, line);
        free(line);
    }
}
END_TEST

SUITE("answer_summary")
{
    EACH(a_line_says_why_a_prompt_was_kept_whole, cases);
    TEST(a_rule_is_found_by_its_whole_name);
    TEST(a_rule_that_forbids_pruning_is_named);
    TEST(each_reason_of_the_router_has_words);
}
