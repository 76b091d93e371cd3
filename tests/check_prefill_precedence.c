// SPDX-License-Identifier: Apache-2.0
// router/front/wire_request: what decides how much of a prompt is kept: the request's keep rate, else its quality, else
// the router's keep rate, else the router's quality. With a quality there is also the keep rate for speculators without
// calibration.
#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/text/text_stream.h"
#include "proto/forepack/v1/inference.pb-c.h"
#include "router/front/front.h"
#include "router/front/grpc/wire_request.h"
#include "tests/suite.h"

enum { ON = FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_ON, REQUIRED = FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_REQUIRED };
enum { AUTO = FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_AUTO, OFF = FOREPACK__V1__PREFILL_MODE__PREFILL_MODE_OFF };

static const struct rate_case {
    double router_rate; // 0: not given, so its quality is 0.99
    int mode;           // mode of the request; 0: not given
    double rate, quality;
    double expected_rate, expected_quality;
    enum prefill_mode expected_mode;
} cases[] = {
    {0, 0, 0, 0, 1, 0.99, PREFILL_OFF},
    {0, 0, 0.2, 0, 0.2, 0, PREFILL_AUTO},
    {0, 0, 0, 0.9, 1, 0.9, PREFILL_AUTO},
    {0, 0, 0.2, 0.9, 0.2, 0, PREFILL_AUTO},
    {0, AUTO, 0, 0, 1, 0.99, PREFILL_AUTO},
    {0, ON, 0, 0, 0.3, 0.99, PREFILL_ON},
    {0, REQUIRED, 0, 0, 0.3, 0.99, PREFILL_REQUIRED},
    {0, ON, 0, 0.9, 1, 0.9, PREFILL_ON},
    {0, ON, 0.2, 0.9, 0.2, 0, PREFILL_ON},
    {0, OFF, 0, 0.9, 1, 0.9, PREFILL_OFF},
    {0.5, 0, 0, 0, 0.5, 0, PREFILL_OFF},
    {0.5, ON, 0, 0, 0.5, 0, PREFILL_ON},
    {0.5, ON, 0.2, 0, 0.2, 0, PREFILL_ON},
    {0.5, 0, 0, 0.9, 1, 0.9, PREFILL_AUTO},
    {0.5, REQUIRED, 0, 0.9, 1, 0.9, PREFILL_REQUIRED},
};

static struct front front = {.model_names = (char *[]){"demo"}, .n_model_names = 1};
static const struct client client = {.front = &front};
static uint32_t token_ids[] = {3, 4, 5};

static Forepack__V1__PrefillOptions options_of(const struct rate_case *c)
{
    Forepack__V1__PrefillOptions m = FOREPACK__V1__PREFILL_OPTIONS__INIT;
    m.mode = (Forepack__V1__PrefillMode)c->mode;
    if (c->rate > 0) m.keep_rate_given_case = FOREPACK__V1__PREFILL_OPTIONS__KEEP_RATE_GIVEN_KEEP_RATE;
    m.keep_rate = c->rate;
    if (c->quality > 0) m.quality_given_case = FOREPACK__V1__PREFILL_OPTIONS__QUALITY_GIVEN_QUALITY;
    m.quality = c->quality;
    return m;
}

static void setup(void)
{
    const char *source = getenv("FOREPACK_SOURCE");
    char *dir = mem_format("%s/deploy/demo-model/main", source ? source : ".");
    ck_assert_int_eq(tokenizer_open(dir, &front.tokenizer), STATUS_OK);
    free(dir);
    front.config.vocab_size = tokenizer_vocab_size(front.tokenizer);
    front.config.max_context = 100;
}

static void teardown(void)
{
    tokenizer_free(front.tokenizer);
}

static void router_default(double rate)
{
    prefill_defaults(&front.prefill);
    front.prefill.mode = PREFILL_OFF;
    front.prefill.keep_rate = rate > 0 ? rate : 1;
    front.prefill.quality = rate > 0 ? 0 : 0.99;
}

static struct prefill read_request(const struct rate_case *c, bool score)
{
    Forepack__V1__PrefillOptions prefill = options_of(c);
    Forepack__V1__GenerateRequest generate = FOREPACK__V1__GENERATE_REQUEST__INIT;
    Forepack__V1__ScoreRequest m = FOREPACK__V1__SCORE_REQUEST__INIT;
    const struct wire_options options = {.default_tokens = 4};
    struct request *r = request_create();
    struct text_stream *text = NULL;
    m.prefill = generate.prefill = &prefill;
    m.token_ids = generate.token_ids = token_ids;
    m.n_token_ids = generate.n_token_ids = 3;
    enum status status = score ? wire_score_request_read(&front, &m, &options, r)
                               : wire_request_read(&client, &generate, &options, r, &text);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    struct prefill read = r->spec.prefill;
    text_stream_free(text);
    request_free(r);
    return read;
}

START_TEST(the_first_value_that_is_given_decides)
{
    const struct rate_case *c = &cases[_i];
    router_default(c->router_rate);
    struct prefill read = read_request(c, false);
    ck_assert_double_eq(read.keep_rate, c->expected_rate);
    ck_assert_double_eq(read.quality, c->expected_quality);
    ck_assert_int_eq(read.mode, c->expected_mode);
}
END_TEST

// A score ignores the mode: a client that asks for a score asks for pruning.
START_TEST(a_score_is_like_mode_on)
{
    struct rate_case on = cases[_i];
    on.mode = ON;
    router_default(on.router_rate);
    struct prefill score = read_request(&cases[_i], true), generate = read_request(&on, false);
    ck_assert_double_eq(score.keep_rate, generate.keep_rate);
    ck_assert_double_eq(score.quality, generate.quality);
}
END_TEST

SUITE("prefill_precedence")
{
    FIXTURE(setup, teardown);
    EACH(the_first_value_that_is_given_decides, cases);
    EACH(a_score_is_like_mode_on, cases);
}
