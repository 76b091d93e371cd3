// SPDX-License-Identifier: Apache-2.0
// A request of the command line. Reads its fields from flags or from a JSON object, and packs them as a protobuf
// message. Fields that are numbers and switches are defined in lib/text/generation_fields.h. One thread.
#pragma once

#include <jansson.h>

#include "lib/base/options.h"
#include "lib/base/priority.h"
#include "lib/net/rpc.h"
#include "lib/text/generation_wire.h"
#include "proto/forepack/v1/inference.pb-c.h"

struct request_message {
    char *role, *content; // content may contain NULs
    size_t content_bytes;
};

struct request_spec {
    char *id; // owned, like all pointers of this struct; NULL: the router generates an id
    char *model_name;
    char *text; // the prompt is exactly one of text, token_ids, messages
    size_t text_bytes;
    int32_t *token_ids;
    int n_token_ids;
    struct request_message *messages;
    int n_messages;
    struct sampling sampling;
    generation_given sampling_given; // the router has defaults for fields that are not given
    char **stop;
    int n_stop;
    struct prefill prefill;
    generation_given prefill_given;
    bool prefill_mode_given, draft_mode_given, return_kept, explain;
    int32_t priority;
    char *tenant;
    int64_t ttft_deadline_ms;
    bool resumes; // the request continues an answer (resume.h), after these tokens:
    uint32_t *resume_ids;
    size_t n_resume_ids;
    uint64_t resume_mark;
};

#define REQUEST_FLAG_INT                      int64_t
#define REQUEST_FLAG_OPTIONAL                 int64_t
#define REQUEST_FLAG_INT_OR_AUTO              int64_t
#define REQUEST_FLAG_UINT64                   int64_t
#define REQUEST_FLAG_REAL                     double
#define REQUEST_FLAG_ROUTER_REAL              double
#define REQUEST_FLAG_OPTIONAL_REAL            double
#define REQUEST_FLAG_BOOL                     bool
#define REQUEST_FLAG_MEMBER(type, field, ...) REQUEST_FLAG_##type field;

// Values of REQUEST_OPTION_ROWS.
struct request_flags {
    SAMPLING_FIELDS(REQUEST_FLAG_MEMBER)
    PREFILL_FIELDS(REQUEST_FLAG_MEMBER)
    struct option_list stop, stop_token_ids, logit_bias, guided_choice;
    char *guided_json, *guided_regex, *guided_grammar;
    bool return_kept;
    char *prefill, *drafts, *model_name, *tenant;
    int64_t priority, ttft_deadline_ms;
};
extern struct request_flags request_flags;

// clang-format off
#define REQUEST_OPTION_INT(default_value)         OPTION_INT, .default_text = #default_value
#define REQUEST_OPTION_OPTIONAL(default_value)    OPTION_INT
#define REQUEST_OPTION_INT_OR_AUTO(default_value) OPTION_INT, .minus_one = "auto", .default_text = "auto"
#define REQUEST_OPTION_UINT64(default_value)      OPTION_INT
#define REQUEST_OPTION_REAL(default_value)        OPTION_REAL, .default_text = #default_value
#define REQUEST_OPTION_ROUTER_REAL(default_value) OPTION_REAL
#define REQUEST_OPTION_OPTIONAL_REAL(default_value) OPTION_REAL
#define REQUEST_OPTION_BOOL(default_value)        OPTION_BOOL, .default_text = #default_value
#define REQUEST_LIMIT(limit, max)              ((max) == INT_MAX ? 0 : (limit)) // INT_MAX: no limits in --help
#define REQUEST_OPTION_ROW(type_, field, flag, default_value, end, min_, max_, unit_, help_)                           \
    {.name = flag, .type = REQUEST_OPTION_##type_(default_value), .value = &request_flags.field,                       \
     .min = REQUEST_LIMIT(min_, max_), .max = REQUEST_LIMIT(max_, max_), .unit = unit_, .help = help_},

