// SPDX-License-Identifier: Apache-2.0
// The queue of a worker group against an array: sequences come and go at random places.
#pragma once

#include "lib/base/random.h"

// NULL, or what is wrong.
const char *oracle_queue(struct random_source *random);
