// SPDX-License-Identifier: Apache-2.0
// Tests the HTTP API of a whole router: lost nodes, deadlines, long prompts, images, grammars that take long to
// compile, log-probabilities, cut calls and scores. Grammars and scores are also tested over gRPC. The nodes are the
// test's own: they receive bins and send only the results that a test tells them to send.
#include <stdatomic.h>

#include "lib/identity/key_file.h"
#include "proto/forepack/v1/inference.pb-c.h"
#include "proto/inference/kserve.pb-c.h"
#include "router/front/request/system_turns.h"
#include "tests/fake_llguidance.h"
#include "tests/front_fixture.h"
#include "tests/http_client.h"
#include "tests/suite.h"

enum { CONTEXT = 512, RPC_MS = 60000 };

// --- nodes

static atomic_int bins;         // received by the nodes
static atomic_ullong last_salt; // of a prompt to score
static uint64_t last_request;   // of a prefill bin; core's thread

static void node_receive(struct node_link *link, const router_message *m)
{
    if (m->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN)
        atomic_store(&last_salt, m->score_bin->items[0]->salt);
    else if (m->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN)
        last_request = m->prefill_bin->sequences[0]->request;
    else
        return;
    atomic_fetch_add(&bins, 1);
}

static const struct node_link_ops node_ops = {node_receive, node_finish, node_peer};
static struct node_link worker, speculator;

static void event_attach(struct core *c, void *arg, int64_t now_us)
{
    node_attach(&worker, &node_ops, make_hello(FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER, "worker"), now_us);
    sem_post(&done);
}

static void event_attach_speculator(struct core *c, void *arg, int64_t now_us)
{
    node_attach(&speculator, &node_ops, make_hello(FOREPACK__CLUSTER__V1__ROLE__ROLE_SPECULATOR, "speculator"), now_us);
    sem_post(&done);
}

static void event_lose(struct core *c, void *arg, int64_t now_us)
{
    node_link_closed(&worker, c, now_us);
    sem_post(&done);
}

// --- the router

// Opens a template of a model that reasons. Like Mistral's template it refuses two user messages in a row.
static void chat_open(const char *model_dir)
{
    static const char text[] =
        "{# <think></think> #}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('conversation roles must alternate') }}{% endif %}"
        "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
        "{{ '<|im_start|>assistant\\n' }}";
    char path[] = "/tmp/check_http_api.XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_eq(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    ck_assert_msg(chat_template_open(model_dir, path, &front.chat) == STATUS_OK, "%s", status_message());
    unlink(path);
    front.chat_syntax = chat_syntax_open(front.chat, front.tokenizer);
}

static void setup(void)
{
    log_setup("test", LOG_ERROR);
    const char *source = getenv("FOREPACK_SOURCE");
    char *dir = mem_format("%s/deploy/demo-model/main", source ? source : ".");
    front_open_demo(CONTEXT);
    front.max_queue_requests = 100;
    front.whole.max_bytes = 1 << 20;
    chat_open(dir);
    free(dir);
    const int32_t eos = 0;
    ck_assert_msg(grammar_library_open(FAKE_LLGUIDANCE, front.tokenizer, front.config.vocab_size, &eos, 1,
                                       &front.grammars) == STATUS_OK,
                  "%s", status_message());
    front.valid_grammars = grammar_cache_create();
    front_start((struct core_options){.max_queue_requests = 100,
                                      .max_queue_tokens = 1 << 20,
                                      .worker_grace_us = 60000000,
                                      .score_timeout_us = 60000000,
                                      .policy = BIN_DATASET,
                                      .clock_us = clock_now_us});
    front.pool = intake_pool_open(&(struct intake_pool_options){.threads = 2, .max_bytes = 64 << 20, .max_jobs = 100});
    run_event(event_attach, NULL);
    front_serve_http((struct http_service_options){.max_body_bytes = 1 << 20});
    static struct rpc_method methods[5];
    methods[0] = front_generate;
    methods[1] = front_model_infer;
    methods[2] = front_model_info;
    methods[3] = front_score;
    front_serve_grpc(methods, 1); // a handler that blocks stops all calls
}

static void teardown(void)
{
    front_stop();
    identity_close(front.identity);
    grammar_cache_free(front.valid_grammars);
    grammar_library_free(front.grammars);
    chat_template_free(front.chat);
}

// Sends a request on a new connection, which closes after the answer. Returns the connection.
static int post_send(const char *path, const char *headers, const char *body)
{
    char *request = mem_format("POST %s HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: %zu\r\n%s\r\n%s",
                               path, strlen(body), headers, body);
    int fd = client_connect(http_service_port(service));
    client_send(fd, request);
    free(request);
    return fd;
}

// Returns the whole answer. The caller frees it.
static char *answer_take(int fd)
{
    struct client_text text = client_receive_all(fd);
    close(fd);
    return text.bytes;
}

static char *post_ask(const char *path, const char *body)
{
    return answer_take(post_send(path, "", body));
}

static void check_answer(char *answer, int http_status, const char *words)
{
    char start[32];
    snprintf(start, sizeof start, "HTTP/1.1 %d ", http_status);
    ck_assert_msg(strncmp(answer, start, strlen(start)) == 0, "not %d: %s", http_status, answer);
    ck_assert_msg(strstr(answer, words) != NULL, "not with '%s': %s", words, answer);
}

