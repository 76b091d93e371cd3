// SPDX-License-Identifier: Apache-2.0
// Speeds of the devices that a pass can run on: the figures of the data sheet, and the shares of these figures that
// Forepack's kernels reach. device_rates.c has the table of GPUs with the source of each figure.
#pragma once

#include <stdbool.h>

// Types of weights. They are multiplied by arithmetic of this type, or of bf16 if the device has no such arithmetic.
enum rate_type { RATE_BF16, RATE_FP8, RATE_INT4, RATE_INT8, RATE_F32, RATE_BF12, RATE_TYPES };

struct device_rates {
    const char *name;  // as in --gpu; NULL: rates that the user gives
    double memory_mib; // as nvidia-smi reports it
    double read_gbytes_per_s;
    double tflops[RATE_TYPES]; // dense; 0: the device has no arithmetic of this type

    // Links between the ranks of a group. Sums over at most `link_ranks` ranks use the fast link.
    double link_gbytes_per_s; // of one device in one direction; 0: sums take no time
    double link_us;           // time of a sum without its bytes
    int link_ranks;
    double network_gbytes_per_s; // of one device between hosts, in one direction
    double network_us;           // time of a sum over several hosts without its bytes

    // Shares of the figures above that passes reach.
    double weight_share[RATE_TYPES];     // of reading, for weights of a type
    double fp8_many_rows_share;          // of reading, for FP8 weights in passes of more than RATE_FEW_ROWS rows
    double kv_share;                     // of reading, for K and V in decode
    double arithmetic_share[RATE_TYPES]; // of arithmetic, for products with weights
    double attention_share, attention_small_head_share; // of bf16 arithmetic, from head size 128 on and below
    double link_share;                                  // of the links' bandwidth

    double launch_us;              // start and end of a kernel in a pass of few rows
    int layer_kernels[RATE_TYPES]; // kernels of a layer with weights of a type
    double host_us;                // time of the host between two passes
};

enum { RATE_FEW_ROWS = 8 }; // rows up to which kernels read FP8 weights at the full rate

// Choices of --gpu.
#define DEVICE_RATES_CHOICES "h100|h200|b200|a100|l40s"

// Returns the rates of a GPU, or NULL if the table does not have it.
const struct device_rates *device_rates_find(const char *name);

// Returns rates of a device that reaches these figures in all types. Kernels, hosts and sums take no time.
struct device_rates device_rates_of(double tflops, double gbytes_per_s);

// Returns the rates of the data sheet without any losses: a lower bound of the time of a pass.
struct device_rates device_rates_bound(const struct device_rates *rates);
