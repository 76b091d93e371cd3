// SPDX-License-Identifier: Apache-2.0
#include "cli/explain_lines.h"

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cli/answer_summary.h"
#include "cli/plain_text.h"

// The parts of the answer's object, and the file that gets the lines.
struct explanation {
    const json_t *answer, *usage, *timing, *stages;
    FILE *file;
};

static double number(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

static const char *text(const json_t *object, const char *name)
{
    const char *value = json_string_value(json_object_get(object, name));
    return value ? value : "";
}

static void line_begin(const struct explanation *e, const char *label)
{
    fprintf(e->file, "%-12s ", label);
}

static void print_node(const struct explanation *e, const json_t *stage, const char *unnamed)
{
    const char *id = text(stage, "node_id");
    plain_text_print(e->file, *id ? id : unnamed, INT_MAX, 0);
}

static void print_request(const struct explanation *e)
{
    line_begin(e, "request");
    plain_text_print(e->file, text(e->answer, "id"), INT_MAX, 0);
    fprintf(e->file, ": %.0f prompt tokens; prefill ", number(e->usage, "prompt_tokens"));
    plain_text_print(e->file, text(e->stages, "mode"), INT_MAX, 0);
    bool prunes = strcmp(text(e->stages, "mode"), "off") != 0;
    if (prunes && number(e->stages, "quality") > 0) fprintf(e->file, ", quality %g", number(e->stages, "quality"));
    if (prunes && number(e->stages, "keep_rate") > 0)
        fprintf(e->file, ", keep rate %g", number(e->stages, "keep_rate"));
    fputc('\n', e->file);
}

static const char *const wait_words[][2] = {
    {"", "a node could take it immediately"},
    {"queue", "other requests waited already"},
    {"busy", "every node computed another bin"},
    {"room", "every node had its outstanding bins, or as many requests as it may have"},
    {"blocks", "every worker group lacked free KV blocks"},
    {"no_node", "no attached node could hold it"},
};

static void print_wait(const struct explanation *e, const json_t *stage, double ms, const char *pool)
{
    if (!stage) return;
    const char *wait = text(stage, "wait"), *words = "for a reason that this version does not know";
    for (size_t i = 0; i < sizeof wait_words / sizeof *wait_words; i++)
        if (strcmp(wait, wait_words[i][0]) == 0) words = wait_words[i][1];
    line_begin(e, "waited");
    fprintf(e->file, "%.1f ms for a %s: %s", ms, pool, words);
    if (number(stage, "waiting") > 0) fprintf(e->file, "; %.0f waited before it", number(stage, "waiting"));
    fputc('\n', e->file);
}

// Says which rules of the operator changed the request's options.
static void print_limit(const struct explanation *e)
{
    if (!*text(e->answer, "prefill_limit")) return;
    line_begin(e, "rule");
    fprintf(e->file, "the operator limits these requests: ");
    plain_text_print(e->file, text(e->answer, "prefill_limit"), INT_MAX, 0);
    fputc('\n', e->file);
}

static void print_bin(const struct explanation *e, const json_t *stage)
{
    if (!*text(stage, "node_id")) return;
    double others = number(stage, "bin_requests") - 1;
    if (others > 0)
        fprintf(e->file, ", in a bin with %.0f other%s", others, others > 1 ? "s" : "");
    else
        fprintf(e->file, ", alone in its bin");
    fprintf(e->file, " (%.0f of %.0f rows)", number(stage, "bin_rows"), number(stage, "token_budget"));
}

static void print_score(const struct explanation *e, const json_t *stage)
{
    double scored = number(e->usage, "scored_tokens"), cached = number(e->usage, "score_cached_tokens");
    line_begin(e, "scored");
    if (stage && !scored) {
        print_node(e, stage, "no speculator");
        fprintf(e->file, " had it for %.1f ms and gave no score\n", number(e->timing, "score_ms"));
    } else if (!scored) {
        fprintf(e->file, "by no speculator\n");
    } else if (!stage && cached >= scored) {
        fprintf(e->file, "before: the score of an equal prompt with equal options was used again\n");
    } else {
        fprintf(e->file, "by ");
        print_node(e, stage, "a speculator");
        fprintf(e->file, " in %.1f ms", number(e->timing, "score_ms"));
        print_bin(e, stage);
        fprintf(e->file, "; %.0f of %.0f tokens from its prefix cache\n", cached, scored);
    }
}

// Returns true if the keep rate is the bound of a rule, and not what the request or the calibration chose.
static bool rule_sets_rate(const struct explanation *e)
{
    const char *bound = answer_summary_rule(e->answer, "keep-at-least");
    return bound &&
           number(e->answer, "keep_rate") <= strtod(bound, NULL) * 1.00001; // the bound is a text of six digits
}

// Prints the reason for the number of kept tokens.
static void print_kept_reason(const struct explanation *e)
{
    double rate = number(e->answer, "keep_rate");
    if (strcmp(text(e->answer, "prefill"), "speculated") != 0)
        answer_summary_print_reason(e->answer, e->file);
    else if (rule_sets_rate(e))
        fprintf(e->file, ": keep rate %.3g is the least that a rule of the operator allows", rate);
    else if (strcmp(text(e->answer, "prefill_reason"), "quality") == 0)
        fprintf(e->file, ": the calibration chose keep rate %.3g for quality %g", rate, number(e->stages, "quality"));
    else
        fprintf(e->file, ": keep rate %.3g applies, and the end of a prompt is kept in addition", rate);
    if (number(e->usage, "frozen_tokens") > 0)
        fprintf(e->file, "; %.0f have rows of earlier turns", number(e->usage, "frozen_tokens"));
    if (number(e->usage, "recalled_tokens") > 0)
        fprintf(e->file, "; %.0f are recalled", number(e->usage, "recalled_tokens"));
}

static void print_kept(const struct explanation *e)
{
    double kept = number(e->usage, "kept_tokens");
    if (kept <= 0) return;
    line_begin(e, "kept");
    fprintf(e->file, "%.0f of %.0f tokens", kept, number(e->usage, "prompt_tokens"));
    print_kept_reason(e);
    fputc('\n', e->file);
}

static void print_prefill(const struct explanation *e, const json_t *stage)
{
    if (number(e->timing, "prefill_ms") <= 0) return;
    line_begin(e, "prefill");
    fprintf(e->file, "%.1f ms on ", number(e->timing, "prefill_ms"));
    print_node(e, stage, "a worker group");
    print_bin(e, stage);
    fprintf(e->file, "; %.0f of %.0f kept tokens from its prefix cache\n", number(e->usage, "cached_tokens"),
            number(e->usage, "kept_tokens"));
}

static void print_first_token(const struct explanation *e)
{
    double pruned = number(e->timing, "predicted_pruned_ms"), whole = number(e->timing, "predicted_whole_ms");
    if (number(e->timing, "ttft_ms") > 0) {
        line_begin(e, "first token");
        fprintf(e->file, "after %.1f ms", number(e->timing, "ttft_ms"));
        if (pruned > 0) fprintf(e->file, "; predicted on arrival: %.1f ms if pruned", pruned);
        fputc('\n', e->file);
    }
    line_begin(e, "whole");
    if (whole > 0)
        fprintf(e->file, "the first token was predicted after %.1f ms with all tokens kept\n", whole);
    else
        fprintf(e->file, "no prediction: the router has seen too few passes of the worker groups\n");
}

static void print_answer(const struct explanation *e)
{
    double drafts = number(e->usage, "draft_tokens"), replays = number(e->usage, "replays");
    line_begin(e, "drafts");
    fprintf(e->file, "%.0f of %.0f draft tokens accepted\n", number(e->usage, "draft_accepted_tokens"), drafts);
    line_begin(e, "answer");
    fprintf(e->file, "%.0f tokens after %.1f ms, ended by ", number(e->usage, "completion_tokens"),
            number(e->timing, "total_ms"));
    plain_text_print(e->file, text(e->answer, "finish_reason"), INT_MAX, 0);
    if (replays > 0) fprintf(e->file, "; moved %.0f times to another worker group", replays);
    fputc('\n', e->file);
}

void explain_lines_print(const json_t *answer, FILE *file)
{
    const struct explanation e = {answer, json_object_get(answer, "usage"), json_object_get(answer, "timing"),
                                  json_object_get(answer, "stages"), file};
    const json_t *score = json_object_get(e.stages, "score"), *prefill = json_object_get(e.stages, "prefill");
    print_request(&e);
    print_limit(&e);
    print_wait(&e, score, number(e.timing, "queue_ms"), "speculator");
    print_score(&e, score);
    print_kept(&e);
    print_wait(&e, prefill, number(e.timing, "pack_wait_ms"), "worker group");
    print_prefill(&e, prefill);
    print_first_token(&e);
    print_answer(&e);
    if (json_is_true(json_object_get(e.stages, "limited"))) {
        line_begin(&e, "limited");
        fprintf(file, "nodes, bins and reasons of waits are shown to an operator's API key only\n");
    }
}