// --- tests

static const char chat_body[] = "{\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}";

static const struct {
    const char *path, *body;
} generations[] = {{"/v1/chat/completions", chat_body},
                   {"/v1/messages", chat_body},
                   {"/v1/completions", "{\"prompt\":\"Hi\"}"},
                   {"/v1/responses", "{\"input\":\"Hi\"}"}};
enum { GENERATIONS = sizeof generations / sizeof *generations };

START_TEST(a_request_that_ends_worker_groups_is_not_sent_again)
{
    int fd = post_send(generations[_i].path, "", generations[_i].body);
    for (int losses = 1; losses <= 3; losses++) {
        AWAIT(atomic_load(&bins) == losses);
        run_event(event_lose, NULL);
        run_event(event_attach, NULL);
    }
    char *answer = answer_take(fd);
    check_answer(answer, 500, "\r\nx-should-retry: false\r\n");
    ck_assert_ptr_nonnull(strstr(answer, "the request itself may be the cause"));
    free(answer);
}
END_TEST

// OpenAI's and Anthropic's libraries send a request that failed with 5xx up to two more times, unless the answer
// forbids it.
START_TEST(a_deadline_that_has_passed_is_not_tried_again)
{
    char *body = mem_format("{\"ttft_deadline_ms\":1,%s", generations[_i].body + 1);
    char *answer = post_ask(generations[_i].path, body);
    check_answer(answer, 504, "\r\nx-should-retry: false\r\n");
    free(answer);
    free(body);
}
END_TEST

START_TEST(what_may_succeed_later_is_tried_again)
{
    run_event(event_lose, NULL);
    atomic_store(&front.draining, true);
    char *answer = post_ask("/v1/chat/completions", chat_body);
    check_answer(answer, 503, "\r\nRetry-After: ");
    ck_assert_ptr_null(strstr(answer, "x-should-retry"));
    free(answer);
}
END_TEST

START_TEST(turns_of_one_role_are_rendered_as_one)
{
    static const char *const turns[] = {
        "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"}",
        "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\","
        "\"thinking\":\"t\",\"signature\":\"\"}]},{\"role\":\"user\",\"content\":\"b\"}"};
    for (int i = 0; i < 2; i++) {
        char *body = mem_format("{\"messages\":[%s]}", turns[i]);
        char *answer = post_ask("/v1/messages/count_tokens", body);
        check_answer(answer, 200, "{\"input_tokens\":");
        free(answer);
        free(body);
    }
}
END_TEST

// The template of these tests refuses every system turn. The demo model's template renders them.
START_TEST(templates_that_render_system_turns_are_found)
{
    const char *source = getenv("FOREPACK_SOURCE");
    char *dir = mem_format("%s/deploy/demo-model/main", source ? source : ".");
    struct chat_template *demo;
    ck_assert_int_eq(chat_template_open(dir, NULL, &demo), STATUS_OK);
    ck_assert(system_turns_rendered(demo, front.tokenizer));
    ck_assert(!system_turns_rendered(front.chat, front.tokenizer));
    chat_template_free(demo);
    free(dir);
}
END_TEST

// Clients count tokens to learn whether a prompt fits.
START_TEST(a_prompt_over_the_context_is_counted)
{
    static const char *const paths[] = {"/v1/messages/count_tokens", "/tokenize", "/v1/chat/completions"};
    char words[2 * CONTEXT + 1] = "";
    for (int i = 0; i < CONTEXT; i++)
        memcpy(words + 2 * i, " a", 3);
    char *body = mem_format("{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", words);
    for (int i = 0; i < 3; i++) {
        char *answer = post_ask(paths[i], body);
        const char *count = strstr(answer, i ? "\"count\":" : "\"input_tokens\":");
        check_answer(answer, i < 2 ? 200 : 400, i < 2 ? "" : "maximum context length is 512 tokens. However, ");
        if (i < 2) ck_assert_int_gt(atoi(strchr(count, ':') + 1), CONTEXT);
        free(answer);
    }
    free(body);
}
END_TEST

// Client libraries look for the words and the code of their API, and then shorten the conversation.
START_TEST(a_prompt_over_the_context_is_refused_in_the_words_of_its_api)
{
    static const struct {
        const char *path, *form, *words;
    } cases[] = {
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}",
         "\"message\":\"This model's maximum context length is 512 tokens. However, the prompt is too long (1032 "
         "tokens): shorten it\""
         ",\"type\":\"invalid_request_error\",\"param\":null,\"code\":\"context_length_exceeded\""},
        {"/v1/completions", "{\"prompt\":\"%s\"}",
         "maximum context length is 512 tokens. However, the prompt is too long (1025 tokens): shorten it\""},
        {"/v1/responses", "{\"input\":\"%s\"}", "\"code\":\"context_length_exceeded\""},
        {"/v1/messages", "{\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}",
         "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"prompt is too long: 1032 "
         "tokens > 511 maximum\"}}"},
    };
    char words[4 * CONTEXT + 1] = "";
    for (int i = 0; i < 2 * CONTEXT; i++)
        memcpy(words + 2 * i, " a", 3);
    char *body = mem_format(cases[_i].form, words), *answer = post_ask(cases[_i].path, body);
    check_answer(answer, 400, cases[_i].words);
    free(answer);
    free(body);
}
END_TEST

