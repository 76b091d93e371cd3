// SPDX-License-Identifier: Apache-2.0
// Reads the members of one JSON object of config.json, checked. The first failure stays, and later reads return their
// default. So a caller reads all members and then looks at `status` once. A null value counts as absent, as in Hugging
// Face.
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "lib/base/status.h"

struct config_reader {
    const char *path;   // for messages
    const char *prefix; // "", "rope_scaling." or another object
    const json_t *object;
    enum status status;
};

// Fails with "PATH: PREFIX.KEY FORMAT".
__attribute__((format(printf, 4, 5))) void config_reader_fail(struct config_reader *r, enum status code,
                                                              const char *key, const char *format, ...);

// Returns NULL if the value is absent or null.
const json_t *config_reader_get(const struct config_reader *r, const char *key);

int config_read_int(struct config_reader *r, const char *key, int min, int max, int absent);
// Reads an integer in 1..max, which must be present.
int config_read_size(struct config_reader *r, const char *key, int max);
// Reads a number above `above` and at most `max`.
double config_read_real(struct config_reader *r, const char *key, double above, double max, double absent);
bool config_read_bool(struct config_reader *r, const char *key, bool absent);
// Returns NULL if the value is absent or null. The text belongs to the object.
const char *config_read_string(struct config_reader *r, const char *key);
