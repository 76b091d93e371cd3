// SPDX-License-Identifier: Apache-2.0
// Packed weights in a file, for the next start: mapped and used as they lie, so that start packs nothing, allocates
// nothing for them and shares their memory with other processes of this host.
//
// The file is one head, one table of arrays and the arrays, each on a page of its own, in the order in which the model
// makes its weights. It is used only where all of these fit: format, layout of this backend, the caller's key, hash of
// head and table, the file's length, and for every weight its shape and the size of its arrays. Whatever does not
// fit is packed as if there were no file. What the arrays hold is believed: like a checkpoint's, it carries no hash.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct saved;
struct weight;

// One array of a weight.
struct saved_array {
    void *data;
    size_t bytes;
};

// Maps `path` if it fits; a line is logged if it is there and does not. Never NULL.
struct saved *saved_open(const char *path, const char *layout, uint64_t key);
bool saved_found(const struct saved *saved); // it fitted
void saved_close(struct saved *saved);       // the arrays end with it; NULL is fine

// Points the next weight's arrays, whose sizes are given, into the file. False: they are not there, nor is any later
// one.
bool saved_take(struct saved *saved, const struct weight *w, struct saved_array *arrays, int n);

// Writes a file of these weights in place of one that did not fit, under its name at once or not at all: a line is
// logged either way. Nothing is done where all weights came from the file.
struct saved_weight {
    const struct weight *weight;
    struct saved_array arrays[3];
    int n;
};
void saved_write(struct saved *saved, const struct saved_weight *weights, int n);
