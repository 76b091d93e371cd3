// SPDX-License-Identifier: Apache-2.0
// Reads the input tensors of a ModelInferRequest. Checks that the shape matches the contents, raw or typed, and checks
// the lengths of BYTES elements. Any thread may call.
#pragma once

#include <stdbool.h>

#include "lib/base/status.h"
#include "proto/inference/kserve.pb-c.h"

enum { KSERVE_TENSORS_MAX = 64 };

enum kserve_kind { KSERVE_BOOL, KSERVE_SIGNED, KSERVE_UNSIGNED, KSERVE_REAL, KSERVE_BYTES };

// An input tensor. Borrows from the message.
struct kserve_tensor {
    const char *name, *datatype; // `name` is UTF-8 of at most 256 bytes
    enum kserve_kind kind;
    size_t element_bytes; // size of an element in `raw`; 0: KSERVE_BYTES
    const int64_t *shape; // [rank]
    size_t rank;
    size_t n;           // number of elements
    const uint8_t *raw; // [raw_bytes] the elements, if `contents` is NULL
    size_t raw_bytes;
    const Inference__InferTensorContents *contents; // NULL: the elements are in `raw`
};

// Reads the inputs in order and sets *n_p to their number. Refuses two inputs with the same name. Returns INVALID, or
// UNSUPPORTED for shared memory.
enum status kserve_tensors_read(const Inference__ModelInferRequest *m, struct kserve_tensor tensors[KSERVE_TENSORS_MAX],
                                size_t *n_p);

// Return element `i` of a tensor of the kind KSERVE_BOOL; KSERVE_SIGNED or KSERVE_UNSIGNED; KSERVE_REAL. Integers above
// INT64_MAX become INT64_MAX.
bool kserve_tensor_bool(const struct kserve_tensor *t, size_t i);
int64_t kserve_tensor_integer(const struct kserve_tensor *t, size_t i);
double kserve_tensor_real(const struct kserve_tensor *t, size_t i);

// A position in an iteration over the elements of KSERVE_BYTES; starts as zeros.
struct kserve_place {
    size_t i;  // index of the next element
    size_t at; // offset of the next element in `raw`
};
// Sets *element_p to the next element, borrowed from the tensor. Returns false if there is none.
bool kserve_tensor_next(const struct kserve_tensor *t, struct kserve_place *place, ProtobufCBinaryData *element_p);

// Writes the length that precedes an element of BYTES, little-endian.
void kserve_length_write(uint32_t length, uint8_t out[4]);
