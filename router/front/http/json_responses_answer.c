// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/json_responses_answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/front/http/json_responses.h"
#include "router/front/http/json_translate.h"

// --- items

struct item_form {
    const char *type;         // type of the item
    const char *prefix;       // prefix of the item's id
    const char *delta, *done; // names of the events with a piece of the text, and with the whole text
    const char *member;       // member of the event `done` that contains the text
    const char *part;         // type of the part that contains the text; NULL: the item itself contains the text
};

static const struct item_form forms[] = {
    [OUTPUT_REASONING] = {"reasoning", "rs", "response.reasoning_text.delta", "response.reasoning_text.done", "text",
                          "reasoning_text"},
    [OUTPUT_CONTENT] = {"message", "msg", "response.output_text.delta", "response.output_text.done", "text",
                        "output_text"},
    [OUTPUT_CALL] = {"function_call", "fc", "response.function_call_arguments.delta",
                     "response.function_call_arguments.done", "arguments", NULL},
};
static const struct item_form custom_form = {"custom_tool_call",
                                             "ctc",
                                             "response.custom_tool_call_input.delta",
                                             "response.custom_tool_call_input.done",
                                             "input",
                                             NULL};

static const struct item_form *form_of(const struct responses_item *item)
{
    return item->custom ? &custom_form : &forms[item->kind];
}

static struct responses_item *item_append(struct responses_answer *a, enum output_kind kind)
{
    MEM_GROW(a->items, a->n, a->capacity);
    struct responses_item *item = &a->items[a->n++];
    *item = (struct responses_item){.kind = kind};
    return item;
}

static void bytes_copy(struct bytes *to, const struct bytes *from)
{
    if (from->n) bytes_add(to, from->data, from->n);
}

void responses_answer_fini(struct responses_answer *a)
{
    for (int i = 0; i < a->n; i++) {
        bytes_free(&a->items[i].text);
        bytes_free(&a->items[i].logprobs);
        bytes_free(&a->items[i].name);
    }
    free(a->items);
}

// --- the response object

static void head_add(struct bytes *out, const struct responses_answer *a)
{
    JSON_ADD(out, "{\"id\":");
    json_add_string(out, a->id);
    JSON_ADD(out, ",\"object\":\"response\",\"created_at\":");
    json_add_integer(out, a->created_s);
    JSON_ADD(out, ",\"model\":");
    json_add_string(out, a->model);
    json_add(out, a->echo);
    JSON_ADD(out, ",\"background\":false,\"previous_response_id\":null,\"service_tier\":\"default\","
                  "\"store\":false,\"truncation\":\"disabled\"");
}

static void item_id_add(struct bytes *out, const struct responses_answer *a, int index)
{
    char id[64];
    snprintf(id, sizeof id, "%s%s-%d", form_of(&a->items[index])->prefix, strrchr(a->id, '-'), index);
    json_add_string(out, id);
}

static void logprobs_add(struct bytes *out, const struct bytes *logprobs)
{
    JSON_ADD(out, ",\"logprobs\":[");
    bytes_copy(out, logprobs);
    JSON_ADD(out, "]");
}

static void text_add(struct bytes *out, const struct bytes *text)
{
    json_add_text(out, text->n ? text->data : "", text->n);
}

// Adds the part that contains the text of a message or of reasoning.
static void part_add(struct bytes *out, const struct responses_item *item)
{
    JSON_ADD(out, "{\"type\":");
    json_add_string(out, form_of(item)->part);
    JSON_ADD(out, ",\"text\":");
    text_add(out, &item->text);
    if (item->kind == OUTPUT_CONTENT) {
        JSON_ADD(out, ",\"annotations\":[]");
        logprobs_add(out, &item->logprobs);
    }
    JSON_ADD(out, "}");
}