static const struct {
    const char *path, *form, *words;
} with_images[] = {
    {"/v1/messages/count_tokens", "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":%s}]}]}",
     "\"image\",\"source\":{\"type\":\"base64\",\"media_type\":\"image/png\",\"data\":\"AA==\"}"},
    {"/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":%s}]}]}",
     "\"image_url\",\"image_url\":{\"url\":\"data:image/png;base64,AA==\"}"},
};

// Returns what the path answers to the form with `part`.
static char *ask_part(int i, const char *part)
{
    char *body = mem_format(with_images[i].form, part), *answer = post_ask(with_images[i].path, body);
    free(body);
    return answer;
}

START_TEST(an_image_is_refused_or_replaced_by_a_text)
{
    char *refused = ask_part(_i, with_images[_i].words);
    check_answer(refused, 400, "--image-text");
    front.image_text = "[an image]";
    char *replaced = ask_part(_i, with_images[_i].words), *text = ask_part(_i, "\"text\",\"text\":\"[an image]\"");
    check_answer(replaced, 200, "");
    ck_assert_str_eq(strstr(replaced, "\r\n\r\n"), strstr(text, "\r\n\r\n"));
    free(text);
    free(replaced);
    free(refused);
}
END_TEST

// --- grammars

// Checks that another connection is answered within a client's time limit.
static void check_version(void)
{
    char *answer = client_ask_raw(http_service_port(service), "GET /version HTTP/1.0\r\n\r\n");
    check_answer(answer, 200, "{\"version\":");
    free(answer);
}

#define SCHEMA_(name) "\"" name "\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}"
#define MESSAGES_     "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"
#define FUNCTION_     "\"name\":\"f\"," SCHEMA_("parameters")

static const struct {
    const char *path, *body;
} with_grammar[] = {
    {"/v1/chat/completions",
     "{" MESSAGES_ ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{" SCHEMA_("schema") "}}}"},
    {"/v1/chat/completions", "{" MESSAGES_ ",\"guided_regex\":\"a+\"}"},
    {"/v1/chat/completions", "{" MESSAGES_ ",\"guided\\u005fregex\":\"a+\"}"},
    {"/v1/chat/completions", "{" MESSAGES_ ",\"tool_choice\":\"required\","
                             "\"tools\":[{\"type\":\"function\",\"function\":{" FUNCTION_ "}}]}"},
    {"/v1/completions", "{\"prompt\":[\"Hi\",\"Ho\"],\"structured_outputs\":{\"choice\":[\"a\",\"b\"]}}"},
    {"/v1/responses",
     "{\"input\":\"Hi\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"a\"," SCHEMA_("schema") "}}}"},
    // The first answer must be a call. The second answer is a call or has the format.
    {"/v1/responses",
     "{\"input\":\"Hi\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"a\"," SCHEMA_(
         "schema") "}},"
                   "\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"},\"tools\":[{\"type\":\"function\"," FUNCTION_
                   "}]}"},
    {"/v1/chat/completions", "{" MESSAGES_ ",\"response_format\":{\"type\":\"json_object\"},\"tool_choice\":\"auto\","
                             "\"tools\":[{\"type\":\"function\",\"function\":{" FUNCTION_ "}}]}"},
    {"/v1/messages", "{\"max_tokens\":4," MESSAGES_ ",\"tool_choice\":{\"type\":\"any\"},"
                     "\"tools\":[{\"name\":\"f\"," SCHEMA_("input_schema") "}]}"},
};

// The thread that serves all connections reads a short body, and must not compile its grammar.
START_TEST(a_grammar_that_is_compiled_delays_no_other_connection)
{
    front.chat_syntax.output.calls = OUTPUT_CALLS_HERMES;
    fake_llguidance_hold(true);
    int fd = post_send(with_grammar[_i].path, "", with_grammar[_i].body);
    fake_llguidance_await_compile();
    check_version();
    ck_assert_int_eq(atomic_load(&bins), 0);
    fake_llguidance_hold(false);
    AWAIT(atomic_load(&bins) == 1);
    close(fd);
}
END_TEST

START_TEST(a_wrong_grammar_is_refused)
{
    char *answer = post_ask("/v1/completions", "{\"prompt\":\"Hi\",\"guided_grammar\":\"bad\"}");
    check_answer(answer, 400, "structured output: the grammar is bad");
    free(answer);
}
END_TEST

// Sends a message and frees it.
static struct rpc_stream *rpc_send(const char *path, const ProtobufCMessage *m)
{
    struct rpc_stream *stream;
    struct rpc_bytes bytes = {.size = protobuf_c_message_get_packed_size(m)};
    bytes.data = mem_alloc(bytes.size + 1);
    protobuf_c_message_pack(m, bytes.data);
    ck_assert_int_eq(rpc_stream_open(channel, path, RPC_MS, true, &stream), STATUS_OK);
    rpc_stream_give(stream, &bytes);
    rpc_stream_half_close(stream);
    return stream;
}

