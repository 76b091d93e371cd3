// SPDX-License-Identifier: Apache-2.0
// Sources. Memory: nvidia-smi. Bandwidth, dense arithmetic and links: NVIDIA's data sheets and product pages of H100
// SXM, H200 SXM, HGX B200, A100 80GB SXM and L40S; sparse figures are halved. Links are half of the total of both
// directions. L40S has no NVLink: its link is PCIe 4.0 x16.
//
// Shares were fitted to the measurements of one H100 in docs/gpus.md, and hold for the other GPUs by assumption. Sums
// over ranks were not measured: NCCL reaches 370 of 450 GB/s on H100 (github.com/NVIDIA/nccl-tests/issues/212), small
// sums take 10 to 12 us on 8 H100 (github.com/sgl-project/sglang/pull/2904) and 47 us over two hosts
// (github.com/NVIDIA/nccl/issues/1244). Networks are 400 Gbit/s for each GPU, 200 for A100 and L40S.
#include "engine/model/device_rates.h"

#include <string.h>

#define HOPPER_SHARES                                                                                                  \
    .weight_share = {0.83, 0.83, 0.60, 0.83, 0.83, 0.83}, .fp8_many_rows_share = 0.60, .kv_share = 0.63,               \
    .arithmetic_share = {0.60, 0.41, 0.60, 0.60, 0.60, 0.60}, .attention_share = 0.56,                                 \
    .attention_small_head_share = 0.41, .link_share = 0.82, .launch_us = 3.5, .layer_kernels = {7, 9, 7, 7, 7, 7},     \
    .host_us = 40

static const struct device_rates gpus[] = {
    {.name = "h100",
     .memory_mib = 81559,
     .read_gbytes_per_s = 3350,
     .tflops = {989, 1979},
     .link_gbytes_per_s = 450,
     .link_us = 12,
     .link_ranks = 8,
     .network_gbytes_per_s = 50,
     .network_us = 47,
     HOPPER_SHARES},
    {.name = "h200",
     .memory_mib = 143771,
     .read_gbytes_per_s = 4800,
     .tflops = {989, 1979},
     .link_gbytes_per_s = 450,
     .link_us = 12,
     .link_ranks = 8,
     .network_gbytes_per_s = 50,
     .network_us = 47,
     HOPPER_SHARES},
    {.name = "b200",
     .memory_mib = 183359,
     .read_gbytes_per_s = 8000,
     .tflops = {2250, 4500},
     .link_gbytes_per_s = 900,
     .link_us = 12,
     .link_ranks = 8,
     .network_gbytes_per_s = 50,
     .network_us = 47,
     HOPPER_SHARES},
    {.name = "a100",
     .memory_mib = 81920,
     .read_gbytes_per_s = 2039,
     .tflops = {312, 0},
     .link_gbytes_per_s = 300,
     .link_us = 12,
     .link_ranks = 8,
     .network_gbytes_per_s = 25,
     .network_us = 47,
     HOPPER_SHARES},
    {.name = "l40s",
     .memory_mib = 46068,
     .read_gbytes_per_s = 864,
     .tflops = {362, 733},
     .link_gbytes_per_s = 32,
     .link_us = 30,
     .link_ranks = 8,
     .network_gbytes_per_s = 25,
     .network_us = 60,
     HOPPER_SHARES},
};

const struct device_rates *device_rates_find(const char *name)
{
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++)
        if (strcmp(gpus[i].name, name) == 0) return &gpus[i];
    return NULL;
}

static void losses_remove(struct device_rates *rates)
{
    for (int type = 0; type < RATE_TYPES; type++) {
        rates->weight_share[type] = rates->arithmetic_share[type] = 1;
        rates->layer_kernels[type] = 0;
    }
    rates->fp8_many_rows_share = rates->kv_share = rates->link_share = 1;
    rates->attention_share = rates->attention_small_head_share = 1;
    rates->link_us = rates->network_us = rates->launch_us = rates->host_us = 0;
}

struct device_rates device_rates_of(double tflops, double gbytes_per_s)
{
    struct device_rates rates = {
        .read_gbytes_per_s = gbytes_per_s, .tflops = {tflops, tflops, tflops, tflops, tflops, tflops}, .link_ranks = 1};
    losses_remove(&rates);
    return rates;
}

struct device_rates device_rates_bound(const struct device_rates *rates)
{
    struct device_rates bound = *rates;
    losses_remove(&bound);
    return bound;
}
