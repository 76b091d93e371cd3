// SPDX-License-Identifier: Apache-2.0
// kernels/gpu_health: counters, fatal Xids, and throttling, with a clock that the test moves.
#include <stdlib.h>
#include <string.h>

#include "kernels/gpu_health.h"
#include "tests/suite.h"

enum { SECOND_US = 1000000, START_US = 7 * SECOND_US };

static struct gpu_limits limits;
static struct gpu_health health;
static int64_t now_us;

static void setup(void)
{
    limits = (struct gpu_limits){.throttle_us = 60 * SECOND_US};
    ck_assert_int_eq(gpu_fatal_xids_parse(GPU_FATAL_XIDS_DEFAULT, &limits), STATUS_OK);
    gpu_health_init(&health, "0000:65:00.0", &limits);
    now_us = START_US;
}

static const struct gpu_report *add(const struct gpu_sample *sample)
{
    gpu_health_add(&health, sample, now_us);
    return &health.report;
}

static const struct gpu_report *add_xid(uint32_t xid)
{
    return add(&(struct gpu_sample){.n_xids = 1, .xids = {xid}});
}

// Adds one sample per second, each throttled for this reason.
static const struct gpu_report *throttle(int seconds, enum gpu_throttle reason)
{
    for (int i = 0; i < seconds; i++, now_us += SECOND_US)
        add(&(struct gpu_sample){.has_throttle = true, .throttle = 1U << reason});
    return &health.report;
}

static const struct gpu_report *relax(int seconds)
{
    for (int i = 0; i < seconds; i++, now_us += SECOND_US)
        add(&(struct gpu_sample){.has_throttle = true});
    return &health.report;
}

#define ck_healthy(report)       ck_assert_str_eq((report)->trouble, "")
#define ck_trouble(report, word) ck_assert_msg(strstr((report)->trouble, word) != NULL, "'%s'", (report)->trouble)

START_TEST(values_are_those_of_the_last_sample)
{
    ck_assert(!health.report.known);
    add(&(struct gpu_sample){.has_temperature = true,
                             .has_memory = true,
                             .has_ecc = true,
                             .temperature_celsius = 61,
                             .memory_used_bytes = 3,
                             .memory_total_bytes = 9,
                             .ecc_corrected = 4,
                             .ecc_uncorrected = 1});
    const struct gpu_report *report = add(&(struct gpu_sample){.has_temperature = true, .temperature_celsius = 62});
    ck_assert(report->known);
    ck_assert(report->has_temperature);
    ck_assert(!report->has_memory);
    ck_assert_uint_eq(report->temperature_celsius, 62);
    ck_assert(report->has_ecc); // a counter stays
    ck_assert_uint_eq(report->ecc_corrected, 4);
    ck_assert_uint_eq(report->ecc_uncorrected, 1);
    ck_assert_str_eq(report->address, "0000:65:00.0");
    ck_healthy(report);
}
END_TEST

START_TEST(a_lost_gpu_stays_lost)
{
    ck_trouble(add(&(struct gpu_sample){.state = GPU_LOST}), "lost");
    ck_trouble(add(&(struct gpu_sample){.state = GPU_PRESENT}), "lost");
}
END_TEST

START_TEST(a_gpu_that_needs_a_reset_is_in_trouble)
{
    ck_trouble(add(&(struct gpu_sample){.state = GPU_NEEDS_RESET}), "reset");
}
END_TEST

START_TEST(fatal_xids_are_trouble_and_others_are_counted)
{
    ck_healthy(add_xid(31));
    ck_healthy(add_xid(63));
    ck_assert_uint_eq(health.report.xid_errors, 2);
    ck_assert_uint_eq(health.report.last_xid, 63);
    ck_trouble(add_xid(79), "Xid 79: the GPU has fallen off the bus");
    ck_trouble(add_xid(48), "Xid 79"); // the first one is the cause
    ck_assert_uint_eq(health.report.xid_errors, 4);
    ck_assert_uint_eq(health.report.last_xid, 48);
    add(&(struct gpu_sample){.n_xids = 3, .xids = {45, 45, 43}});
    ck_assert_uint_eq(health.report.xid_errors, 7);
    ck_assert_uint_eq(health.report.last_xid, 43);
}
END_TEST

START_TEST(each_reason_is_counted_by_the_time_between_samples)
{
    throttle(1, GPU_THROTTLE_HW_THERMAL); // the first sample: the time before is unknown
    ck_assert_uint_eq(health.report.throttled_us[GPU_THROTTLE_HW_THERMAL], 0);
    throttle(3, GPU_THROTTLE_HW_THERMAL);
    throttle(2, GPU_THROTTLE_SW_POWER_CAP);
    relax(4);
    ck_assert_uint_eq(health.report.throttled_us[GPU_THROTTLE_HW_THERMAL], 3 * SECOND_US);
    ck_assert_uint_eq(health.report.throttled_us[GPU_THROTTLE_SW_POWER_CAP], 2 * SECOND_US);
    ck_assert_uint_eq(health.report.throttled_us[GPU_THROTTLE_HW_SLOWDOWN], 0);
    now_us += 1000LL * SECOND_US; // NVML was blocked
    throttle(1, GPU_THROTTLE_SW_THERMAL);
    ck_assert_uint_eq(health.report.throttled_us[GPU_THROTTLE_SW_THERMAL], GPU_GAP_MAX_US);
}
END_TEST

