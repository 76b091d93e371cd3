// SPDX-License-Identifier: Apache-2.0
// The input tensors of a ModelInferRequest, checked: shape against contents, raw or typed, and the lengths of BYTES.
// Any thread. All failures are INVALID; the sentence names the tensor.
#pragma once

#include <stdbool.h>

#include "lib/base/status.h"
#include "proto/inference/kserve.pb-c.h"

enum { KSERVE_TENSORS_MAX = 64 };

enum kserve_kind { KSERVE_BOOL, KSERVE_SIGNED, KSERVE_UNSIGNED, KSERVE_REAL, KSERVE_BYTES };

// Borrows from the message.
struct kserve_tensor {
    const char *name, *datatype; // UTF-8, short
    enum kserve_kind kind;
    size_t element_bytes; // in `raw`; 0: KSERVE_BYTES
    const int64_t *shape; // [rank]
    size_t rank;
    size_t n;           // elements
    const uint8_t *raw; // [raw_bytes]
    size_t raw_bytes;
    const Inference__InferTensorContents *contents; // NULL: the elements are in `raw`
};

// The inputs in their order, *n_p of them; two with one name are refused.
enum status kserve_tensors_read(const Inference__ModelInferRequest *m, struct kserve_tensor tensors[KSERVE_TENSORS_MAX],
                                size_t *n_p);

// Element `i` of a tensor of this kind. Integers beyond int64_t become INT64_MAX.
bool kserve_tensor_bool(const struct kserve_tensor *t, size_t i);
int64_t kserve_tensor_integer(const struct kserve_tensor *t, size_t i);
double kserve_tensor_real(const struct kserve_tensor *t, size_t i);

// Iterates over the elements of KSERVE_BYTES: start with zeros; false at the end.
struct kserve_place {
    size_t i, at;
};
bool kserve_tensor_next(const struct kserve_tensor *t, struct kserve_place *place, ProtobufCBinaryData *element_p);

// The length in front of an element of BYTES: little-endian.
void kserve_length_write(uint32_t length, uint8_t out[4]);