static void content_add(struct bytes *out, const struct responses_item *item, bool begun)
{
    json_add(out, item->kind == OUTPUT_CONTENT ? ",\"role\":\"assistant\"" : ",\"summary\":[]");
    JSON_ADD(out, ",\"content\":[");
    if (begun) part_add(out, item);
    JSON_ADD(out, "]");
}

// Adds the member with the text of a call or of an event, under the name that the kind of item has for it.
static void member_add(struct bytes *out, const struct responses_item *item)
{
    JSON_ADD(out, ",\"");
    json_add(out, form_of(item)->member);
    JSON_ADD(out, "\":");
    text_add(out, &item->text);
}

static void call_add(struct bytes *out, const struct responses_item *item)
{
    JSON_ADD(out, ",\"call_id\":");
    json_add_string(out, item->call_id);
    if (item->space) {
        JSON_ADD(out, ",\"namespace\":");
        json_add_string(out, item->space);
    }
    JSON_ADD(out, ",\"name\":");
    text_add(out, &item->name);
    member_add(out, item);
}

// Adds an item. If `begun` is false, leaves out the part with the text of a message or of reasoning.
static void item_add(struct bytes *out, const struct responses_answer *a, int index, const char *status, bool begun)
{
    const struct responses_item *item = &a->items[index];
    JSON_ADD(out, "{\"type\":");
    json_add_string(out, form_of(item)->type);
    JSON_ADD(out, ",\"id\":");
    item_id_add(out, a, index);
    JSON_ADD(out, ",\"status\":");
    json_add_string(out, status);
    if (item->kind == OUTPUT_CALL) {
        call_add(out, item);
    } else {
        content_add(out, item, begun);
    }
    JSON_ADD(out, "}");
}