START_TEST(hardware_throttling_for_too_long_is_trouble)
{
    const enum gpu_throttle hardware[] = {GPU_THROTTLE_HW_SLOWDOWN, GPU_THROTTLE_HW_THERMAL,
                                          GPU_THROTTLE_HW_POWER_BRAKE};
    for (int i = 0; i < 3; i++) {
        setup();
        ck_healthy(throttle(60, hardware[i])); // the first sample has no time
        ck_trouble(throttle(1, hardware[i]), "throttled the GPU for 60 s");
    }
}
END_TEST

START_TEST(the_drivers_own_throttling_is_no_trouble)
{
    ck_healthy(throttle(1000, GPU_THROTTLE_SW_THERMAL));
    ck_healthy(throttle(1000, GPU_THROTTLE_SW_POWER_CAP));
}
END_TEST

START_TEST(repeated_throttling_is_trouble_and_rare_throttling_is_not)
{
    relax(1);
    for (int i = 0; i < 100; i++) {
        throttle(3, GPU_THROTTLE_HW_THERMAL);
        ck_healthy(relax(3));
    }
    int rounds = 0;
    for (; !*health.report.trouble && rounds < 100; rounds++) {
        throttle(3, GPU_THROTTLE_HW_THERMAL);
        relax(2);
    }
    ck_assert_int_ge(rounds, 57); // 1 s a round, and 3 s within the last one
    ck_assert_int_le(rounds, 60);
}
END_TEST

START_TEST(a_gpu_that_has_cooled_is_healthy_again)
{
    throttle(1000, GPU_THROTTLE_HW_THERMAL); // time beyond the limit does not count
    ck_trouble(relax(59), "throttled");
    ck_healthy(relax(2));
}
END_TEST

START_TEST(time_without_throttling_is_no_credit)
{
    relax(1000);
    ck_trouble(throttle(61, GPU_THROTTLE_HW_THERMAL), "throttled");
}
END_TEST

START_TEST(without_a_limit_no_throttling_is_trouble)
{
    limits.throttle_us = 0;
    gpu_health_init(&health, "0000:65:00.0", &limits);
    ck_healthy(throttle(1000, GPU_THROTTLE_HW_THERMAL));
    ck_assert_uint_eq(health.report.throttled_us[GPU_THROTTLE_HW_THERMAL], 999LL * SECOND_US);
}
END_TEST

START_TEST(lists_of_xids_are_read_or_refused)
{
    ck_assert_int_eq(limits.n_fatal_xids, 11);
    ck_assert_int_eq(gpu_fatal_xids_parse("48", &limits), STATUS_OK);
    ck_assert_int_eq(limits.n_fatal_xids, 1);
    ck_assert_int_eq(limits.fatal_xids[0], 48);
    ck_assert_int_eq(gpu_fatal_xids_parse("1,65535", &limits), STATUS_OK);
    ck_assert_int_eq(limits.n_fatal_xids, 2);
    ck_assert_int_eq(limits.fatal_xids[1], 65535);
    ck_assert_int_eq(limits.throttle_us, 60 * SECOND_US); // only the list has changed
    static const char *const wrong[] = {"",
                                        ",",
                                        "48,",
                                        ",48",
                                        "48,,79",
                                        "0",
                                        "65536",
                                        "-1",
                                        "48 79",
                                        "x",
                                        "48x",
                                        "99999999999999999999",
                                        "none,48",
                                        "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,"
                                        "29,30,31,32,33"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ck_assert_msg(gpu_fatal_xids_parse(wrong[i], &limits) == STATUS_INVALID, "'%s'", wrong[i]);
        ck_assert_int_eq(limits.n_fatal_xids, 2); // unchanged
    }
    ck_assert_int_eq(gpu_fatal_xids_parse("none", &limits), STATUS_OK);
    ck_assert_int_eq(limits.n_fatal_xids, 0);
    gpu_health_init(&health, "", &limits);
    ck_healthy(add_xid(79));
}
END_TEST

SUITE("gpu_health")
{
    FIXTURE(setup, NULL);
    TEST(values_are_those_of_the_last_sample);
    TEST(a_lost_gpu_stays_lost);
    TEST(a_gpu_that_needs_a_reset_is_in_trouble);
    TEST(fatal_xids_are_trouble_and_others_are_counted);
    TEST(each_reason_is_counted_by_the_time_between_samples);
    TEST(hardware_throttling_for_too_long_is_trouble);
    TEST(the_drivers_own_throttling_is_no_trouble);
    TEST(repeated_throttling_is_trouble_and_rare_throttling_is_not);
    TEST(a_gpu_that_has_cooled_is_healthy_again);
    TEST(time_without_throttling_is_no_credit);
    TEST(without_a_limit_no_throttling_is_trouble);
    TEST(lists_of_xids_are_read_or_refused);
}
