// SPDX-License-Identifier: Apache-2.0
// forepack explain: sends one request and prints what each stage decided for it.
#include <stdio.h>
#include <stdlib.h>

#include "cli/commands.h"
#include "cli/explain_lines.h"
#include "cli/remote.h"
#include "lib/base/mem.h"

static struct {
    struct remote remote;
    char *prompt, *prompt_file, *id;
    bool json;
    int64_t timeout_ms;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Target"},
    REMOTE_OPTION_ROWS(o.remote),
    {.name = "timeout-ms", .type = OPTION_INT, .value = &o.timeout_ms, .default_text = "0", .max = 86400000, .unit = "ms",
     .help = "deadline of the call; 0 is none"},
    {.name = "-Prompt and output"},
    PROMPT_OPTION_ROWS(o),
    {.name = "id", .type = OPTION_STRING, .value = &o.id, .help = "request id; default: the router generates one"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json,
     .help = "print the answer as one JSON object, with what was decided in \"stages\""},
    REQUEST_OPTION_ROWS,
    {0},
};
// clang-format on

static const char usage[] =
    "Usage: forepack explain [--server HOST:PORT] (--prompt TEXT | --prompt-file FILE | -) [options]\n"
    "Sends one request and prints what each stage decided for it, and why.";

static int explain_finish(enum status status, const struct answer *answer, const char *id)
{
    if (status != STATUS_OK) return report_failure(status);
    json_t *object = answer_json(answer, id);
    if (o.json) {
        report_json(object);
    } else {
        explain_lines_print(object, stdout);
        json_decref(object);
    }
    return 0;
}

int command_explain(int argc, char **argv)
{
    char **rest = mem_alloc_array((size_t)argc, sizeof *rest);
    int n_rest = options_main(options, usage, argc, argv, rest);
    struct request_spec spec;
    struct answer answer;
    char *id = NULL;
    answer_init(&answer);
    enum status status = request_spec_from_flags(options, &spec);
    if (status == STATUS_OK) status = request_read_prompt(o.prompt, o.prompt_file, rest, n_rest, &spec);
    spec.id = mem_string(o.id);
    spec.explain = true;
    rpc_init();
    if (status == STATUS_OK) status = remote_generate(&o.remote, o.timeout_ms, &spec, NULL, NULL, &answer, &id);
    if (status == STATUS_OK && !json_object_get(answer.completion, "stages"))
        status = status_fail(STATUS_UNSUPPORTED, "%s does not explain requests: update the router", o.remote.server);
    rpc_shutdown();
    int code = explain_finish(status, &answer, id);
    free(id);
    answer_free(&answer);
    request_spec_free(&spec);
    options_free(options);
    free(rest);
    return code;
}
