// SPDX-License-Identifier: Apache-2.0
#include "router/front/kserve/kserve_tensors.h"

#include <string.h>

#include "router/front/request/intake.h"

enum { LENGTH_BYTES = 4 }; // size of the length before each raw element of BYTES

struct datatype {
    const char *name;
    enum kserve_kind kind;
    size_t element_bytes;
    size_t count_offset, list_offset; // members of the typed contents
};

#define LIST(field) offsetof(Inference__InferTensorContents, n_##field), offsetof(Inference__InferTensorContents, field)
static const struct datatype datatypes[] = {
    {"BOOL", KSERVE_BOOL, 1, LIST(bool_contents)},         {"INT8", KSERVE_SIGNED, 1, LIST(int_contents)},
    {"INT16", KSERVE_SIGNED, 2, LIST(int_contents)},       {"INT32", KSERVE_SIGNED, 4, LIST(int_contents)},
    {"INT64", KSERVE_SIGNED, 8, LIST(int64_contents)},     {"UINT8", KSERVE_UNSIGNED, 1, LIST(uint_contents)},
    {"UINT16", KSERVE_UNSIGNED, 2, LIST(uint_contents)},   {"UINT32", KSERVE_UNSIGNED, 4, LIST(uint_contents)},
    {"UINT64", KSERVE_UNSIGNED, 8, LIST(uint64_contents)}, {"FP32", KSERVE_REAL, 4, LIST(fp32_contents)},
    {"FP64", KSERVE_REAL, 8, LIST(fp64_contents)},         {"BYTES", KSERVE_BYTES, 0, LIST(bytes_contents)},
};

static const struct datatype *datatype_find(const char *name)
{
    for (size_t i = 0; i < sizeof datatypes / sizeof *datatypes; i++)
        if (strcmp(datatypes[i].name, name) == 0) return &datatypes[i];
    return NULL;
}

// --- raw contents

