// SPDX-License-Identifier: Apache-2.0
// GenerateRequest: any bytes on their way to a request of the core, with the demo model's tokenizer and chat template.
// An accepted request is within the limits that the core and the nodes rely on, and follows the operator's rule.
#include <stdlib.h>

#include "lib/messages/unpack.h"
#include "lib/text/prefill_limit.h"
#include "proto/forepack/v1/inference.pb-c.h"
#include "router/core/request.h"
#include "router/front/grpc/wire_request.h"
#include "router/front/request/answer_resume.h"
#include "tests/fuzz/fuzz.h"

enum { CONTEXT = 256, UNPACKED_MAX = 1 << 16 };

// Returns the front. The size of the message chooses the rule.
static const struct front *front_get(size_t size)
{
    static const char dir[] = FUZZ_SOURCE "/deploy/demo-model/main";
    static char *names[] = {"demo"};
    static struct front front = {
        .model_names = names, .n_model_names = 1, .config = {.max_context = CONTEXT}, .pinned_turn_tokens = 16};
    const enum prune_kind kind = (enum prune_kind)(size % PRUNE_KINDS);
    front.rules.prune = (struct prune_rule){kind, kind == PRUNE_QUALITY || kind == PRUNE_KEEP ? 0.5 : 0};
    if (front.tokenizer) return &front;
    FUZZ_CHECK(tokenizer_open(dir, &front.tokenizer) == STATUS_OK);
    FUZZ_CHECK(chat_template_open(dir, NULL, &front.chat) == STATUS_OK);
    front.config.vocab_size = tokenizer_vocab_size(front.tokenizer);
    prefill_defaults(&front.prefill);
    return &front;
}

static void check_rule(const struct front *front, const struct prefill *p)
{
    bool prunes = prefill_prunes(p);
    switch (front->rules.prune.kind) {
    case PRUNE_NEVER: FUZZ_CHECK(!prunes); break;
    case PRUNE_QUALITY: FUZZ_CHECK(!prunes || (p->quality >= 0.5 && p->keep_rate >= 1)); break;
    case PRUNE_KEEP:
        FUZZ_CHECK(!prunes || (p->keep_rate >= 0.5 && (p->quality == 0 || p->min_keep_rate == 0.5)));
        break;
    case PRUNE_REQUIRED: FUZZ_CHECK(prunes && p->mode == PREFILL_REQUIRED); break;
    default: break;
    }
}

static void check_request(const struct front *front, const struct request *r)
{
    const struct request_spec *spec = &r->spec;
    FUZZ_CHECK(spec->n_tokens >= 1 && spec->n_tokens < CONTEXT);
    for (int i = 0; i < spec->n_tokens; i++)
        FUZZ_CHECK(spec->tokens[i] >= 0 && spec->tokens[i] < front->config.vocab_size);
    for (int i = 0; i < spec->n_pinned; i++)
        FUZZ_CHECK(spec->pinned[i].first >= 0 && spec->pinned[i].last < spec->n_tokens &&
                   spec->pinned[i].first <= spec->pinned[i].last);
    FUZZ_CHECK(sampling_check(&spec->sampling, front->config.vocab_size) == STATUS_OK);
    FUZZ_CHECK(prefill_check(&spec->prefill) == STATUS_OK);
    check_rule(front, &spec->prefill);
    FUZZ_CHECK(spec->sampling.max_tokens >= 1 && spec->n_tokens + spec->sampling.max_tokens <= CONTEXT);
    FUZZ_CHECK(*r->id && spec->ttft_deadline_us >= spec->arrived_us);
}

static void check_choice(const struct request *first, const struct text_stream *text_of_first)
{
    struct request *r = request_create();
    struct text_stream *text = wire_request_copy_choice(first, text_of_first, 1, r);
    FUZZ_CHECK(r->spec.sampling.seed == first->spec.sampling.seed + 1 && r->spec.n_tokens == first->spec.n_tokens);
    text_stream_free(text);
    request_free(r);
}

static void check_resume(const struct front *front, const Forepack__V1__Resume *m, struct request *r,
                         struct text_stream *text)
{
    struct client client = {.front = front};
    struct answer a = {.client = &client, .request = r, .text = text, .stop = -1};
    enum status status = answer_resume(&a, m->token_ids, m->n_token_ids, m->received_tokens);
    FUZZ_CHECK(status == STATUS_OK || *status_message());
    if (status == STATUS_OK)
        FUZZ_CHECK(r->resume.n <= r->spec.sampling.max_tokens && a.n_tokens == r->resume.n &&
                   a.n_resumed <= r->spec.sampling.max_tokens);
    bytes_free(&a.resumed_text);
    free(a.resumed_ends);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct front *front = front_get(size);
    const struct wire_options options = {.default_tokens = 16};
    size_t memory;
    Forepack__V1__GenerateRequest *m =
        proto_unpack(&forepack__v1__generate_request__descriptor, data, size, UNPACKED_MAX, &memory);
    FUZZ_CHECK(m ? memory <= UNPACKED_MAX : *status_message());
    if (!m) return 0;
    struct request *r = request_create();
    struct text_stream *text = NULL;
    r->spec.arrived_us = 1;
    r->spec.ttft_deadline_us = INT64_MAX;
    if (wire_request_read(&(struct client){.front = front}, m, &options, r, &text) == STATUS_OK) {
        check_request(front, r);
        check_choice(r, text);
        if (m->resume) check_resume(front, m->resume, r, text);
        text_stream_free(text);
    } else {
        FUZZ_CHECK(*status_message());
    }
    request_free(r);
    forepack__v1__generate_request__free_unpacked(m, NULL);
    return 0;
}
