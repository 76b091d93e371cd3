// SPDX-License-Identifier: Apache-2.0
// cli/explain_lines: the lines of `forepack explain` for answers that took different ways through the cluster.
#include <stdlib.h>
#include <string.h>

#include "cli/explain_lines.h"
#include "router/core/request_stages.h"
#include "tests/suite.h"

static char *lines_of(const json_t *answer)
{
    char *lines;
    size_t n;
    FILE *file = open_memstream(&lines, &n);
    explain_lines_print(answer, file);
    fclose(file);
    return lines;
}

static json_t *stage(const char *node_id, int requests, const char *wait, int waiting)
{
    return json_pack("{s:s,s:i,s:i,s:i,s:s,s:i}", "node_id", node_id, "bin_requests", requests, "bin_rows", 1300,
                     "token_budget", 2048, "wait", wait, "waiting", waiting);
}

// An answer whose prompt was pruned.
static json_t *pruned(void)
{
    json_t *answer = json_pack("{s:s,s:s,s:s,s:s,s:f}", "id", "r-1", "finish_reason", "length", "prefill", "speculated",
                               "prefill_reason", "fixed", "keep_rate", 0.3);
    json_object_set_new(answer, "usage",
                        json_pack("{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i}", "prompt_tokens", 975, "scored_tokens", 975,
                                  "score_cached_tokens", 16, "kept_tokens", 310, "cached_tokens", 32,
                                  "completion_tokens", 64, "draft_tokens", 40, "draft_accepted_tokens", 30));
    json_object_set_new(answer, "timing",
                        json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "queue_ms", 0.25, "score_ms", 12.0,
                                  "pack_wait_ms", 3.0, "prefill_ms", 8.0, "ttft_ms", 23.5, "total_ms", 90.0,
                                  "predicted_whole_ms", 41.0, "predicted_pruned_ms", 22.0));
    json_object_set_new(answer, "stages",
                        json_pack("{s:s,s:f,s:b,s:o,s:o}", "mode", "on", "keep_rate", 0.3, "limited", 0, "score",
                                  stage("spec-1", 1, "", 0), "prefill", stage("work-1", 4, "busy", 2)));
    return answer;
}

START_TEST(a_pruned_request_is_told_from_arrival_to_end)
{
    json_t *answer = pruned();
    char *lines = lines_of(answer);
    ck_assert_str_eq(
        lines,
        "request      r-1: 975 prompt tokens; prefill on, keep rate 0.3\n"
        "waited       0.2 ms for a speculator: a node could take it immediately\n"
        "scored       by spec-1 in 12.0 ms, alone in its bin (1300 of 2048 rows); 16 of 975 tokens from its prefix "
        "cache\n"
        "kept         310 of 975 tokens: keep rate 0.3 applies, and the end of a prompt is kept in "
        "addition\n"
        "waited       3.0 ms for a worker group: every node computed another bin; 2 waited before it\n"
        "prefill      8.0 ms on work-1, in a bin with 3 others (1300 of 2048 rows); 32 of 310 kept tokens from its "
        "prefix cache\n"
        "first token  after 23.5 ms; predicted on arrival: 22.0 ms if pruned\n"
        "whole        the first token was predicted after 41.0 ms with all tokens kept\n"
        "drafts       30 of 40 draft tokens accepted\n"
        "answer       64 tokens after 90.0 ms, ended by length\n");
    free(lines);
    json_decref(answer);
}
END_TEST

// Changes of the answer above, and what a line then says.
static const struct {
    const char *path[2], *json, *says;
} changes[] = {
    {{"prefill"}, "\"whole:off\"", "\nkept         310 of 975 tokens: pruning is off (--prefill on prunes)\n"},
    {{"prefill_reason"}, "\"quality\"", "tokens: the calibration chose keep rate 0.3 for quality"},
    {{"stages", "quality"}, "0.99", "prefill on, quality 0.99"},
    {{"stages", "mode"}, "\"off\"", "prompt tokens; prefill off\n"},
    {{"usage", "scored_tokens"}, "0", "\nscored       spec-1 had it for 12.0 ms and gave no score\n"},
    {{"usage", "frozen_tokens"}, "7", "in addition; 7 have rows of earlier turns\n"},
    {{"usage", "recalled_tokens"}, "5", "in addition; 5 are recalled\n"},
    {{"usage", "replays"}, "2", "ended by length; moved 2 times to another worker group\n"},
    {{"timing", "predicted_whole_ms"}, "0", "\nwhole        no prediction: "},
    {{"stages", "limited"}, "true", "\nlimited      nodes, bins and reasons of waits are shown to an operator's"},
    {{"prefill_limit"},
     "\"keep-at-least:0.5\"",
     "\nrule         the operator limits these requests: keep-at-least:0.5\n"},
    {{"prefill_limit"},
     "\"drafts-off,keep-at-least:0.3\"",
     "tokens: keep rate 0.3 is the least that a rule of the operator"},
    {{"prefill_limit"}, "\"keep-at-least:0.2\"", "tokens: keep rate 0.3 applies, and"},
    {{"prefill_limit"}, "\"quality-at-least:0.99,drafts-off\"", "tokens: keep rate 0.3 applies, and"},
    {{"id"}, "\"a\\u001bb\"", "request      a?b: "},
};

START_TEST(a_line_follows_the_answer)
{
    json_t *answer = pruned(), *of = answer, *value = json_loads(changes[_i].json, JSON_DECODE_ANY, NULL);
    const char *name = changes[_i].path[0];
    if (changes[_i].path[1]) {
        of = json_object_get(answer, name);
        name = changes[_i].path[1];
    }
    json_object_set_new(of, name, value);
    char *lines = lines_of(answer);
    ck_assert_msg(strstr(lines, changes[_i].says), "%s is not in\n%s", changes[_i].says, lines);
    free(lines);
    json_decref(answer);
}
END_TEST

START_TEST(a_score_that_was_held_is_told)
{
    json_t *answer = pruned();
    json_object_del(json_object_get(answer, "stages"), "score");
    json_object_set_new(json_object_get(answer, "usage"), "score_cached_tokens", json_integer(975));
    char *lines = lines_of(answer);
    ck_assert_ptr_nonnull(strstr(lines, "\nscored       before: the score of an equal prompt"));
    ck_assert_ptr_null(strstr(lines, "for a speculator"));
    free(lines);
    json_decref(answer);
}
END_TEST

START_TEST(each_obstacle_of_the_router_has_words)
{
    for (int wait = STAGE_WAIT_NONE; wait <= STAGE_WAIT_NO_NODE; wait++) {
        json_t *answer = pruned();
        json_object_set_new(json_object_get(json_object_get(answer, "stages"), "score"), "wait",
                            json_string(stage_wait_name((enum stage_wait)wait)));
        char *lines = lines_of(answer);
        ck_assert_msg(!strstr(lines, "this version does not know"), "%s", lines);
        free(lines);
        json_decref(answer);
    }
}
END_TEST

SUITE("explain_lines")
{
    TEST(a_pruned_request_is_told_from_arrival_to_end);
    EACH(a_line_follows_the_answer, changes);
    TEST(a_score_that_was_held_is_told);
    TEST(each_obstacle_of_the_router_has_words);
}
