// SPDX-License-Identifier: Apache-2.0
// The JSON of a calibration. Every member that is used is checked for type, number and range. Members for human
// readers, such as the measurements, are ignored.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/json_file.h"
#include "lib/text/json_members.h"
#include "speculator/calibration.h"

enum { CALIBRATION_VERSION = 3, CALIBRATION_BYTES_MAX = 1 << 20 };
static const double number_most = 1e9;

// --- writing

static json_t *numbers_json(const double *numbers, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, isfinite(numbers[i]) ? json_real(numbers[i]) : json_null());
    return list;
}

static json_t *model_json(const struct calibration_model *model)
{
    char print[24], tokenizer[24];
    snprintf(print, sizeof print, "%016" PRIx64, model->model);
    snprintf(tokenizer, sizeof tokenizer, "%016" PRIx64, model->tokenizer);
    return json_pack("{s:s,s:s}", "model", print, "tokenizer", tokenizer);
}

static json_t *fit_json(const struct calibration_fit *fit)
{
    return json_pack("{s:o,s:o}", "weights", numbers_json(fit->weights, QUALITY_FEATURES), "prices",
                     numbers_json(fit->prices, QUALITY_TARGETS));
}

json_t *calibration_to_json(const struct calibration *c)
{
    return json_pack("{s:i,s:o,s:o,s:{s:i,s:i,s:i,s:i},s:o,s:o,s:o,s:o,s:o,s:o,s:[o,o]}", "version",
                     CALIBRATION_VERSION, "main", model_json(&c->main), "speculator", model_json(&c->speculator),
                     "options", "look_ahead", c->look_ahead, "chunk_tokens", c->chunk_tokens, "pool_window",
                     c->pool_window, "tail_tokens", c->tail_tokens, "rates", numbers_json(quality_rates, QUALITY_RATES),
                     "targets", numbers_json(quality_targets, QUALITY_TARGETS), "low",
                     numbers_json(c->low, EVIDENCE_VALUES), "high", numbers_json(c->high, EVIDENCE_VALUES), "mean",
                     numbers_json(c->mean, QUALITY_VALUES), "deviation", numbers_json(c->deviation, QUALITY_VALUES),
                     "fits", fit_json(&c->fits[0]), fit_json(&c->fits[1]));
}

// --- reading

// Reads a list of n numbers. null stands for infinity if `nulls` is true.
static enum status numbers_read(const char *path, const json_t *object, const char *key, int n, bool nulls,
                                double *numbers)
{
    const json_t *list;
    TRY(member_array(object, path, key, &list));
    if ((int)json_array_size(list) != n)
        return status_fail(STATUS_DATA, "%s: %s has %zu numbers: must be %d: run forepack calibrate again", path, key,
                           json_array_size(list), n);
    for (int i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        bool null = nulls && json_is_null(value);
        if (!null && !(json_is_number(value) && fabs(json_number_value(value)) <= number_most))
            return status_fail(STATUS_DATA, "%s: %s[%d]: must be a number of at most %g", path, key, i, number_most);
        numbers[i] = null ? INFINITY : json_number_value(value);
    }
    return STATUS_OK;
}

// Checks that a table equals the table built into this version.
static enum status table_check(const char *path, const json_t *object, const char *key, int n, const double *expected)
{
    double *numbers = mem_alloc_array((size_t)n, sizeof *numbers);
    enum status status = numbers_read(path, object, key, n, false, numbers);
    for (int i = 0; i < n && status == STATUS_OK; i++)
        if (fabs(numbers[i] - expected[i]) > 1e-9)
            status = status_fail(STATUS_DATA, "%s: %s[%d] is %g: this version has %g: run forepack calibrate again",
                                 path, key, i, numbers[i], expected[i]);
    free(numbers);
    return status;
}

static enum status fingerprint_read(const char *path, const json_t *object, const char *key, uint64_t *print_p)
{
    const char *text;
    TRY(member_string(object, path, key, "", &text));
    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return status_fail(STATUS_DATA, "%s: %s: must be a fingerprint of 16 hexadecimal digits", path, key);
    *print_p = strtoull(text, NULL, 16);
    return STATUS_OK;
}

static enum status object_read(const char *path, const json_t *object, const char *key, const json_t **member_p)
{
    TRY(member_object(object, path, key, member_p));
    return *member_p ? STATUS_OK : status_fail(STATUS_DATA, "%s: %s is missing", path, key);
}

