// SPDX-License-Identifier: Apache-2.0
// Compares the queue of a worker group with an array, while sequences come and go at random places.
#pragma once

#include "lib/base/random.h"

// Returns NULL, or what is wrong.
const char *oracle_queue(struct random_source *random);
