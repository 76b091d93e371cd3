// SPDX-License-Identifier: Apache-2.0
// ModelInferRequest: any bytes on their way to a request of the core, with the demo model's tokenizer. Elements of
// tensors lie within the message, and an accepted request is within the limits that the core and the nodes rely on.
#include "lib/messages/unpack.h"
#include "router/core/request.h"
#include "router/front/grpc/wire_request.h"
#include "router/front/kserve/kserve_request.h"
#include "router/front/kserve/kserve_tensors.h"
#include "tests/fuzz/fuzz.h"

enum { CONTEXT = 256, UNPACKED_MAX = 1 << 16 };

static const struct front *front_get(void)
{
    static char *names[] = {"demo"};
    static struct front front = {.model_names = names, .n_model_names = 1, .config = {.max_context = CONTEXT}};
    if (front.tokenizer) return &front;
    FUZZ_CHECK(tokenizer_open(FUZZ_SOURCE "/deploy/demo-model/main", &front.tokenizer) == STATUS_OK);
    front.config.vocab_size = tokenizer_vocab_size(front.tokenizer);
    prefill_defaults(&front.prefill);
    return &front;
}

static double read_element(const struct kserve_tensor *t, size_t i)
{
    if (t->kind == KSERVE_BOOL) return kserve_tensor_bool(t, i);
    return t->kind == KSERVE_REAL ? kserve_tensor_real(t, i) : (double)kserve_tensor_integer(t, i);
}

// Reads every byte, so that the sanitizer sees elements beyond the contents.
static void check_tensor(const struct kserve_tensor *t)
{
    double sum = 0;
    struct kserve_place place = {0};
    ProtobufCBinaryData text;
    FUZZ_CHECK(t->n <= UNPACKED_MAX);
    if (t->kind == KSERVE_BYTES) {
        while (kserve_tensor_next(t, &place, &text))
            for (size_t i = 0; i < text.len; i++)
                sum += text.data[i];
        FUZZ_CHECK(place.i == t->n && place.at == t->raw_bytes);
    } else {
        for (size_t i = 0; i < t->n; i++)
            sum += read_element(t, i);
    }
    FUZZ_CHECK(!isnan(sum) || t->kind == KSERVE_REAL);
}

static void check_tensors(const Inference__ModelInferRequest *m)
{
    struct kserve_tensor tensors[KSERVE_TENSORS_MAX];
    size_t n;
    if (kserve_tensors_read(m, tensors, &n) != STATUS_OK) return;
    for (size_t i = 0; i < n; i++)
        check_tensor(&tensors[i]);
}

static void check_request(const struct front *front, const struct kserve_request *q)
{
    const struct wire_options options = {.default_tokens = 16, .ids_field = "input_ids"};
    struct request *r = request_create();
    struct text_stream *text = NULL;
    r->spec.arrived_us = 1;
    r->spec.ttft_deadline_us = INT64_MAX;
    if (wire_request_read(&(struct client){.front = front}, &q->fields.message, &options, r, &text) == STATUS_OK) {
        const struct request_spec *spec = &r->spec;
        FUZZ_CHECK(spec->n_tokens >= 1 && spec->n_tokens + spec->sampling.max_tokens <= CONTEXT);
        for (int i = 0; i < spec->n_tokens; i++)
            FUZZ_CHECK(spec->tokens[i] >= 0 && spec->tokens[i] < front->config.vocab_size);
        FUZZ_CHECK(sampling_check(&spec->sampling, front->config.vocab_size) == STATUS_OK);
        FUZZ_CHECK(prefill_check(&spec->prefill) == STATUS_OK);
        FUZZ_CHECK(*r->id && spec->ttft_deadline_us >= spec->arrived_us);
        text_stream_free(text);
    } else {
        FUZZ_CHECK(*status_message());
    }
    request_free(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct front *front = front_get();
    Inference__ModelInferRequest *m =
        proto_unpack(&inference__model_infer_request__descriptor, data, size, UNPACKED_MAX, NULL);
    if (!m) return 0;
    struct kserve_request q;
    check_tensors(m);
    if (kserve_request_read(m, &q) == STATUS_OK) {
        FUZZ_CHECK(!(q.echo && q.stream) && q.outputs < 1u << KSERVE_OUTPUT_COUNT);
        FUZZ_CHECK(!q.fields.message.text.len != !q.fields.message.n_token_ids);
        check_request(front, &q);
    } else {
        FUZZ_CHECK(*status_message());
    }
    kserve_request_fini(&q);
    inference__model_infer_request__free_unpacked(m, NULL);
    return 0;
}