// Checks that another call is answered while a grammar is compiled.
static void check_other_call(struct rpc_stream *waiting)
{
    Forepack__V1__GetModelInfoRequest info = FOREPACK__V1__GET_MODEL_INFO_REQUEST__INIT;
    struct rpc_bytes answer = {0};
    fake_llguidance_await_compile();
    struct rpc_stream *stream = rpc_send(front_model_info.path, &info.base);
    ck_assert_msg(rpc_stream_read(stream, &answer) == STATUS_OK, "%s", status_message());
    rpc_bytes_free(&answer);
    rpc_stream_close(stream);
    ck_assert_int_eq(atomic_load(&bins), 0);
    fake_llguidance_hold(false);
    AWAIT(atomic_load(&bins) == 1);
    rpc_stream_close(waiting);
}

// --- log-probabilities of an answer that is split

// The tokens of one pass of a worker group.
struct step {
    const int32_t *tokens;
    size_t n;
    Forepack__Cluster__V1__Finish finish;
};

static void event_step(struct core *c, void *arg, int64_t now_us)
{
    const struct step *step = arg;
    Forepack__Cluster__V1__TokenLogprob *logprobs = mem_alloc_array(step->n, sizeof *logprobs);
    Forepack__Cluster__V1__TokenLogprob **list = mem_alloc_array(step->n, sizeof *list);
    for (size_t i = 0; i < step->n; i++) {
        forepack__cluster__v1__token_logprob__init(&logprobs[i]);
        logprobs[i].token_id = (uint32_t)step->tokens[i];
        logprobs[i].logprob = -0.5f;
        list[i] = &logprobs[i];
    }
    Forepack__Cluster__V1__SequenceResult result = FOREPACK__CLUSTER__V1__SEQUENCE_RESULT__INIT, *results = &result;
    result.request = last_request;
    result.token_ids = (uint32_t *)step->tokens;
    result.logprobs = list;
    result.n_token_ids = result.n_logprobs = step->n;
    result.finish = step->finish;
    Forepack__Cluster__V1__StepResults steps = FOREPACK__CLUSTER__V1__STEP_RESULTS__INIT;
    steps.results = &results;
    steps.n_results = 1;
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP;
    message.step = &steps;
    node_link_handle(&worker, c, &message, now_us);
    free(list);
    free(logprobs);
    sem_post(&done);
}

// The worker group generates the text, at most `pass` tokens in a pass, and ends it.
static void generate_until(const char *text, size_t pass, Forepack__Cluster__V1__Finish finish)
{
    int32_t *tokens;
    int n;
    ck_assert_int_eq(tokenizer_encode(front.tokenizer, text, strlen(text), 0, &tokens, &n), STATUS_OK);
    for (size_t at = 0; at < (size_t)n; at += pass) {
        size_t left = (size_t)n - at;
        bool last = left <= pass;
        struct step step = {tokens + at, last ? left : pass,
                            last ? finish : FOREPACK__CLUSTER__V1__FINISH__FINISH_NONE};
        run_event(event_step, &step);
    }
    free(tokens);
}

static void event_error(struct core *c, void *arg, int64_t now_us)
{
    Forepack__Cluster__V1__SequenceResult result = FOREPACK__CLUSTER__V1__SEQUENCE_RESULT__INIT, *results = &result;
    result.request = last_request;
    result.error = arg;
    result.finish = FOREPACK__CLUSTER__V1__FINISH__FINISH_ERROR;
    Forepack__Cluster__V1__StepResults steps = FOREPACK__CLUSTER__V1__STEP_RESULTS__INIT;
    steps.results = &results;
    steps.n_results = 1;
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP;
    message.step = &steps;
    node_link_handle(&worker, c, &message, now_us);
    sem_post(&done);
}

static void generate(const char *text, size_t pass)
{
    generate_until(text, pass, FOREPACK__CLUSTER__V1__FINISH__FINISH_STOP);
}

// Joins the bytes of the tokens in all "logprobs" lists of a JSON value.
static void join_tokens(const json_t *value, char *text)
{
    const json_t *inner;
    const char *key;
    size_t i;
    json_array_foreach(value, i, inner) join_tokens(inner, text);
    json_object_foreach((json_t *)value, key, inner)
    {
        if (strcmp(key, "bytes") != 0 && strcmp(key, "top_logprobs") != 0) join_tokens(inner, text);
        for (i = 0; strcmp(key, "bytes") == 0 && i < json_array_size(inner); i++)
            sprintf(text + strlen(text), "%c", (char)json_integer_value(json_array_get(inner, i)));
    }
}

static void check_logprobs(const json_t *value, const char *expected)
{
    char text[256] = "";
    join_tokens(value, text);
    ck_assert_str_eq(text, expected);
}

static json_t *json_of(const char *text)
{
    json_t *value = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);
    ck_assert_msg(value != NULL, "%s", text);
    return value;
}

static const struct {
    const char *text, *content;
} split_answers[] = {
    {"<think>why</think>\n\nHello there", "Hello there"},
    {"Hello there", "Hello there"},
    {"<think>why\n</think>Hello<b> there \n", "Hello<b> there \n"}, // "<" may begin a call, so it is held back at first
    {"<think>why", ""},
    {"So: <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", "So: "},
    {"<tool_call>{\"nome\": \"f\"} \u00e9\u00e9", "<tool_call>{\"nome\": \"f\"} \u00e9\u00e9"},
};
enum { SPLIT_ANSWERS = sizeof split_answers / sizeof *split_answers };

