// SPDX-License-Identifier: Apache-2.0
// Reads one JSON file of a checkpoint: bounded in bytes and values, no duplicate keys, an object at the top.
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "lib/base/status.h"

// STATUS_NOT_FOUND without the file, STATUS_DATA for invalid content; the sentence starts with `path`. The caller owns
// the object (json_decref).
enum status json_file_read(const char *path, size_t max_bytes, json_t **object_p);

// The same for tokenizer_config.json, with integers read as reals: model_max_length is often
// 1000000000000000019884624838656, which jansson takes no other way.
enum status json_file_read_reals(const char *path, size_t max_bytes, json_t **object_p);

// Of tokenizer_config.json and the files that older versions of transformers wrote in its place.
enum { JSON_CONFIG_BYTES_MAX = 16 << 20 };

// json_file_read() for text in memory. `path` is the file it came from.
enum status json_text_read(const char *path, const char *text, size_t text_bytes, json_t **object_p);

// For messages: "an object", "an array", "a string", "an integer", "a number", "true or false", "null".
const char *json_type_name(const json_t *value);
