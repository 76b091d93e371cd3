// SPDX-License-Identifier: Apache-2.0
#include "lib/text/generation_wire.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "lib/base/mem.h"

// The members of a message that have the names of a table's fields, found once.
struct layout {
    const struct generation_field *fields;
    const ProtobufCMessageDescriptor *message;
    struct layout *next;
    const ProtobufCFieldDescriptor *members[]; // of row i; NULL: the message has no such member
};

static _Atomic(struct layout *) layouts; // never removed: there is one for each table and kind of message
static pthread_mutex_t layouts_mutex = PTHREAD_MUTEX_INITIALIZER; // held while one is added

static struct layout *layout_find(const struct generation_field *fields, const ProtobufCMessageDescriptor *message)
{
    struct layout *layout = atomic_load_explicit(&layouts, memory_order_acquire);
    while (layout && (layout->fields != fields || layout->message != message))
        layout = layout->next;
    return layout;
}

static struct layout *layout_create(const struct generation_field *fields, const ProtobufCMessageDescriptor *message)
{
    size_t n = 0;
    while (fields[n].name)
        n++;
    struct layout *layout = mem_alloc(sizeof *layout + n * sizeof *layout->members);
    layout->fields = fields;
    layout->message = message;
    for (size_t i = 0; i < n; i++)
        layout->members[i] = protobuf_c_message_descriptor_get_field_by_name(message, fields[i].name);
    return layout;
}

static const struct layout *layout_of(const struct generation_field *fields, const ProtobufCMessage *m)
{
    struct layout *layout = layout_find(fields, m->descriptor);
    if (layout) return layout;
    pthread_mutex_lock(&layouts_mutex);
    layout = layout_find(fields, m->descriptor);
    if (!layout) {
        layout = layout_create(fields, m->descriptor);
        layout->next = atomic_load_explicit(&layouts, memory_order_relaxed);
        atomic_store_explicit(&layouts, layout, memory_order_release);
    }
    pthread_mutex_unlock(&layouts_mutex);
    return layout;
}

// Member of a message that has the name of a field.
struct member {
    const ProtobufCFieldDescriptor *descriptor;
    void *value;
    uint32_t *case_p; // number of the oneof member that is set; NULL if the member has no presence
};

static struct member member_at(const ProtobufCMessage *m, const ProtobufCFieldDescriptor *d)
{
    bool presence = d->flags & PROTOBUF_C_FIELD_FLAG_ONEOF;
    return (struct member){d, (char *)m + d->offset, presence ? (uint32_t *)((char *)m + d->quantifier_offset) : NULL};
}

static struct member member_of(const ProtobufCMessage *m, const char *name)
{
    const ProtobufCFieldDescriptor *d = protobuf_c_message_descriptor_get_field_by_name(m->descriptor, name);
    assert(d); // tests/check_request.c goes through all fields and messages
    return member_at(m, d);
}

generation_given generation_field_bit(const struct generation_field *fields, const char *name)
{
    for (const struct generation_field *f = fields; f->name; f++) {
        if (strcmp(f->name, name) == 0) return (generation_given)1 << (f - fields);
    }
    return 0;
}

// --- to a message

// Sets the member. The protocol of clients has a bool in the same oneof for auto, and the cluster protocol has the
// number -1.
static void int_or_auto_to_message(int number, struct member to, ProtobufCMessage *m)
{
    if (to.case_p && number == CHUNK_TOKENS_AUTO) {
        struct member word = member_of(m, "chunk_auto");
        *(protobuf_c_boolean *)word.value = true;
        *to.case_p = word.descriptor->id;
        return;
    }
    *(int32_t *)to.value = number;
    if (to.case_p) *to.case_p = to.descriptor->id;
}

static void field_to_message(const struct generation_field *f, const void *object, struct member to,
                             ProtobufCMessage *m)
{
    const void *from = (const char *)object + f->offset;
    bool given = true;
    switch (f->type) {
    case GENERATION_FIELD_OPTIONAL_REAL: given = *(const double *)from != f->default_value; // fall through
    case GENERATION_FIELD_REAL: *(double *)to.value = *(const double *)from; break;
    case GENERATION_FIELD_UINT64: *(uint64_t *)to.value = *(const uint64_t *)from; break;
    case GENERATION_FIELD_BOOL:
        *(protobuf_c_boolean *)to.value = *(const bool *)from;
        given = *(const bool *)from != (f->default_value != 0);
        break;
    case GENERATION_FIELD_INT_OR_AUTO: int_or_auto_to_message(*(const int *)from, to, m); return;
    case GENERATION_FIELD_OPTIONAL: given = *(const int *)from != f->default_value; // fall through
    case GENERATION_FIELD_INT: *(int32_t *)to.value = *(const int *)from; break;    // int32 or uint32
    }
    if (to.case_p) *to.case_p = given ? to.descriptor->id : 0;
}

