// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_explain.h"

#include "router/front/grpc/wire_response.h"

static void key_add(const char *name, struct bytes *out)
{
    json_add_comma(out);
    JSON_ADD(out, "\"");
    json_add(out, name);
    JSON_ADD(out, "\":");
}

static void text_add(const char *name, const char *text, struct bytes *out)
{
    key_add(name, out);
    json_add_string(out, text);
}

static void integer_add(const char *name, int64_t number, struct bytes *out)
{
    key_add(name, out);
    json_add_integer(out, number);
}

static void real_add(const char *name, double number, struct bytes *out)
{
    key_add(name, out);
    json_add_real(out, number);
}

static void stage_add(const char *name, const Forepack__V1__Stage *m, struct bytes *out)
{
    if (!m) return;
    key_add(name, out);
    JSON_ADD(out, "{");
    text_add("node_id", m->node_id, out);
    integer_add("bin_requests", m->bin_requests, out);
    integer_add("bin_rows", (int64_t)m->bin_rows, out);
    integer_add("token_budget", m->token_budget, out);
    text_add("wait", m->wait, out);
    integer_add("waiting", m->waiting, out);
    JSON_ADD(out, "}");
}

static void stages_add(const Forepack__V1__Stages *m, struct bytes *out)
{
    JSON_ADD(out, "{");
    text_add("mode", m->mode, out);
    key_add("limited", out);
    json_add(out, m->limited ? "true" : "false");
    real_add(m->quality > 0 ? "quality" : "keep_rate", m->quality > 0 ? m->quality : m->keep_rate, out);
    stage_add("score", m->score, out);
    stage_add("prefill", m->prefill, out);
    JSON_ADD(out, "}");
}

static void timing_add(const Forepack__V1__Timing *m, struct bytes *out)
{
    JSON_ADD(out, "{");
    real_add("queue_ms", m->queue_ms, out);
    real_add("score_ms", m->score_ms, out);
    real_add("pack_wait_ms", m->pack_wait_ms, out);
    real_add("prefill_ms", m->prefill_ms, out);
    real_add("ttft_ms", m->ttft_ms, out);
    real_add("total_ms", m->total_ms, out);
    if (m->predicted_whole_ms > 0) real_add("predicted_whole_ms", m->predicted_whole_ms, out);
    if (m->predicted_pruned_ms > 0) real_add("predicted_pruned_ms", m->predicted_pruned_ms, out);
    JSON_ADD(out, "}");
}

void http_explain_add(const struct request *r, bool for_operator, struct bytes *out)
{
    struct wire_explanation explanation;
    wire_explanation_fill(r, for_operator, &explanation);
    JSON_ADD(out, "{\"stages\":");
    stages_add(&explanation.stages, out);
    JSON_ADD(out, ",\"timing\":");
    timing_add(&explanation.timing, out);
    JSON_ADD(out, "}");
}