#define REQUEST_OPTION_ROWS                                                                                            \
    {.name = "-Sampling"},                                                                                             \
    SAMPLING_FIELDS(REQUEST_OPTION_ROW)                                                                                \
    {.name = "stop", .type = OPTION_LIST, .value = &request_flags.stop, .placeholder = "TEXT",                         \
     .help = "string that ends the text when generated; not part of the text"},                                        \
    {.name = "stop-token-id", .type = OPTION_LIST, .value = &request_flags.stop_token_ids, .placeholder = "ID",        \
     .help = "token id that ends the text when generated; not part of the text"},                                      \
    {.name = "logit-bias", .type = OPTION_LIST, .value = &request_flags.logit_bias, .placeholder = "ID=BIAS,...",      \
     .help = "numbers added to the logits of tokens, -100 to 100; -100 bans a token, 100 forces one"},                 \
    {.name = "guided-json", .type = OPTION_STRING, .value = &request_flags.guided_json, .placeholder = "SCHEMA",       \
     .help = "JSON schema that the answer must match"},                                                                \
    {.name = "guided-regex", .type = OPTION_STRING, .value = &request_flags.guided_regex, .placeholder = "REGEX",      \
     .help = "regular expression that the whole answer must match"},                                                   \
    {.name = "guided-grammar", .type = OPTION_STRING, .value = &request_flags.guided_grammar, .placeholder = "LARK",   \
     .help = "grammar that the answer must match, in llguidance's variant of Lark"},                                   \
    {.name = "guided-choice", .type = OPTION_LIST, .value = &request_flags.guided_choice, .placeholder = "TEXT",       \
     .help = "an allowed answer; give the option once for each answer"},                                       \
    {.name = "-Speculative prefill"},                                                                                  \
    {.name = "prefill", .type = OPTION_CHOICE, .value = &request_flags.prefill, .choices = PREFILL_MODES,              \
     .help = "prune prompt tokens before prefill; auto: if this is predicted to reduce the TTFT; on: while a "      \
             "speculator is attached; required: always, or the request is refused; default: as the router, or auto "   \
             "with --keep-rate or --quality"},                                                                         \
    {.name = "drafts", .type = OPTION_CHOICE, .value = &request_flags.drafts, .choices = DRAFT_MODES,                 \
     .help = "auto: the answer uses draft tokens, which on CPUs change no token; default: as the router"},             \
    PREFILL_FIELDS(REQUEST_OPTION_ROW)                                                                                 \
    {.name = "return-kept", .type = OPTION_BOOL, .value = &request_flags.return_kept,                                  \
     .help = "return the ranges of kept tokens"},                                                                      \
    {.name = "-Request"},                                                                                              \
    {.name = "served-model-name", .type = OPTION_STRING, .value = &request_flags.model_name, .placeholder = "NAME",    \
     .help = "name of the model; default: the model that the router serves"},                                          \
    {.name = "priority", .type = OPTION_INT, .value = &request_flags.priority, .default_text = "0",                    \
     .min = -PRIORITY_MAX, .max = PRIORITY_MAX, .help = "requests with a higher priority are dispatched first"},       \
    {.name = "tenant", .type = OPTION_STRING, .value = &request_flags.tenant, .placeholder = "NAME",                   \
     .help = "tenant of the request"},                                                               \
    {.name = "ttft-deadline-ms", .type = OPTION_INT, .value = &request_flags.ttft_deadline_ms, .default_text = "0",    \
     .max = 86400000, .unit = "ms", .help = "time limit for the first token, after which the request ends; 0: no limit"}
// clang-format on

// Creates and checks a spec from the flags, without a prompt. `table` is the option table that was parsed.
enum status request_spec_from_flags(const struct option *table, struct request_spec *spec);
// Sets the fields that a JSON object has: id, one of prompt, messages and token_ids, and any sampling or prefill field.
// Checks the result. Ignores unknown keys, and sets *unknown_p to the first unknown key (borrowed from the object).
enum status request_spec_from_json(struct request_spec *spec, json_t *row, const char **unknown_p);
void request_spec_copy(const struct request_spec *from, struct request_spec *to);
void request_spec_free(struct request_spec *spec);

// Returns the packed GenerateRequest.
struct rpc_bytes request_spec_pack(const struct request_spec *spec);
// Returns only the PrefillOptions, for Score. The caller frees them with free().
Forepack__V1__PrefillOptions *request_prefill_message(const struct request_spec *spec);

// clang-format off
// Options of request_read_prompt(). `o` has the strings `prompt` and `prompt_file`.
#define PROMPT_OPTION_ROWS(o)                                                                                          \
    {.name = "prompt", .type = OPTION_STRING, .value = &(o).prompt, .help = "text of the prompt"},                     \
    {.name = "prompt-file", .type = OPTION_STRING, .value = &(o).prompt_file, .placeholder = "FILE",                   \
     .help = "file with the prompt; the argument - reads standard input"}
// clang-format on

// Reads the prompt from exactly one of --prompt TEXT, --prompt-file F and the argument "-" (standard input).
enum status request_read_prompt(const char *prompt, const char *prompt_file, char *const *rest, int n_rest,
                                struct request_spec *spec);
// Reads a whole file, or standard input ("-"), of at most 64 MiB. *data_p is NUL-terminated; the caller frees it.
enum status read_whole_file(const char *path, char **data_p, size_t *size_p);

// Prints the error message of a failure to standard error. Returns the exit code, see status_exit_code().
int report_failure(enum status status);

// Prints the object on one line of standard output and releases it.
void report_json(json_t *object);