static uint32_t length_read(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

void kserve_length_write(uint32_t length, uint8_t out[4])
{
    for (int i = 0; i < LENGTH_BYTES; i++)
        out[i] = (uint8_t)(length >> 8 * i);
}

static enum status raw_bytes_check(const struct kserve_tensor *t)
{
    size_t at = 0, n = 0;
    for (; at < t->raw_bytes; n++) {
        size_t left = t->raw_bytes - at;
        if (left < LENGTH_BYTES)
            return status_fail(STATUS_INVALID,
                               "input '%s': %zu bytes after element %zu: the length of an element has %d", t->name,
                               left, n, LENGTH_BYTES);
        uint32_t length = length_read(t->raw + at);
        if (length > left - LENGTH_BYTES)
            return status_fail(STATUS_INVALID, "input '%s': element %zu has a length of %u bytes, but %zu bytes follow",
                               t->name, n, length, left - LENGTH_BYTES);
        at += LENGTH_BYTES + (size_t)length;
    }
    if (n == t->n) return STATUS_OK;
    return status_fail(STATUS_INVALID, "input '%s': its shape has %zu elements, its contents have %zu", t->name, t->n,
                       n);
}

static enum status raw_check(const struct kserve_tensor *t)
{
    if (t->kind == KSERVE_BYTES) return raw_bytes_check(t);
    if (t->n <= SIZE_MAX / t->element_bytes && t->n * t->element_bytes == t->raw_bytes) return STATUS_OK;
    return status_fail(STATUS_INVALID,
                       "input '%s': %zu elements of %s have %zu bytes each, its contents have %zu bytes", t->name, t->n,
                       t->datatype, t->element_bytes, t->raw_bytes);
}

// --- typed contents

static enum status typed_check(const struct kserve_tensor *t, const struct datatype *d)
{
    size_t n;
    memcpy(&n, (const char *)t->contents + d->count_offset, sizeof n);
    if (n == t->n) return STATUS_OK;
    return status_fail(STATUS_INVALID, "input '%s': its shape has %zu elements, its contents of %s have %zu", t->name,
                       t->n, t->datatype, n);
}

// --- tensors

static enum status shape_count(const struct kserve_tensor *t, size_t *n_p)
{
    size_t n = 1;
    for (size_t i = 0; i < t->rank; i++) {
        int64_t d = t->shape[i];
        if (d < 0)
            return status_fail(STATUS_INVALID, "input '%s': the shape has the dimension %lld: must be 0 or more",
                               t->name, (long long)d);
        if (__builtin_mul_overflow(n, (size_t)d, &n))
            return status_fail(STATUS_INVALID, "input '%s': the shape has too many elements", t->name);
    }
    *n_p = n;
    return STATUS_OK;
}

static enum status parameters_check(const Inference__ModelInferRequest__InferInputTensor *m)
{
    for (size_t i = 0; i < m->n_parameters; i++)
        if (strncmp(m->parameters[i]->key, "shared_memory_", 14) == 0)
            return status_fail(STATUS_UNSUPPORTED,
                               "input '%s': shared memory is not supported: send the contents in the request", m->name);
    return STATUS_OK;
}

static enum status tensor_read(const Inference__ModelInferRequest__InferInputTensor *m, const ProtobufCBinaryData *raw,
                               struct kserve_tensor *t)
{
    TRY(intake_check_name("the name of an input", m->name));
    TRY(intake_check_name("the datatype of an input", m->datatype));
    TRY(parameters_check(m));
    const struct datatype *d = datatype_find(m->datatype);
    if (!d)
        return status_fail(
            STATUS_INVALID,
            "input '%s': datatype '%s': must be BYTES, BOOL, INT8 to INT64, UINT8 to UINT64, FP32 or FP64", m->name,
            m->datatype);
    *t = (struct kserve_tensor){m->name, d->name, d->kind, d->element_bytes, m->shape, m->n_shape, 0, NULL, 0, NULL};
    TRY(shape_count(t, &t->n));
    if (raw && m->contents)
        return status_fail(STATUS_INVALID, "input '%s': has contents and raw_input_contents: give one of them",
                           m->name);
    if (raw) {
        t->raw = raw->data;
        t->raw_bytes = raw->len;
        return raw_check(t);
    }
    if (!m->contents) return status_fail(STATUS_INVALID, "input '%s': has no contents", m->name);
    t->contents = m->contents;
    return typed_check(t, d);
}

enum status kserve_tensors_read(const Inference__ModelInferRequest *m, struct kserve_tensor tensors[KSERVE_TENSORS_MAX],
                                size_t *n_p)
{
    if (m->n_inputs > KSERVE_TENSORS_MAX)
        return status_fail(STATUS_INVALID, "inputs: %zu given, at most %d are allowed", m->n_inputs,
                           KSERVE_TENSORS_MAX);
    if (m->n_raw_input_contents && m->n_raw_input_contents != m->n_inputs)
        return status_fail(STATUS_INVALID, "raw_input_contents: %zu given for %zu inputs: must be one for each",
                           m->n_raw_input_contents, m->n_inputs);
    for (size_t i = 0; i < m->n_inputs; i++) {
        TRY(tensor_read(m->inputs[i], m->n_raw_input_contents ? &m->raw_input_contents[i] : NULL, &tensors[i]));
        for (size_t other = 0; other < i; other++)
            if (strcmp(tensors[other].name, tensors[i].name) == 0)
                return status_fail(STATUS_INVALID, "input '%s': given twice", tensors[i].name);
    }
    *n_p = m->n_inputs;
    return STATUS_OK;
}

// --- elements

bool kserve_tensor_bool(const struct kserve_tensor *t, size_t i)
{
    return t->contents ? t->contents->bool_contents[i] : t->raw[i] != 0;
}

static int64_t raw_signed(const uint8_t *element, size_t bytes)
{
    uint64_t value = 0;
    memcpy(&value, element, bytes);
    unsigned unused = (unsigned)(64 - 8 * bytes);
    return (int64_t)(value << unused) >> unused;
}

static uint64_t raw_unsigned(const uint8_t *element, size_t bytes)
{
    uint64_t value = 0;
    memcpy(&value, element, bytes);
    return value;
}

static int64_t from_unsigned(uint64_t value)
{
    return value > INT64_MAX ? INT64_MAX : (int64_t)value;
}

int64_t kserve_tensor_integer(const struct kserve_tensor *t, size_t i)
{
    const Inference__InferTensorContents *c = t->contents;
    bool wide = t->element_bytes == 8;
    if (t->kind == KSERVE_SIGNED) {
        if (!c) return raw_signed(t->raw + i * t->element_bytes, t->element_bytes);
        return wide ? c->int64_contents[i] : c->int_contents[i];
    }
    if (!c) return from_unsigned(raw_unsigned(t->raw + i * t->element_bytes, t->element_bytes));
    return wide ? from_unsigned(c->uint64_contents[i]) : c->uint_contents[i];
}

double kserve_tensor_real(const struct kserve_tensor *t, size_t i)
{
    const Inference__InferTensorContents *c = t->contents;
    float narrow;
    double wide;
    if (t->element_bytes == 4) {
        if (c) return (double)c->fp32_contents[i];
        memcpy(&narrow, t->raw + i * sizeof narrow, sizeof narrow);
        return (double)narrow;
    }
    if (c) return c->fp64_contents[i];
    memcpy(&wide, t->raw + i * sizeof wide, sizeof wide);
    return wide;
}

bool kserve_tensor_next(const struct kserve_tensor *t, struct kserve_place *place, ProtobufCBinaryData *element_p)
{
    if (place->i == t->n) return false;
    if (t->contents) {
        *element_p = t->contents->bytes_contents[place->i];
    } else {
        size_t length = length_read(t->raw + place->at);
        *element_p = (ProtobufCBinaryData){length, (uint8_t *)t->raw + place->at + LENGTH_BYTES};
        place->at += LENGTH_BYTES + length;
    }
    place->i++;
    return true;
}
