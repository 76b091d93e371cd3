// SPDX-License-Identifier: Apache-2.0
// Reads and checks the input tensors of a ModelInferRequest: that the shape matches the contents, raw or typed, and the
// lengths of BYTES elements. Functions return INVALID on failure, UNSUPPORTED for shared memory; status_message() names
// the tensor. Any thread.
#pragma once

#include <stdbool.h>

#include "lib/base/status.h"
#include "proto/inference/kserve.pb-c.h"

enum { KSERVE_TENSORS_MAX = 64 };

enum kserve_kind { KSERVE_BOOL, KSERVE_SIGNED, KSERVE_UNSIGNED, KSERVE_REAL, KSERVE_BYTES };

// An input tensor. Borrows from the message.
struct kserve_tensor {
    const char *name, *datatype; // UTF-8, short
    enum kserve_kind kind;
    size_t element_bytes; // size of an element in `raw`; 0: KSERVE_BYTES
    const int64_t *shape; // [rank]
    size_t rank;
    size_t n;           // number of elements
    const uint8_t *raw; // [raw_bytes] the elements, if `contents` is NULL
    size_t raw_bytes;
    const Inference__InferTensorContents *contents; // NULL: the elements are in `raw`
};

// Reads the inputs in order. *n_p is their number. Refuses two inputs with the same name.
enum status kserve_tensors_read(const Inference__ModelInferRequest *m, struct kserve_tensor tensors[KSERVE_TENSORS_MAX],
                                size_t *n_p);

// Return element `i` of a tensor of this kind. Integers beyond int64_t become INT64_MAX.
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
