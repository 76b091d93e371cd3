// SPDX-License-Identifier: Apache-2.0
// Reads mapped weights ahead of the loader, so that the disk works while the cores pack. The loader first lists all
// weights in the order in which it will create them. Threads then ask the kernel for their pages in this order, up to
// WEIGHT_READER_AHEAD_BYTES beyond the weight that is being packed. Nothing is copied, and a reader that is late skips
// what the loader has packed already.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/backend.h"

enum { WEIGHT_READER_AHEAD_BYTES = 256 << 20 };

// The weights in the order in which they are created.
struct weight_list {
    struct weight_parts *items; // [n]
    int n, capacity;
};

// Adds a weight with the rows of all parts. `pairs`: rows of the two parts alternate, as in gate and up. Copies the
// parts.
void weight_list_add(struct weight_list *list, const struct matrix_view *parts, int n, bool pairs);
void weight_list_fini(struct weight_list *list);

struct weight_reader;

// Starts the threads. They read each weight from the starts of `shares` equal shares of its rows at once, because as
// many threads pack it. Borrows the list until weight_reader_stop(). Returns NULL if the system cannot create a thread:
// pages are then read when they are needed.
struct weight_reader *weight_reader_start(const struct weight_list *list, int shares);
void weight_reader_next(struct weight_reader *reader); // the loader begins the next weight of the list; NULL is fine
void weight_reader_stop(struct weight_reader *reader); // NULL is fine