static void fields_to_message(const struct generation_field *fields, const void *object, generation_given given,
                              ProtobufCMessage *m)
{
    const struct layout *layout = layout_of(fields, m);
    for (const struct generation_field *f = fields; f->name; f++) {
        const ProtobufCFieldDescriptor *d = layout->members[f - fields];
        if (given >> (f - fields) & 1 && d) field_to_message(f, object, member_at(m, d), m);
    }
}

void sampling_to_message(const struct sampling *s, generation_given given, ProtobufCMessage *m)
{
    fields_to_message(sampling_fields, s, given, m);
    if (s->no_output) *(uint32_t *)member_of(m, "max_tokens").value = 0;
    struct member ids = member_of(m, "stop_token_ids");
    *(const int32_t **)ids.value = s->stop_ids;
    *(size_t *)((char *)m + ids.descriptor->quantifier_offset) = (size_t)s->n_stop_ids;
}

void prefill_to_message(const struct prefill *p, generation_given given, ProtobufCMessage *m)
{
    fields_to_message(prefill_fields, p, given, m);
}

// --- from a message

static int int_from_uint32(uint32_t number)
{
    return number < INT_MAX ? (int)number : INT_MAX;
}

static bool auto_is_given(const ProtobufCMessage *m, struct member from)
{
    return from.case_p && *from.case_p == member_of(m, "chunk_auto").descriptor->id;
}

static enum status field_from_message(const struct generation_field *f, struct member from, const ProtobufCMessage *m,
                                      void *object)
{
    void *to = (char *)object + f->offset;
    if (f->type == GENERATION_FIELD_INT_OR_AUTO && auto_is_given(m, from)) *(int *)to = CHUNK_TOKENS_AUTO;
    if (from.case_p && *from.case_p != from.descriptor->id) return STATUS_OK;
    switch (f->type) {
    case GENERATION_FIELD_REAL: *(double *)to = *(const double *)from.value; break;
    case GENERATION_FIELD_OPTIONAL_REAL:
        *(double *)to = *(const double *)from.value;
        return generation_field_check(f, *(double *)to);
    case GENERATION_FIELD_UINT64: *(uint64_t *)to = *(const uint64_t *)from.value; break;
    case GENERATION_FIELD_BOOL: *(bool *)to = *(const protobuf_c_boolean *)from.value; break;
    case GENERATION_FIELD_OPTIONAL: // fall through
    case GENERATION_FIELD_INT_OR_AUTO:
    case GENERATION_FIELD_INT:
        *(int *)to = from.descriptor->type == PROTOBUF_C_TYPE_UINT32 ? int_from_uint32(*(const uint32_t *)from.value)
                                                                     : *(const int32_t *)from.value;
        if (from.case_p && f->type == GENERATION_FIELD_OPTIONAL)
            return generation_field_check(f, *(const uint32_t *)from.value);
    }
    return STATUS_OK;
}

// Leaves out the field `except`, which may be NULL.
static enum status fields_from_message(const struct generation_field *fields, const char *except,
                                       const ProtobufCMessage *m, void *object)
{
    enum status status = STATUS_OK;
    const struct layout *layout = layout_of(fields, m);
    for (const struct generation_field *f = fields; f->name && status == STATUS_OK; f++) {
        const ProtobufCFieldDescriptor *d = layout->members[f - fields];
        if (except && strcmp(f->name, except) == 0) continue;
        if (d) status = field_from_message(f, member_at(m, d), m, object);
    }
    return status;
}

static bool asks_no_output(const ProtobufCMessage *m)
{
    struct member tokens = member_of(m, "max_tokens");
    bool given = !tokens.case_p || *tokens.case_p == tokens.descriptor->id;
    return given && *(const uint32_t *)tokens.value == 0;
}

enum status sampling_from_message(const ProtobufCMessage *m, struct sampling *s)
{
    s->no_output = asks_no_output(m);
    if (s->no_output) s->max_tokens = 1;
    enum status status = fields_from_message(sampling_fields, s->no_output ? "max_tokens" : NULL, m, s);
    if (status != STATUS_OK) return status;
    struct member ids = member_of(m, "stop_token_ids");
    size_t n = *(const size_t *)((const char *)m + ids.descriptor->quantifier_offset);
    if (n > STOP_IDS_MAX) {
        return status_fail(STATUS_INVALID, "stop_token_ids: %zu given, at most %d are allowed", n, STOP_IDS_MAX);
    }
    const uint32_t *from = *(const uint32_t **)ids.value;
    for (size_t i = 0; i < n; i++)
        s->stop_ids[i] = int_from_uint32(from[i]);
    s->n_stop_ids = (int)n;
    return STATUS_OK;
}

enum status prefill_from_message(const ProtobufCMessage *m, struct prefill *p)
{
    return fields_from_message(prefill_fields, NULL, m, p);
}
