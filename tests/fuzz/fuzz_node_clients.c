// SPDX-License-Identifier: Apache-2.0
#include "lib/base/mem.h"
#include "tests/fuzz/fuzz_node.h"

enum { CHOICES_MAX = 4, TURNS_MAX = 3 };

static void turn_fill(struct fuzz_script *script, struct prompt_turn *turn)
{
    turn->n_pinned = fuzz_below(script, 3);
    turn->pinned = mem_alloc_array((size_t)turn->n_pinned, sizeof *turn->pinned);
    for (int k = 0; k < turn->n_pinned; k++) {
        int32_t first = fuzz_byte(script) % turn->end, last = first + fuzz_byte(script) % 8;
        turn->pinned[k] = (struct token_range){first, last < turn->end ? last : turn->end - 1};
    }
}

// Fills in finished turns. The first one may be a beginning that other requests share.
static void turns_fill(struct fuzz_script *script, struct request_spec *spec)
{
    int n = 1 + fuzz_below(script, TURNS_MAX), end = 0;
    spec->turns = mem_alloc_array((size_t)n, sizeof *spec->turns);
    for (int t = 0; t < n; t++) {
        struct prompt_turn turn = {.end = end + 1 + fuzz_byte(script) % 60};
        turn.answer_end = turn.end + fuzz_byte(script) % 20;
        if (t && turn.answer_end == turn.end) turn.answer_end++;
        if (turn.answer_end >= spec->n_tokens) return;
        end = turn.answer_end;
        turn_fill(script, &turn);
        spec->turns[spec->n_turns++] = turn;
    }
}

static void quality_fill(struct fuzz_script *script, struct prefill *prefill)
{
    static const double qualities[] = {0.5, 0.9, 0.99, 1};
    int byte = fuzz_byte(script);
    prefill->quality = qualities[byte % 4];
    if (byte & 4) prefill->keep_rate = 1;  // all tokens are kept if no calibration applies
    if (byte & 8) prefill->look_ahead = 4; // an option that differs from the calibration's
}

static void more_fill(struct fuzz_script *script, struct request_spec *spec)
{
    int flags = fuzz_byte(script);
    if (flags & 1) quality_fill(script, &spec->prefill);
    if (flags & 2) spec->prefill.drafts = DRAFTS_OFF;
    if (flags & 4) turns_fill(script, spec);
    if (flags & 8) spec->prefill.conversation = false;
    if (flags & 16) spec->prefill.chunk_tokens = fuzz_below(script, 40);
    if (flags & 32) spec->prefill.keep_rate = 1 / (1.0 + fuzz_byte(script));
    if (flags & 64) spec->sampling.repetition_penalty = 1.5; // pruned tokens are also sent
    if (!(flags & 128) || spec->score_only || spec->sampling.prompt_logprobs >= 0) return;
    spec->want_importance = true;
}

static void spec_fill(struct fuzz_script *script, struct client *client, struct request *r)
{
    int flags;
    client->prompt_tokens = 1 + fuzz_below(script, PROMPT_MAX);
    r->id = mem_format("r%d", fuzz_below(script, 50));
    r->spec.n_tokens = client->prompt_tokens;
    r->spec.tokens = mem_alloc_array((size_t)r->spec.n_tokens, sizeof *r->spec.tokens);
    client->head = fuzz_byte(script);
    client->shift = (int)client->number;
    for (int i = 0; i < r->spec.n_tokens; i++)
        r->spec.tokens[i] = node_prompt_token(client, i);
    sampling_defaults(&r->spec.sampling);
    prefill_defaults(&r->spec.prefill);
    r->spec.sampling.max_tokens = client->max_tokens;
    r->spec.prefill.mode = (enum prefill_mode)fuzz_below(script, 4);
    flags = fuzz_byte(script);
    if (flags % 16 == 5) {
        r->spec.sampling.prompt_logprobs = 1;
        r->spec.prefill.mode = PREFILL_OFF;
        client->logprobs_left = r->spec.n_tokens - 1;
    }
    r->spec.score_only = r->spec.want_importance = flags % 8 == 7;
    r->spec.priority = flags / 8 % 3 - 1;
    r->spec.tenant = flags & 32 ? mem_string("t") : NULL;
    r->spec.arrived_us = w.now_us;
    r->spec.ttft_deadline_us = flags & 64 ? w.now_us + SECOND_US : INT64_MAX;
    if (flags & 128) more_fill(script, &r->spec);
}

static void client_submit(struct client *client, struct request *r)
{
    // not the process's next number, so that equal inputs give equal runs
    r->number = r->sched.number = client->number;
    client->has_quality = r->spec.prefill.quality > 0;
    client->is_drafted = request_is_drafted(r);
    r->sink = node_client_sink(client);
    request_set_state(r, REQUEST_TOKENISED);
    core_submit(w.core, r, w.now_us);
}

void node_request_submit(struct fuzz_script *script)
{
    if (w.n_clients == REQUESTS_MAX) return;
    struct client *client = &w.clients[w.n_clients];
    struct request *r = request_create();
    *client = (struct client){.number = (uint64_t)++w.n_clients, .max_tokens = 1 + fuzz_below(script, 30)};
    spec_fill(script, client, r);
    client_submit(client, r);
}

void node_choices_submit(struct fuzz_script *script)
{
    struct request *choices[CHOICES_MAX] = {request_create()};
    int n = 2 + fuzz_below(script, CHOICES_MAX - 1), from = w.n_clients;
    if (from + n > REQUESTS_MAX) n = 1;
    struct client first = {.number = (uint64_t)from + 1, .max_tokens = 1 + fuzz_below(script, 30)};
    spec_fill(script, &first, choices[0]);
    for (int i = 1; i < n; i++) {
        choices[i] = request_create();
        request_copy_spec(choices[0], choices[i]);
        choices[i]->score_with = first.number;
    }
    if (from == REQUESTS_MAX) {
        request_free(choices[0]);
        return;
    }
    for (int i = 0; i < n; i++) {
        w.clients[w.n_clients++] = first;
        w.clients[from + i].number = first.number + (uint64_t)i;
        client_submit(&w.clients[from + i], choices[i]);
    }
}
