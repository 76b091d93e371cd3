// SPDX-License-Identifier: Apache-2.0
#include "router/core/histogram.h"

// clang-format off
const struct histogram_scale histogram_request_us = {
    "request", 1e-6, 31,
    {1000,      1500,      2500,      4000,      6500,
     10000,     15000,     25000,     40000,     65000,
     100000,    150000,    250000,    400000,    650000,
     1000000,   1500000,   2500000,   4000000,   6500000,
     10000000,  15000000,  25000000,  40000000,  65000000,
     100000000, 150000000, 250000000, 400000000, 650000000,
     1000000000}};

const struct histogram_scale histogram_token_us = {
    "token", 1e-6, 15,
    {1000, 2000, 3000, 5000, 7500, 10000, 15000, 20000, 30000, 50000, 75000, 100000, 200000, 500000, 1000000}};

const struct histogram_scale histogram_plan_us = {
    "plan", 1e-6, 15,
    {10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000}};

const struct histogram_scale histogram_share_ppm = {
    "share", 1e-6, 15,
    {50000, 100000, 150000, 200000, 250000, 300000, 400000, 500000, 600000, 700000, 800000, 900000, 950000, 990000,
     1000000}};

const struct histogram_scale histogram_deviation_ppm = {
    "deviation", 1e-6, 31,
    {400000,  600000,  750000,  820000,  870000,  900000,  920000,  940000,  955000,  970000,  980000,
     990000,  1000000, 1010000, 1020000, 1030000, 1045000, 1060000, 1080000, 1100000, 1130000, 1170000,
     1220000, 1300000, 1400000, 1600000, 2000000, 2500000, 3200000, 5000000, 8000000}};
// clang-format on

uint64_t histogram_count(const struct histogram *h)
{
    uint64_t count = 0;
    for (int i = 0; i <= h->scale->n; i++)
        count += h->counts[i];
    return count;
}
