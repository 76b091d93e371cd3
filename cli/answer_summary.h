// SPDX-License-Identifier: Apache-2.0
// Prints the last line of an answer on a terminal: the number of tokens, the TTFT, and how much of the prompt was kept.
// If the whole prompt was kept, the line says why.
#pragma once

#include <jansson.h>
#include <stdio.h>

// Returns the bound of a rule that the completion's prefill_limit names, such as "0.5" for "keep-at-least:0.5", or ""
// for a rule without a bound. Other rules may follow it, after a comma. Returns NULL if the rule is not named.
const char *answer_summary_rule(const json_t *completion, const char *rule);

// Prints ": " and why all tokens were kept, or nothing if the prompt was pruned or the reason is not known.
void answer_summary_print_reason(const json_t *completion, FILE *file);

// Prints "[42 tokens, length; kept 310 of 1008 prompt tokens; first token after 35.1 ms]" for the completion of a
// struct answer.
void answer_summary_print(const json_t *completion, FILE *file);