static int ask_logprobs(bool stream)
{
    static const char form[] = "{\"input\":\"Hi\",\"include\":[\"message.output_text.logprobs\"],\"stream\":%s,"
                               "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{}}]}";
    char *body = mem_format(form, stream ? "true" : "false");
    front.chat_syntax.output.calls = OUTPUT_CALLS_HERMES;
    int before = atomic_load(&bins), fd = post_send("/v1/responses", "", body);
    AWAIT(atomic_load(&bins) > before);
    free(body);
    return fd;
}

// The error text of a worker group reaches the client, but not at any length, and without controls.
START_TEST(the_error_of_a_worker_group_is_cut_and_cleaned)
{
    const size_t n = 4 << 20;
    char *error = mem_alloc(n + 1);
    memset(error, 'x', n);
    memcpy(error, "out of\x1b[2Jpaper\n", 16);
    int fd = ask_logprobs(false);
    run_event(event_error, error);
    char *answer = answer_take(fd);
    check_answer(answer, 500, "out of [2Jpaper xx");
    ck_assert_uint_lt(strlen(answer), 4096);
    ck_assert_ptr_null(strchr(answer, 0x1b));
    free(answer);
    free(error);
}
END_TEST

// A message has the log-probabilities of its tokens, however many tokens a pass yields.
START_TEST(the_tokens_of_a_message_have_its_text)
{
    const char *content = split_answers[_i].content;
    for (size_t pass = 1; pass <= 64; pass = pass < 4 ? pass + 1 : 16 * pass) {
        int fd = ask_logprobs(false);
        generate(split_answers[_i].text, pass);
        char *answer = answer_take(fd);
        check_answer(answer, 200, "\r\n\r\n{");
        json_t *response = json_of(strstr(answer, "\r\n\r\n{") + 4);
        check_logprobs(response, content);
        json_decref(response);
        free(answer);
    }
}
END_TEST

START_TEST(the_tokens_of_a_streamed_message_have_its_text)
{
    for (size_t pass = 1; pass <= 64; pass = pass < 4 ? pass + 1 : 16 * pass) {
        char tokens[256] = "", text[256] = "";
        int fd = ask_logprobs(true);
        generate(split_answers[_i].text, pass);
        char *answer = answer_take(fd);
        for (const char *at = answer; (at = strstr(at, "\ndata: ")); at++) {
            json_t *event = json_of(at + 7);
            if (strcmp(json_string_value(json_object_get(event, "type")), "response.output_text.delta") == 0) {
                strcat(text, json_string_value(json_object_get(event, "delta")));
                join_tokens(event, tokens);
            }
            if (strcmp(json_string_value(json_object_get(event, "type")), "response.completed") == 0)
                check_logprobs(event, split_answers[_i].content);
            json_decref(event);
        }
        ck_assert_str_eq(text, split_answers[_i].content);
        ck_assert_str_eq(tokens, text);
        free(answer);
    }
}
END_TEST

// --- calls that were cut

#define STOP   FOREPACK__CLUSTER__V1__FINISH__FINISH_STOP
#define LENGTH FOREPACK__CLUSTER__V1__FINISH__FINISH_LENGTH

// Answers as the three APIs give them: content, calls, the reason of the end. In a response, + marks complete items.
// `message` is the streamed message. The `input` of a message that is not streamed is valid JSON: cut members are left
// out, and open lists and objects are closed. `whole` is that message, or NULL if it equals `message`.
static const struct cut_answer {
    const char *text, *stop;
    Forepack__Cluster__V1__Finish finish;
    const char *chat, *response, *message, *whole;
} cut_answers[] = {
    {"So: <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>\nand\n<tool_call>{\"name\": \"f\", "
     "\"arguments\": {\"b\": [{\"c\": \"}\"}, {\"d\": \"e",
     "-", LENGTH, "So: \nand\n f({\"a\": 1}) f({\"b\": [{\"c\": \"}\"}, {\"d\": \"e) length",
     "So: + f({\"a\": 1})+ \nand\n+ f({\"b\": [{\"c\": \"}\"}, {\"d\": \"e) incomplete",
     "So:  f({\"a\": 1}) \nand\n f({\"b\": [{\"c\": \"}\"}, {\"d\": \"e) max_tokens",
     "So:  f({\"a\": 1}) \nand\n f({\"b\": [{\"c\": \"}\"}, {}]}) max_tokens"},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>\n<tool_call>{\"na", "-", LENGTH,
     " f({\"a\": 1}) length", "f({\"a\": 1})+ incomplete", "f({\"a\": 1}) max_tokens", NULL},
    {"So<tool_call>{\"na", "-", LENGTH, "So length", "So+ incomplete", "So max_tokens", NULL},
    {"<tool_call>{\"name\": \"f\"", "-", LENGTH, " f() length", "f() incomplete", "f() max_tokens", "f({}) max_tokens"},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}", "-", LENGTH, " f({\"a\": 1}) length",
     "f({\"a\": 1})+ incomplete", "f({\"a\": 1}) max_tokens", NULL},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": 2", "-", STOP, " f({\"a\": 1, \"b\": 2) stop",
     "f({\"a\": 1, \"b\": 2) completed", "f({\"a\": 1, \"b\": 2) end_turn", "f({\"a\": 1}) end_turn"},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": \"x-\"}}</tool_call>", "-", STOP,
     " f({\"a\": 1, \"b\": \"x) stop", "f({\"a\": 1, \"b\": \"x) completed", "f({\"a\": 1, \"b\": \"x) stop_sequence",
     "f({\"a\": 1}) stop_sequence"},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "</tool_call>", STOP,
     " f({\"a\": 1}) tool_calls", "f({\"a\": 1})+ completed", "f({\"a\": 1}) stop_sequence", NULL},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>", "-", STOP, " f({\"a\": 1}) tool_calls",
     "f({\"a\": 1})+ completed", "f({\"a\": 1}) tool_use", NULL},
    {"<tool_call>{\"name\": \"f\", \"arguments\": \"x{\"}</tool_call>", "-", STOP, " f(\"x{\") tool_calls",
     "f(\"x{\")+ completed", "f(\"x{\") tool_use", NULL},
    {"<tool_call>{\"name\": \"f\", \"arguments\": [1, {}]}</tool_call>", "-", STOP, " f([1, {}]) tool_calls",
     "f([1, {}])+ completed", "f([1, {}]) tool_use", NULL},
    {"<tool_call>{\"name\": \"f\", \"arguments\": 7}</tool_call>", "-", STOP, " f(7) tool_calls", "f(7)+ completed",
     "f(7) tool_use", NULL},
};

