// SPDX-License-Identifier: Apache-2.0
// Reads one JSON file of a checkpoint: bounded in bytes and values, no duplicate keys, an object at the top.
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "lib/base/status.h"

// Reads a file. Returns STATUS_NOT_FOUND if it does not exist, STATUS_DATA for invalid content. The error message
// starts with `path`. The caller owns the object (json_decref).
enum status json_file_read(const char *path, size_t max_bytes, json_t **object_p);

// Reads a file like tokenizer_config.json, with integers as reals: model_max_length is often
// 1000000000000000019884624838656, which jansson accepts only as a real.
enum status json_file_read_reals(const char *path, size_t max_bytes, json_t **object_p);

// Limit for tokenizer_config.json, and for the files that older versions of transformers wrote instead.
enum { JSON_CONFIG_BYTES_MAX = 16 << 20 };

// Does the same as json_file_read() for text in memory. `path` is the file that the text came from.
enum status json_text_read(const char *path, const char *text, size_t text_bytes, json_t **object_p);

// Returns the type for messages: "an object", "an array", "a string", "an integer", "a number", "true or false",
// "null".
const char *json_type_name(const json_t *value);
