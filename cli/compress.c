// SPDX-License-Identifier: Apache-2.0
// forepack compress: prints a text without the sentences, lines and blocks that the speculator finds least important.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/remote.h"
#include "lib/base/mem.h"

static struct {
    struct remote remote;
    double keep_rate, quality;
    int64_t token_budget;
    char *tenant;
    bool json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Compress"},
    REMOTE_OPTION_ROWS(o.remote),
    {.name = "keep-rate", .type = OPTION_REAL, .value = &o.keep_rate, .min = 0, .max = 1,
     .help = "share of the tokens to keep, above 0; the default is the router's"},
    {.name = "quality", .type = OPTION_REAL, .value = &o.quality, .min = 0, .max = 1,
     .help = "share of the answers, right with the whole text, that must stay right, above 0; the speculator chooses "
             "the keep rate"},
    {.name = "token-budget", .type = OPTION_INT, .value = &o.token_budget, .min = 1, .max = INT32_MAX, .unit = "tokens",
     .help = "number of tokens to keep"},
    {.name = "tenant", .type = OPTION_STRING, .value = &o.tenant, .placeholder = "NAME",
     .help = "tenant of the request; with API keys, the key decides"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json,
     .help = "print one JSON object: text, kept ranges, and tokens before and after"},
    {0},
};
// clang-format on

static enum status goal_read(Forepack__V1__CompressRequest *m)
{
    bool rate = options_given(options, "keep-rate"), quality = options_given(options, "quality");
    bool budget = options_given(options, "token-budget");
    if (rate + quality + budget > 1)
        return status_fail(STATUS_INVALID, "give at most one of --keep-rate, --quality and --token-budget");
    if (rate) m->goal_case = FOREPACK__V1__COMPRESS_REQUEST__GOAL_KEEP_RATE;
    if (quality) m->goal_case = FOREPACK__V1__COMPRESS_REQUEST__GOAL_QUALITY;
    if (budget) m->goal_case = FOREPACK__V1__COMPRESS_REQUEST__GOAL_TOKEN_BUDGET;
    if (rate) m->keep_rate = o.keep_rate;
    if (quality) m->quality = o.quality;
    if (budget) m->token_budget = (uint32_t)o.token_budget;
    return STATUS_OK;
}

static void compression_print(const Forepack__V1__CompressResponse *m)
{
    if (!o.json) {
        fwrite(m->text.data, 1, m->text.len, stdout);
        fprintf(stderr, "kept %u of %u tokens; decided by %s; scored in %.1f ms\n", m->tokens_after, m->tokens_before,
                m->decided_by, m->score_ms);
        return;
    }
    json_t *kept = json_array();
    for (size_t i = 0; i < m->n_kept; i++)
        for (size_t k = 0; k < m->kept[i]->n_ranges; k++)
            json_array_append_new(kept, json_pack("[I,I]", (json_int_t)m->kept[i]->ranges[k]->start,
                                                  (json_int_t)m->kept[i]->ranges[k]->end));
    report_json(json_pack("{s:o,s:I,s:I,s:f,s:s,s:o,s:f}", "text",
                          json_stringn((const char *)m->text.data, m->text.len), "tokens_before",
                          (json_int_t)m->tokens_before, "tokens_after", (json_int_t)m->tokens_after, "keep_rate",
                          m->keep_rate, "decided_by", m->decided_by, "kept", kept, "score_ms", m->score_ms));
}

static enum status compress(const char *text, size_t n)
{
    Forepack__V1__CompressRequest request = FOREPACK__V1__COMPRESS_REQUEST__INIT;
    TRY(goal_read(&request));
    request.text = (ProtobufCBinaryData){n, (uint8_t *)text};
    if (o.tenant) request.tenant = o.tenant;
    ProtobufCMessage *answer;
    TRY(remote_call(&o.remote, "/forepack.v1.Inference/Compress", &request.base,
                    &forepack__v1__compress_response__descriptor, &answer));
    compression_print((const void *)answer);
    protobuf_c_message_free_unpacked(answer, NULL);
    return STATUS_OK;
}

int command_compress(int argc, char **argv)
{
    char **rest = mem_alloc_array((size_t)argc, sizeof *rest);
    int n_rest = options_main(options,
                              "Usage: forepack compress [--server HOST:PORT] [--keep-rate R] [options] (FILE | -)\n"
                              "Prints a text without the sentences, lines and blocks that the speculator finds least\n"
                              "important.",
                              argc, argv, rest);
    char *text = NULL;
    size_t n = 0;
    enum status status = STATUS_OK;
    if (n_rest != 1) status = status_fail(STATUS_INVALID, "give one file, or - to read standard input");
    if (status == STATUS_OK) status = read_whole_file(rest[0], &text, &n);
    rpc_init();
    if (status == STATUS_OK) status = compress(text, n);
    int code = status == STATUS_OK ? 0 : report_failure(status);
    rpc_shutdown();
    free(text);
    options_free(options);
    free(rest);
    return code;
}