static const char *member(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}

static void add(char *out, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t n = strlen(out);
    ck_assert_int_lt(vsnprintf(out + n, 512 - n, format, arguments), (int)(512 - n));
    va_end(arguments);
}

static char *dump(const json_t *value)
{
    return json_dumps(value, JSON_PRESERVE_ORDER | JSON_ENCODE_ANY);
}

static void describe_chat(const json_t *answer, char *out)
{
    const json_t *choice = json_array_get(json_object_get(answer, "choices"), 0), *call;
    const json_t *message = json_object_get(choice, "message"), *calls = json_object_get(message, "tool_calls");
    size_t i;
    add(out, "%s", member(message, "content"));
    json_array_foreach((json_t *)calls, i, call)
    {
        const json_t *function = json_object_get(call, "function");
        add(out, " %s(%s)", member(function, "name"), member(function, "arguments"));
    }
    add(out, " %s", member(choice, "finish_reason"));
}

static void describe_chat_event(const json_t *event, char *out)
{
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0),
                 *delta = json_object_get(choice, "delta");
    const json_t *call = json_array_get(json_object_get(delta, "tool_calls"), 0);
    const json_t *function = json_object_get(call, "function");
    static char calls[512];
    if (json_object_get(delta, "role")) *calls = 0;
    add(out, "%s", member(delta, "content"));
    if (json_object_get(function, "name")) add(calls, "%s %s(", *calls ? ")" : "", member(function, "name"));
    add(calls, "%s", member(function, "arguments"));
    if (*member(choice, "finish_reason"))
        add(out, "%s%s %s", calls, *calls ? ")" : "", member(choice, "finish_reason"));
}

static void describe_item(const json_t *item, char *out)
{
    const json_t *part = json_array_get(json_object_get(item, "content"), 0);
    bool completed = strcmp(member(item, "status"), "completed") == 0;
    if (part) add(out, "%s", member(part, "text"));
    if (!part) add(out, "%s(%s)", member(item, "name"), member(item, "arguments"));
    add(out, completed ? "+ " : " ");
}

static void describe_response(const json_t *answer, char *out)
{
    const json_t *item;
    size_t i;
    json_array_foreach(json_object_get(answer, "output"), i, item) describe_item(item, out);
    add(out, "%s", member(answer, "status"));
}

// The last event has the same items as the events before it.
static void describe_response_event(const json_t *event, char *out)
{
    const char *type = member(event, "type");
    if (strcmp(type, "response.output_item.done") == 0) describe_item(json_object_get(event, "item"), out);
    if (strcmp(type, "response.completed") != 0 && strcmp(type, "response.incomplete") != 0) return;
    char last[512] = "";
    describe_response(json_object_get(event, "response"), last);
    add(out, "%s", member(json_object_get(event, "response"), "status"));
    ck_assert_str_eq(out, last);
}

static void describe_message(const json_t *answer, char *out)
{
    const json_t *block;
    size_t i;
    json_array_foreach(json_object_get(answer, "content"), i, block)
    {
        char *input = dump(json_object_get(block, "input"));
        if (input) add(out, "%s(%s) ", member(block, "name"), input);
        if (!input) add(out, "%s ", member(block, "text"));
        free(input);
    }
    add(out, "%s", member(answer, "stop_reason"));
}

static void describe_message_event(const json_t *event, char *out)
{
    static bool call;
    const json_t *block = json_object_get(event, "content_block"), *delta = json_object_get(event, "delta");
    if (block) call = json_object_get(block, "name");
    if (call && block) add(out, "%s(", member(block, "name"));
    if (delta) add(out, "%s%s%s", member(delta, "text"), member(delta, "partial_json"), member(delta, "stop_reason"));
    if (strcmp(member(event, "type"), "content_block_stop") == 0) add(out, call ? ") " : " ");
}

