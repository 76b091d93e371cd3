// SPDX-License-Identifier: Apache-2.0
// The harbour town of the documents of bench/tasks.h: names of people and places, and sentences that no question asks
// about. The caller frees the strings that are not const.
#pragma once

#include "lib/base/random.h"

enum { TOWN_NAME_BYTES = 24 };

void town_name(struct random_source *r, char name[TOWN_NAME_BYTES]); // "Mira Tolen"
const char *town_attribute(struct random_source *r);                 // "gate code"
const char *town_time(struct random_source *r);                      // "Before noon"
const char *town_place(struct random_source *r);                     // "the stone bridge"
char *town_person(struct random_source *r);                          // "The baker"
char *town_sentence(struct random_source *r);
