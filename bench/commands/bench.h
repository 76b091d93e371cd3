// SPDX-License-Identifier: Apache-2.0
// What the measurements of `forepack bench` share: lists of numbers on the command line, and the way a result is told.
#pragma once

#include <jansson.h>

#include "bench/rounds.h"
#include "model/model.h"

int bench_engine(int argc, char **argv);
int bench_kernels(int argc, char **argv);
int bench_perplexity(int argc, char **argv);
int bench_serve(int argc, char **argv);
int bench_quality(int argc, char **argv);
int bench_prepack(int argc, char **argv);
int bench_router(int argc, char **argv);
int bench_plan(int argc, char **argv);
int bench_generate(int argc, char **argv);

// Which model: fields model, shape, load, backend and dtype of the command's options.
// clang-format off
#define BENCH_MODEL_OPTION_ROWS(o)                                                                                     \
    {.name = "model", .type = OPTION_STRING, .value = &(o).model, .help = "model directory"},                          \
    {.name = "shape", .type = OPTION_STRING, .value = &(o).shape,                                                      \
     .help = "instead of --model: a config.json, run with random weights of that shape"},                              \
    {.name = "load", .type = OPTION_CHOICE, .value = &(o).load, .default_text = "auto", .choices = "auto|dummy",       \
     .help = "dummy: random weights also with --model, which then needs no checkpoint"},                               \
    {.name = "backend", .type = OPTION_CHOICE, .value = &(o).backend, .default_text = "auto",                          \
     .choices = MODEL_BACKENDS, .help = "what computes; auto is a GPU for each rank, or else the CPU"},                \
    {.name = "dtype", .type = OPTION_CHOICE, .value = &(o).dtype, .default_text = "auto", .choices = MODEL_DTYPES,     \
     .help = "type of the weights; auto is the checkpoint's"}
// clang-format on

enum { BENCH_COUNTS_MAX = 32 };

struct bench_counts {
    int n, count[BENCH_COUNTS_MAX];
};

// "1,8,32": whole numbers from `min` to `max`; `flag` is for the sentence of a failure.
enum status bench_counts_parse(const char *flag, const char *text, int min, int max, struct bench_counts *counts);

// The same of real numbers, into value [BENCH_COUNTS_MAX].
enum status bench_reals_parse(const char *flag, const char *text, double min, double max, double *value, int *n_p);

// A JSON number, null for NAN.
json_t *bench_number(double value);
// Adds "peak_gflops", "dram_gbytes_per_s" and "instruction", which are the means, and all readings as "probes":
// [[gflops, gbytes_per_s], ...].
void bench_add_readings(json_t *row, const struct rounds_readings *readings);
// Prints the rows as a list, one per line.
void bench_print_json(const json_t *rows);

// The type of the probe for a dtype by name: "f32", "bf16", else int8.
enum probe_type bench_probe_type(const char *dtype);