#define FUNCTION_F "\"name\":\"f\",\"parameters\":{}"

static const struct {
    const char *path, *body;
    void (*whole)(const json_t *answer, char *out);
    void (*event)(const json_t *event, char *out);
} apis[] = {
    {"/v1/chat/completions",
     "{" MESSAGES_ ",\"tools\":[{\"type\":\"function\",\"function\":{" FUNCTION_F "}}],\"stop\":\"%s\",\"stream\":%s}",
     describe_chat, describe_chat_event},
    {"/v1/responses",
     "{\"input\":\"Hi\",\"tools\":[{\"type\":\"function\"," FUNCTION_F "}],\"stop\":\"%s\",\"stream\":%s}",
     describe_response, describe_response_event},
    {"/v1/messages",
     "{\"max_tokens\":400," MESSAGES_ ",\"tools\":[{\"name\":\"f\",\"input_schema\":{}}],\"stop_sequences\":[\"%s\"],"
     "\"stream\":%s}",
     describe_message, describe_message_event},
};

static char *cut_answer_take(const struct cut_answer *c, int api, bool stream)
{
    front.chat_syntax.output.calls = OUTPUT_CALLS_HERMES;
    char *body = mem_format(apis[api].body, c->stop, stream ? "true" : "false");
    int before = atomic_load(&bins), fd = post_send(apis[api].path, "", body);
    AWAIT(atomic_load(&bins) > before);
    generate_until(c->text, 4, c->finish);
    free(body);
    return answer_take(fd);
}

START_TEST(a_cut_call_is_incomplete_in_all_apis)
{
    const struct cut_answer *c = &cut_answers[_i];
    const char *const expected[] = {c->chat, c->response, c->message};
    for (int api = 0; api < 3; api++) {
        char whole[512] = "", streamed[512] = "";
        char *answer = cut_answer_take(c, api, false);
        check_answer(answer, 200, "\r\n\r\n{");
        json_t *object = json_of(strstr(answer, "\r\n\r\n{") + 4);
        apis[api].whole(object, whole);
        ck_assert_str_eq(whole, api == 2 && c->whole ? c->whole : expected[api]);
        json_decref(object);
        free(answer);
        answer = cut_answer_take(c, api, true);
        for (const char *at = answer; (at = strstr(at, "data: {")); at++) {
            json_t *event = json_of(at + 6);
            apis[api].event(event, streamed);
            json_decref(event);
        }
        ck_assert_str_eq(streamed, expected[api]);
        free(answer);
    }
}
END_TEST

// --- scores

START_TEST(a_score_belongs_to_its_tenant)
{
    Forepack__V1__ScoreRequest m = FOREPACK__V1__SCORE_REQUEST__INIT;
    m.text = (ProtobufCBinaryData){2, (uint8_t *)"Ho"};
    m.tenant = "globex";
    m.cache_salt = "yours";
    run_event(event_attach_speculator, NULL);
    int fd =
        post_send("/v1/score", "", "{\"prompt\":\"Hi\",\"tenant\":\"acme\",\"cache_salt\":\"mine\",\"priority\":1}");
    AWAIT(atomic_load(&bins) == 1);
    ck_assert_uint_eq(atomic_load(&last_salt), identity_prefix_salt("acme", "mine"));
    struct rpc_stream *stream = rpc_send(front_score.path, &m.base);
    AWAIT(atomic_load(&bins) == 2);
    ck_assert_uint_eq(atomic_load(&last_salt), identity_prefix_salt("globex", "yours"));
    rpc_stream_close(stream);
    close(fd);
}
END_TEST

START_TEST(a_score_has_a_deadline)
{
    Forepack__V1__ScoreRequest m = FOREPACK__V1__SCORE_REQUEST__INIT;
    m.text = (ProtobufCBinaryData){2, (uint8_t *)"Ho"};
    m.ttft_deadline_ms = 1;
    run_event(event_attach_speculator, NULL);
    char *answer = post_ask("/v1/score", "{\"prompt\":\"Hi\",\"ttft_deadline_ms\":1}");
    check_answer(answer, 504, "\r\nx-should-retry: false\r\n");
    free(answer);
    struct rpc_stream *stream = rpc_send(front_score.path, &m.base);
    struct rpc_bytes bytes = {0};
    ck_assert_int_eq(rpc_stream_read(stream, &bytes), STATUS_DEADLINE);
    ck_assert_msg(strstr(status_message(), "ttft_deadline_ms"), "%s", status_message());
    rpc_stream_close(stream);
}
END_TEST

START_TEST(a_score_is_not_streamed)
{
    char *answer = post_ask("/v1/score", "{\"prompt\":\"Hi\",\"stream\":true}");
    check_answer(answer, 400, "\"param\":\"stream\",\"code\":\"unsupported_parameter\"");
    free(answer);
}
END_TEST

