// SPDX-License-Identifier: Apache-2.0
// Shared by the measurements of `forepack bench`: option rows and JSON output.
#pragma once

#include <jansson.h>

#include "bench/rounds.h"
#include "bench/row.h"
#include "engine/model/model.h"
#include "lib/base/number_list.h"

int bench_engine(int argc, char **argv);
int bench_kernels(int argc, char **argv);
int bench_perplexity(int argc, char **argv);
int bench_serve(int argc, char **argv);
int bench_quality(int argc, char **argv);
int bench_documents(int argc, char **argv);
int bench_prepack(int argc, char **argv);
int bench_router(int argc, char **argv);
int bench_router_grpc(int argc, char **argv);
int bench_router_http(int argc, char **argv);
int bench_router_page(int argc, char **argv);
int bench_hostile(int argc, char **argv);
int bench_http(int argc, char **argv);
int bench_sampling(int argc, char **argv);
int bench_template(int argc, char **argv);
int bench_tokenizer(int argc, char **argv);
int bench_grammar(int argc, char **argv);

double thread_cpu_us(void); // CPU time of the calling thread

// Option rows that select the model; `o` has the fields model, shape, load, backend and dtype.
// clang-format off
#define BENCH_MODEL_OPTION_ROWS(o)                                                                                     \
    {.name = "model", .type = OPTION_STRING, .value = &(o).model, .help = "model directory"},                          \
    {.name = "shape", .type = OPTION_STRING, .value = &(o).shape,                                                      \
     .help = "instead of --model: a config.json; the weights are random"},                               \
    {.name = "load", .type = OPTION_CHOICE, .value = &(o).load, .default_text = "auto", .choices = "auto|dummy",       \
     .help = "dummy: random weights with --model too, so its directory needs no checkpoint"},                     \
    {.name = "backend", .type = OPTION_CHOICE, .value = &(o).backend, .default_text = "auto",                          \
     .choices = MODEL_BACKENDS, .help = "auto is cuda if there is a GPU for each rank, else cpu"},                     \
    {.name = "dtype", .type = OPTION_CHOICE, .value = &(o).dtype, .default_text = "auto", .choices = MODEL_DTYPES,     \
     .help = "type of the weights; auto: as in the checkpoint"}

// Option rows for timing in rounds; `o` has the fields min_ms and probe_ms.
#define BENCH_TIMING_OPTION_ROWS(o)                                                                                    \
    {.name = "min-ms", .type = OPTION_INT, .value = &(o).min_ms, .default_text = "300", .max = 1e6, .unit = "ms",      \
     .help = "a round repeats a run until this much time has passed"},                                                 \
    {.name = "probe-ms", .type = OPTION_INT, .value = &(o).probe_ms, .default_text = "500", .max = 1e6, .unit = "ms",  \
     .help = "length of the machine probe's two parts, arithmetic and memory, around each round; 0 is no probe"}
// clang-format on

// Returns the share as a table shows it, such as "81.5%c", or "-" without a probe. Uses `text` [BENCH_SHARE_BYTES].
enum { BENCH_SHARE_BYTES = 32 };
const char *bench_share_text(const struct measurement *m, char *text);
#define BENCH_SHARE_LEGEND                                                                                             \
    "share: time needed at the machine probe's rates, limited by arithmetic (c) or memory (m), over the time taken"
// Adds "share" and "limit": "compute", "memory" or, without a probe, "unknown".
void bench_add_share(json_t *row, const struct measurement *m);
// Adds the means "peak_gflops", "dram_gbytes_per_s" and "instruction", and all readings as "probes":
// [[gflops, gbytes_per_s], ...].
void bench_add_readings(json_t *row, const struct rounds_readings *readings);
// Prints the rows as a JSON list, one row per line.
void bench_print_json(const json_t *rows);

// Returns the bytes of one weight of a dtype by name: "f32", "bf16", "bf12", "int4-g128", else int8.
double bench_weight_bytes(const char *dtype);
// Returns the machine probe's number type for the dtype.
enum probe_type bench_probe_type(const char *dtype);
