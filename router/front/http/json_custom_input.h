// SPDX-License-Identifier: Apache-2.0
// The text of a call of a custom tool. The model writes the call as a function with one argument, {"input": TEXT}. The
// text is decoded piece by piece, so that a stream sends it as the model writes it. If the arguments have another form,
// they are the text. One thread at a time.
#pragma once

#include "router/front/http/json_writer.h"

enum { CUSTOM_HEAD_BYTES_MAX = 64 };

// Starts as zero.
struct custom_input {
    enum { CUSTOM_HEAD, CUSTOM_TEXT, CUSTOM_END, CUSTOM_RAW } state;
    char head[CUSTOM_HEAD_BYTES_MAX]; // [n_head] the bytes so far, while they may still begin the expected form
    int n_head;
    char escape[6]; // [n_escape] an escape sequence that is not complete
    int n_escape;
    int32_t high; // first half of a surrogate pair; 0: none
};

// Appends the text that the next piece of the arguments contains.
void custom_input_push(struct custom_input *in, const char *piece, size_t n, struct bytes *out);
// Ends the arguments, which may have been cut. An incomplete {"input": or escape sequence is no text.
void custom_input_finish(struct custom_input *in, struct bytes *out);