START_TEST(a_score_with_a_key_names_no_other_tenant)
{
    char path[] = "/tmp/check_http_api.XXXXXX", key[KEY_BYTES + 1], hash[2 * KEY_HASH_BYTES + 1];
    uint8_t bytes[KEY_HASH_BYTES];
    key_generate(key, bytes);
    for (int i = 0; i < KEY_HASH_BYTES; i++)
        snprintf(hash + 2 * i, 3, "%02x", bytes[i]);
    FILE *file = fdopen(mkstemp(path), "w");
    fprintf(file, "one sha256:%s acme\n", hash);
    fclose(file);
    ck_assert_msg(identity_open(path, &front.identity) == STATUS_OK, "%s", status_message());
    char *header = mem_format("x-api-key: %s\r\n", key);
    char *answer = answer_take(post_send("/v1/score", header, "{\"prompt\":\"Hi\",\"tenant\":\"globex\"}"));
    check_answer(answer, 403, "tenant");
    free(answer);
    free(header);
    unlink(path);
}
END_TEST

// --- grammars over gRPC

START_TEST(a_grammar_over_grpc_delays_no_other_call)
{
    Forepack__V1__SamplingOptions sampling = FOREPACK__V1__SAMPLING_OPTIONS__INIT;
    sampling.guided_case = FOREPACK__V1__SAMPLING_OPTIONS__GUIDED_GUIDED_REGEX;
    sampling.guided_regex = "a+";
    Forepack__V1__GenerateRequest m = FOREPACK__V1__GENERATE_REQUEST__INIT;
    m.text = (ProtobufCBinaryData){2, (uint8_t *)"Hi"};
    m.sampling = &sampling;
    fake_llguidance_hold(true);
    check_other_call(rpc_send(front_generate.path, &m.base));
}
END_TEST

START_TEST(a_grammar_over_kserve_delays_no_other_call)
{
    Inference__InferTensorContents contents = INFERENCE__INFER_TENSOR_CONTENTS__INIT;
    Inference__ModelInferRequest__InferInputTensor input = INFERENCE__MODEL_INFER_REQUEST__INFER_INPUT_TENSOR__INIT;
    Inference__ModelInferRequest__InferInputTensor *inputs = &input;
    Inference__InferParameter value = INFERENCE__INFER_PARAMETER__INIT;
    Inference__ModelInferRequest__ParametersEntry regex = INFERENCE__MODEL_INFER_REQUEST__PARAMETERS_ENTRY__INIT;
    Inference__ModelInferRequest__ParametersEntry *parameters = &regex;
    Inference__ModelInferRequest m = INFERENCE__MODEL_INFER_REQUEST__INIT;
    ProtobufCBinaryData prompt = {2, (uint8_t *)"Hi"};
    int64_t shape = 1;
    contents.bytes_contents = &prompt;
    contents.n_bytes_contents = 1;
    input.name = "text_input";
    input.datatype = "BYTES";
    input.shape = &shape;
    input.n_shape = 1;
    input.contents = &contents;
    value.parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_STRING_PARAM;
    value.string_param = "a+";
    regex.key = "guided_regex";
    regex.value = &value;
    m.model_name = "demo";
    m.inputs = &inputs;
    m.parameters = &parameters;
    m.n_inputs = m.n_parameters = 1;
    fake_llguidance_hold(true);
    check_other_call(rpc_send(front_model_infer.path, &m.base));
}
END_TEST

START_TEST(a_grammar_that_was_compiled_lately_is_not_compiled_again)
{
    for (int n = 1; n <= 3; n++) {
        int fd = post_send(with_grammar[0].path, "", with_grammar[0].body);
        AWAIT(atomic_load(&bins) == n);
        close(fd);
        ck_assert_int_eq(fake_llguidance_compiled(), 1);
    }
    fake_llguidance_hold(true); // compiling would wait
    int fd = post_send(with_grammar[0].path, "", with_grammar[0].body);
    AWAIT(atomic_load(&bins) == 4);
    close(fd);
    fake_llguidance_hold(false);
}
END_TEST

SUITE("http_api")
{
    TIMEOUT(120);
    FIXTURE(setup, teardown);
    LOOP(a_request_that_ends_worker_groups_is_not_sent_again, 0, GENERATIONS);
    TEST(the_error_of_a_worker_group_is_cut_and_cleaned);
    LOOP(a_deadline_that_has_passed_is_not_tried_again, 0, GENERATIONS);
    TEST(what_may_succeed_later_is_tried_again);
    TEST(turns_of_one_role_are_rendered_as_one);
    TEST(templates_that_render_system_turns_are_found);
    TEST(a_prompt_over_the_context_is_counted);
    LOOP(a_prompt_over_the_context_is_refused_in_the_words_of_its_api, 0, 4);
    EACH(an_image_is_refused_or_replaced_by_a_text, with_images);
    EACH(a_grammar_that_is_compiled_delays_no_other_connection, with_grammar);
    TEST(a_wrong_grammar_is_refused);
    LOOP(the_tokens_of_a_message_have_its_text, 0, SPLIT_ANSWERS);
    LOOP(the_tokens_of_a_streamed_message_have_its_text, 0, SPLIT_ANSWERS);
    EACH(a_cut_call_is_incomplete_in_all_apis, cut_answers);
    TEST(a_score_belongs_to_its_tenant);
    TEST(a_score_has_a_deadline);
    TEST(a_score_is_not_streamed);
    TEST(a_score_with_a_key_names_no_other_tenant);
    TEST(a_grammar_over_grpc_delays_no_other_call);
    TEST(a_grammar_over_kserve_delays_no_other_call);
    TEST(a_grammar_that_was_compiled_lately_is_not_compiled_again);
}