static enum status model_read(const char *path, const json_t *object, const char *key, struct calibration_model *model)
{
    const json_t *member;
    TRY(object_read(path, object, key, &member));
    TRY(fingerprint_read(path, member, "model", &model->model));
    return fingerprint_read(path, member, "tokenizer", &model->tokenizer);
}

static enum status options_read(const char *path, const json_t *object, struct calibration *c)
{
    const json_t *options;
    TRY(object_read(path, object, "options", &options));
    TRY(member_int(options, path, "look_ahead", 0, 1, LOOK_AHEAD_MAX, &c->look_ahead));
    TRY(member_int(options, path, "chunk_tokens", 0, -1, 4096, &c->chunk_tokens));
    TRY(member_int(options, path, "pool_window", 0, 1, 1023, &c->pool_window));
    return member_int(options, path, "tail_tokens", -1, 0, 1000000000, &c->tail_tokens);
}

// Checks that prices never decrease with the quality.
static enum status fit_check(const char *path, const struct calibration_fit *fit)
{
    for (int t = 0; t < QUALITY_TARGETS; t++)
        if (fit->prices[t] < (t ? fit->prices[t - 1] : 0))
            return status_fail(STATUS_DATA, "%s: prices[%d]: must not be below %s", path, t,
                               t ? "the price before it" : "0");
    return STATUS_OK;
}

static enum status fits_read(const char *path, const json_t *object, struct calibration *c)
{
    const json_t *list;
    TRY(member_array(object, path, "fits", &list));
    if (json_array_size(list) != 2) return status_fail(STATUS_DATA, "%s: fits: must be a list of two", path);
    for (int i = 0; i < 2; i++) {
        const json_t *fit = json_array_get(list, (size_t)i);
        TRY(numbers_read(path, fit, "weights", QUALITY_FEATURES, false, c->fits[i].weights));
        TRY(numbers_read(path, fit, "prices", QUALITY_TARGETS, true, c->fits[i].prices));
        TRY(fit_check(path, &c->fits[i]));
    }
    return STATUS_OK;
}

enum status calibration_from_json(const char *path, const json_t *object, struct calibration *c)
{
    int version;
    *c = (struct calibration){.look_ahead = 0};
    TRY(member_int(object, path, "version", 0, 0, INT32_MAX, &version));
    if (version != CALIBRATION_VERSION)
        return status_fail(STATUS_DATA, "%s: version %d: this program reads version %d: run forepack calibrate again",
                           path, version, CALIBRATION_VERSION);
    TRY(table_check(path, object, "rates", QUALITY_RATES, quality_rates));
    TRY(table_check(path, object, "targets", QUALITY_TARGETS, quality_targets));
    TRY(model_read(path, object, "main", &c->main));
    TRY(model_read(path, object, "speculator", &c->speculator));
    TRY(options_read(path, object, c));
    TRY(numbers_read(path, object, "low", EVIDENCE_VALUES, false, c->low));
    TRY(numbers_read(path, object, "high", EVIDENCE_VALUES, false, c->high));
    TRY(numbers_read(path, object, "mean", QUALITY_VALUES, false, c->mean));
    TRY(numbers_read(path, object, "deviation", QUALITY_VALUES, false, c->deviation));
    return fits_read(path, object, c);
}

enum status calibration_read(const char *dir, struct calibration *c)
{
    char *path = mem_format("%s/%s", dir, CALIBRATION_FILE);
    json_t *object = NULL;
    enum status status = json_file_read(path, CALIBRATION_BYTES_MAX, &object);
    if (status == STATUS_OK) status = calibration_from_json(path, object, c);
    json_decref(object);
    free(path);
    return status;
}

enum status calibration_check(const struct calibration *c, const char *dir, const struct calibration_model *speculator)
{
    const struct calibration_model *made_for = &c->speculator;
    bool same_model = made_for->model == speculator->model;
    if (same_model && made_for->tokenizer == speculator->tokenizer) return STATUS_OK;
    return status_fail(STATUS_DATA,
                       "%s/%s: made for a speculator with %s %016" PRIx64 ", this one has %016" PRIx64
                       ": run forepack calibrate for this pair, or remove the file",
                       dir, CALIBRATION_FILE, same_model ? "tokenizer fingerprint" : "fingerprint",
                       same_model ? made_for->tokenizer : made_for->model,
                       same_model ? speculator->tokenizer : speculator->model);
}
