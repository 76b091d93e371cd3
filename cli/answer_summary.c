// SPDX-License-Identifier: Apache-2.0
#include "cli/answer_summary.h"

#include <string.h>

static const struct {
    const char *prefill, *words;
} whole_words[] = {
    {"whole:off", "pruning is off (--prefill on prunes)"},
    {"whole:keep_all", "a keep rate or quality of 1 keeps all"},
    {"whole:short", "the prompt is too short to gain from pruning (--prefill on prunes anyway)"},
    // used if the router predicted no times
    {"whole:cost", "the times could not be predicted yet (--prefill on prunes anyway)"},
    {"whole:uncalibrated", "the speculator is not calibrated for a quality (--prefill on --keep-rate 0.3 prunes)"},
    {"whole:unsure", "no lower keep rate is likely to reach the quality (--keep-rate sets one)"},
    {"whole:fallback", "answers of pruned prompts did not agree with those of whole prompts"},
    {"whole:no_node", "no speculator is attached"},
    {"whole:too_long", "the prompt is too long for every speculator"},
    {"whole:timeout", "the speculator did not answer in time"},
    {"whole:lost", "the speculator was lost"},
};

static double number(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

static void print_cost(double pruned_ms, double whole_ms, FILE *file)
{
    const char *format = pruned_ms < whole_ms
                             ? ": pruning was predicted to save less than a tenth, %.3g ms instead of %.3g ms"
                             : ": pruning was predicted to take %.3g ms, all tokens %.3g ms";
    fprintf(file, format, pruned_ms, whole_ms);
    fputs(" (--prefill on prunes anyway)", file);
}

const char *answer_summary_rule(const json_t *completion, const char *rule)
{
    const char *text = json_string_value(json_object_get(completion, "prefill_limit"));
    const size_t n = strlen(rule);
    for (; text && *text; text += strcspn(text, ","), text += *text == ',') {
        if (strncmp(text, rule, n) != 0) continue;
        if (text[n] == ':') return text + n + 1;
        if (!text[n] || text[n] == ',') return text + n;
    }
    return NULL;
}

void answer_summary_print_reason(const json_t *completion, FILE *file)
{
    const json_t *timing = json_object_get(completion, "timing");
    const char *prefill = json_string_value(json_object_get(completion, "prefill"));
    double whole_ms = number(timing, "predicted_whole_ms"), pruned_ms = number(timing, "predicted_pruned_ms");
    if (!prefill) return;
    if (strcmp(prefill, "whole:off") == 0 && answer_summary_rule(completion, "never")) {
        fputs(": a rule of the operator forbids pruning", file);
        return;
    }
    if (pruned_ms > 0 && strcmp(prefill, "whole:cost") == 0) {
        print_cost(pruned_ms, whole_ms, file);
        return;
    }
    for (size_t i = 0; i < sizeof whole_words / sizeof *whole_words; i++)
        if (strcmp(prefill, whole_words[i].prefill) == 0) fprintf(file, ": %s", whole_words[i].words);
}

void answer_summary_print(const json_t *completion, FILE *file)
{
    const json_t *usage = json_object_get(completion, "usage");
    fprintf(file, "[%.0f tokens, %s; kept %.0f of %.0f prompt tokens", number(usage, "completion_tokens"),
            json_string_value(json_object_get(completion, "finish_reason")), number(usage, "kept_tokens"),
            number(usage, "prompt_tokens"));
    answer_summary_print_reason(completion, file);
    fprintf(file, "; first token after %.1f ms]\n", number(json_object_get(completion, "timing"), "ttft_ms"));
}