static void usage_add(struct bytes *out, const struct request_usage *usage)
{
    JSON_ADD(out, "{\"input_tokens\":");
    json_add_integer(out, usage->prompt_tokens);
    JSON_ADD(out, ",\"input_tokens_details\":{\"cached_tokens\":");
    json_add_integer(out, usage->cached_tokens);
    JSON_ADD(out, ",\"cache_write_tokens\":0},\"output_tokens\":");
    json_add_integer(out, usage->completion_tokens);
    JSON_ADD(out, ",\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":");
    json_add_integer(out, (int64_t)usage->prompt_tokens + usage->completion_tokens);
    JSON_ADD(out, "}");
}

// Adds the response object while the response is generated, with the usage so far.
static void running_object_add(struct bytes *out, const struct responses_answer *a, const struct request_usage *usage)
{
    head_add(out, a);
    JSON_ADD(out, ",\"status\":\"in_progress\",\"completed_at\":null,\"error\":null,\"incomplete_details\":null,"
                  "\"output\":[],\"usage\":");
    usage_add(out, usage);
    JSON_ADD(out, "}");
}

static const char *response_status_name(enum finish_reason reason)
{
    switch (reason) {
    case FINISH_REASON_STOP: return "completed";
    case FINISH_REASON_LENGTH: return "incomplete";
    case FINISH_REASON_CANCELLED: return "cancelled";
    case FINISH_REASON_ERROR: break;
    }
    return "failed";
}

// Returns the status of the last item. Earlier items are complete. A message is complete if a call followed it.
static const char *last_item_status(const struct responses_answer *a, const struct responses_end *end)
{
    bool limited = end->reason == FINISH_REASON_LENGTH, is_call = a->items[a->n - 1].kind == OUTPUT_CALL;
    bool complete = end->cut == OUTPUT_CUT_NAME || (is_call && end->cut == OUTPUT_CUT_NONE);
    if (end->cut == OUTPUT_CUT_NONE && !is_call) complete = !limited;
    return complete && (limited || end->reason == FINISH_REASON_STOP) ? "completed" : "incomplete";
}

static void completed_add(struct bytes *out, const struct responses_end *end)
{
    JSON_ADD(out, ",\"completed_at\":");
    if (end->reason == FINISH_REASON_STOP) {
        json_add_integer(out, end->completed_s);
    } else {
        JSON_ADD(out, "null");
    }
}

// Adds the response object of a complete answer.
static void object_add(struct bytes *out, const struct responses_answer *a, const struct responses_end *end)
{
    head_add(out, a);
    JSON_ADD(out, ",\"status\":");
    json_add_string(out, response_status_name(end->reason));
    completed_add(out, end);
    JSON_ADD(out, ",\"error\":");
    if (end->reason == FINISH_REASON_ERROR) {
        JSON_ADD(out, "{\"code\":\"server_error\",\"message\":");
        json_add_string(out, end->error);
        JSON_ADD(out, "}");
    } else {
        JSON_ADD(out, "null");
    }
    JSON_ADD(out, ",\"incomplete_details\":");
    json_add(out, end->reason == FINISH_REASON_LENGTH ? "{\"reason\":\"max_output_tokens\"}" : "null");
    JSON_ADD(out, ",\"output\":[");
    for (int i = 0; i < a->n; i++) {
        if (i) JSON_ADD(out, ",");
        item_add(out, a, i, i < a->n - 1 ? "completed" : last_item_status(a, end), true);
    }
    JSON_ADD(out, "],\"usage\":");
    usage_add(out, end->usage);
    json_add_explanation(out, end->explanation);
    JSON_ADD(out, "}");
}

// --- events

static void event_begin(struct bytes *out, struct responses_answer *a, const char *name)
{
    json_event_begin(out, name);
    JSON_ADD(out, ",\"sequence_number\":");
    json_add_integer(out, a->n_events++);
}

static void running_event_add(struct bytes *out, struct responses_answer *a, const char *name,
                              const struct request_usage *usage)
{
    event_begin(out, a, name);
    JSON_ADD(out, ",\"response\":");
    running_object_add(out, a, usage);
    json_event_end(out);
}

static void output_index_add(struct bytes *out, const struct responses_answer *a)
{
    JSON_ADD(out, ",\"output_index\":");
    json_add_integer(out, a->n - 1);
}

static void item_event_add(struct bytes *out, struct responses_answer *a, const char *name, const char *status,
                           bool begun)
{
    if (!out) return;
    event_begin(out, a, name);
    output_index_add(out, a);
    JSON_ADD(out, ",\"item\":");
    item_add(out, a, a->n - 1, status, begun);
    json_event_end(out);
}

// Begins an event within the last item.
static void inner_event_begin(struct bytes *out, struct responses_answer *a, const char *name)
{
    event_begin(out, a, name);
    JSON_ADD(out, ",\"item_id\":");
    item_id_add(out, a, a->n - 1);
    output_index_add(out, a);
    if (form_of(&a->items[a->n - 1])->part) JSON_ADD(out, ",\"content_index\":0");
}

static void part_event_add(struct bytes *out, struct responses_answer *a, const char *name)
{
    const struct responses_item *item = &a->items[a->n - 1];
    if (!out || !form_of(item)->part) return;
    inner_event_begin(out, a, name);
    JSON_ADD(out, ",\"part\":");
    part_add(out, item);
    json_event_end(out);
}

static void text_event_add(struct bytes *out, struct responses_answer *a, const char *name, const char *member,
                           const struct bytes *text, const struct bytes *logprobs)
{
    const struct responses_item *item = &a->items[a->n - 1];
    if (!out) return;
    inner_event_begin(out, a, name);
    JSON_ADD(out, ",\"");
    json_add(out, member);
    JSON_ADD(out, "\":");
    text_add(out, text);
    if (item->kind == OUTPUT_CONTENT) logprobs_add(out, logprobs);
    json_event_end(out);
}

// Adds the event with the whole text of the last item. The event of a function also has the function's name.
static void done_event_add(struct bytes *out, struct responses_answer *a)
{
    const struct responses_item *item = &a->items[a->n - 1];
    if (!out) return;
    inner_event_begin(out, a, form_of(item)->done);
    if (item->kind == OUTPUT_CALL && !item->custom) {
        JSON_ADD(out, ",\"name\":");
        text_add(out, &item->name);
    }
    member_add(out, item);
    if (item->kind == OUTPUT_CONTENT) logprobs_add(out, &item->logprobs);
    json_event_end(out);
}

// Keeps log-probabilities of the last item for its end. If a stream has too many, drops all that were kept.
static void logprobs_keep(struct responses_answer *a, const struct bytes *logprobs, bool stream)
{
    enum { KEPT_BYTES_MAX = 1 << 20 };
    struct bytes *kept = &a->items[a->n - 1].logprobs;
    a->logprobs_bytes += logprobs->n;
    if (a->logprobs_bytes <= KEPT_BYTES_MAX || !stream) {
        if (kept->n && logprobs->n) JSON_ADD(kept, ",");
        bytes_copy(kept, logprobs);
        return;
    }
    for (int i = 0; i < a->n; i++) {
        bytes_free(&a->items[i].logprobs);
        a->items[i].logprobs = (struct bytes){0};
    }
}

static void text_keep(struct bytes *out, struct responses_answer *a, const struct bytes *piece,
                      const struct bytes *logprobs)
{
    struct responses_item *item = &a->items[a->n - 1];
    logprobs_keep(a, logprobs, out);
    bytes_copy(&item->text, piece);
    text_event_add(out, a, form_of(item)->delta, "delta", piece, logprobs);
}

static void delta_add(struct bytes *out, struct responses_answer *a, const char *text, size_t n,
                      const struct bytes *logprobs)
{
    const struct bytes piece = {(char *)text, n, n};
    struct bytes decoded = {0};
    if (!a->items[a->n - 1].custom) {
        text_keep(out, a, &piece, logprobs);
        return;
    }
    custom_input_push(&a->input, text, n, &decoded);
    if (decoded.n) text_keep(out, a, &decoded, logprobs);
    bytes_free(&decoded);
}

// Adds the rest of the input of a custom tool, which is not empty only if the call was cut.
static void input_end(struct bytes *out, struct responses_answer *a)
{
    static const struct bytes none;
    struct bytes rest = {0};
    if (!a->items[a->n - 1].custom) return;
    custom_input_finish(&a->input, &rest);
    if (rest.n) text_keep(out, a, &rest, &none);
    bytes_free(&rest);
}

static void last_item_end(struct bytes *out, struct responses_answer *a, const char *status)
{
    if (!a->open) return;
    input_end(out, a);
    done_event_add(out, a);
    part_event_add(out, a, "response.content_part.done");
    item_event_add(out, a, "response.output_item.done", status, true);
    a->open = false;
}

// Sets the name of the tool that the model calls by the name `offered` [n].
static void tool_set(const struct responses_answer *a, struct responses_item *item, const char *offered, size_t n)
{
    const json_t *tool = json_object_getn(a->tools, offered, n);
    const char *name = json_string_value(json_object_get(tool, "name"));
    item->custom = json_is_true(json_object_get(tool, "custom"));
    item->space = json_string_value(json_object_get(tool, "namespace"));
    bytes_add(&item->name, name ? name : offered, name ? strlen(name) : n);
}

// Begins an item. `call` and `name` [n] are used if the item is a call.
static void item_begin(struct bytes *out, struct responses_answer *a, enum output_kind kind,
                       const struct chat_call *call, const char *name, size_t n)
{
    last_item_end(out, a, "completed");
    struct responses_item *item = item_append(a, kind);
    if (call) {
        tool_set(a, item, name, n);
        memcpy(item->call_id, call->id, sizeof item->call_id);
        a->input = (struct custom_input){0};
    }
    a->open = true;
    item_event_add(out, a, "response.output_item.added", "in_progress", false);
    part_event_add(out, a, "response.content_part.added");
}

void responses_add_begin(struct bytes *out, struct responses_answer *a, const struct request_usage *usage)
{
    running_event_add(out, a, "response.created", usage);
    running_event_add(out, a, "response.in_progress", usage);
}

static void item_continue(struct bytes *out, struct responses_answer *a, enum output_kind kind)
{
    if (!a->open || a->items[a->n - 1].kind != kind) item_begin(out, a, kind, NULL, NULL, 0);
}

void responses_add_part(struct bytes *out, struct responses_answer *a, enum output_kind kind,
                        const struct chat_call *call, const char *text, size_t n)
{
    static const struct bytes none;
    if (kind == OUTPUT_CALL) item_begin(out, a, kind, call, text, n);
    if (kind == OUTPUT_CALL || !n) return;
    if (kind != OUTPUT_ARGUMENTS) item_continue(out, a, kind);
    delta_add(out, a, text, n, &none);
}

void responses_add_text(struct bytes *out, struct responses_answer *a, const char *text, size_t n,
                        const struct bytes *logprobs)
{
    if (!n && !logprobs->n) return;
    item_continue(out, a, OUTPUT_CONTENT);
    delta_add(out, a, text, n, logprobs);
}

static const char *last_event_name(enum finish_reason reason)
{
    switch (reason) {
    case FINISH_REASON_STOP: return "response.completed";
    case FINISH_REASON_LENGTH: return "response.incomplete";
    default: return "response.failed";
    }
}

static void items_end(struct bytes *out, struct responses_answer *a, const struct responses_end *end)
{
    if (!a->n && end->reason != FINISH_REASON_ERROR) item_continue(out, a, OUTPUT_CONTENT);
    if (a->n) last_item_end(out, a, last_item_status(a, end));
}

void responses_add_end(struct bytes *out, struct responses_answer *a, const struct responses_end *end)
{
    items_end(out, a, end);
    event_begin(out, a, last_event_name(end->reason));
    JSON_ADD(out, ",\"response\":");
    object_add(out, a, end);
    json_event_end(out);
}

// Adds a message with the text and the log-probabilities from one position to another, if it has any text.
static void message_set(struct responses_answer *a, const struct bytes *text, size_t from, size_t to,
                        const struct bytes *logprobs, size_t logprobs_from, size_t logprobs_to)
{
    if (from == to) return;
    if (logprobs_from && logprobs_from < logprobs_to) logprobs_from++; // skips the comma
    const size_t n = logprobs_from < logprobs_to ? logprobs_to - logprobs_from : 0;
    const struct bytes list = {n ? logprobs->data + logprobs_from : NULL, n, n};
    responses_add_text(NULL, a, text->data + from, to - from, &list);
}

void responses_set_items(struct responses_answer *a, const struct bytes *text, const struct bytes *logprobs,
                         const struct chat_answer *chat)
{
    size_t text_at = 0, logprobs_at = 0;
    if (chat) responses_add_part(NULL, a, OUTPUT_REASONING, NULL, chat->reasoning.data, chat->reasoning.n);
    for (int i = 0; chat && i < chat->n_calls; i++) {
        const struct chat_call *call = &chat->calls[i];
        message_set(a, text, text_at, call->text_at, logprobs, logprobs_at, call->logprobs_at);
        text_at = call->text_at;
        logprobs_at = call->logprobs_at;
        responses_add_part(NULL, a, OUTPUT_CALL, call, call->name.data, call->name.n);
        responses_add_part(NULL, a, OUTPUT_ARGUMENTS, call, call->arguments.data, call->arguments.n);
    }
    message_set(a, text, text_at, text->n, logprobs, logprobs_at, logprobs->n);
}

void responses_add_whole(struct bytes *out, struct responses_answer *a, const struct responses_end *end)
{
    items_end(NULL, a, end);
    object_add(out, a, end);
}
