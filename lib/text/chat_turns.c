// SPDX-License-Identifier: Apache-2.0
// Finds the finished turns of a conversation. The prompt of an answer ends with the generation prompt, and most
// templates print the same text before a message of the assistant. Some templates print more text between the
// generation prompt and a tool call; the model has generated this text. So this file searches for the end of the
// generation prompt.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/chat_parts.h"
#include "lib/text/tail_search.h"

// Limit on the number of spans, summed over the prompts of all turns. It bounds the time and the pinned ranges of a
// conversation with very many short messages.
enum { TURN_SPANS_MAX = 1 << 17 };

static bool is_answer(const struct chat_rendering *r, int tag)
{
    if (tag < 0 || (size_t)tag >= json_array_size(r->messages)) return false;
    const char *role = json_string_value(json_object_get(json_array_get(r->messages, (size_t)tag), "role"));
    return role && strcmp(role, "assistant") == 0;
}

static void prompt_end_find(const struct jinja_output *output, struct tail_search *search)
{
    size_t start = output->n_spans ? output->spans[output->n_spans - 1].end : 0;
    tail_search_init(search, output->text + start, output->text_bytes - start);
}

// Returns the first token that begins at the byte or after it.
static int token_at(const struct chat_rendering *r, size_t byte)
{
    int low = 0, high = r->n_ids;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (r->starts[middle] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// Returns the part of the rendering before an answer. `span` is the number of the answer's first span. The frame is the
// template's text between that span and the span before it. The answer begins after the longest suffix of the
// generation prompt that the frame contains.
static struct chat_part part_before(const struct chat_rendering *r, struct tail_search *prompt_end, int span)
{
    const struct jinja_span *spans = r->output->spans;
    size_t frame = span ? spans[span - 1].end : 0;
    size_t bytes = frame + tail_search_run(prompt_end, r->output->text + frame, spans[span].start - frame);
    return (struct chat_part){spans[span].tag, span, bytes, token_at(r, bytes)};
}

// Returns the index of the first token after an answer. `*span` is the number of the answer's first span. The answer
// includes the template's text up to the next message's text. Sets *span to the number of the next message's first
// span.
static int answer_end(const struct chat_rendering *r, int *span)
{
    const struct jinja_output *output = r->output;
    int tag = output->spans[*span].tag;
    while (*span < output->n_spans && output->spans[*span].tag == tag)
        ++*span;
    return *span < output->n_spans ? token_at(r, output->spans[*span].start) : r->n_ids;
}

int chat_turns(const struct chat_rendering *rendering, int turn_tokens, struct prompt_turn **turns_p)
{
    struct prompt_turn *turns = NULL;
    int n = 0, capacity = 0, n_spans = 0; // n_spans counts the spans of the prompts of all turns
    struct tail_search prompt_end;
    prompt_end_find(rendering->output, &prompt_end);
    *turns_p = NULL;
    for (int span = 0; span < rendering->output->n_spans && n <= PROMPT_TURNS_MAX;) {
        if (!is_answer(rendering, rendering->output->spans[span].tag)) {
            span++;
            continue;
        }
        struct chat_part part = part_before(rendering, &prompt_end, span);
        int end = answer_end(rendering, &span);
        if (n && part.n_ids <= turns[n - 1].answer_end) { // two messages of the assistant are one answer
            turns[n - 1].answer_end = end;
        } else if (part.n_ids > 0 && part.n_ids < end) {
            n_spans += part.n_spans;
            if (n_spans > TURN_SPANS_MAX) {
                prompt_turns_free(turns, n);
                return 0;
            }
            MEM_GROW(turns, n, capacity);
            turns[n] = (struct prompt_turn){.end = part.n_ids, .answer_end = end};
            turns[n].n_pinned = chat_pinned(rendering, &part, turn_tokens, &turns[n].pinned);
            n++;
        }
    }
    if (n && turns[n - 1].answer_end >= rendering->n_ids) { // the conversation ends with this answer
        n--;
        free(turns[n].pinned);
    }
    if (n > PROMPT_TURNS_MAX) {
        prompt_turns_free(turns, n);
        n = 0;
        turns = NULL;
    }
    *turns_p = turns;
    return n;
}
