// SPDX-License-Identifier: Apache-2.0
// kernels/gpu_monitor and kernels/nvml on the library of fake_nvml.c. The argument says which libnvidia-ml.so.1 is
// installed: fake, lacks (without some functions) or missing.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/gpu_monitor.h"
#include "tests/gpu_files.h"
#include "tests/suite.h"

#define ADDRESS "0000:65:00.0"

static struct gpu_limits limits = {.n_fatal_xids = 1, .fatal_xids = {79}};
static struct gpu_report report;

static struct gpu_monitor *start(void)
{
    return gpu_monitor_start(ADDRESS, &limits, 1);
}

// Reads reports until the condition holds. The test's time limit bounds it.
#define AWAIT(monitor, condition)                                                                                      \
    do {                                                                                                               \
        gpu_monitor_read(monitor, &report);                                                                            \
        usleep(1000);                                                                                                  \
    } while (!(condition))

START_TEST(values_and_their_changes_are_read)
{
    gpu_file_write(ADDRESS, "temperature 61\ntotal 1000\nused 400\nthrottle 104\ncorrected 5\nuncorrected 2\n");
    struct gpu_monitor *monitor = start();
    AWAIT(monitor, report.known && report.throttled_us[GPU_THROTTLE_HW_THERMAL]);
    ck_assert(report.has_temperature);
    ck_assert(report.has_memory);
    ck_assert(report.has_ecc);
    ck_assert(report.has_throttle);
    ck_assert_uint_eq(report.temperature_celsius, 61);
    ck_assert_uint_eq(report.memory_total_bytes, 1000);
    ck_assert_uint_eq(report.memory_used_bytes, 400);
    ck_assert_uint_eq(report.ecc_corrected, 5);
    ck_assert_uint_eq(report.ecc_uncorrected, 2);
    ck_assert_uint_gt(report.throttled_us[GPU_THROTTLE_HW_SLOWDOWN], 0);
    ck_assert_uint_gt(report.throttled_us[GPU_THROTTLE_SW_THERMAL], 0);
    ck_assert_uint_eq(report.throttled_us[GPU_THROTTLE_SW_POWER_CAP], 0);
    ck_assert_uint_eq(report.throttled_us[GPU_THROTTLE_HW_POWER_BRAKE], 0);
    ck_assert_str_eq(report.address, ADDRESS);
    gpu_file_write(ADDRESS, "temperature 70\n");
    AWAIT(monitor, report.temperature_celsius == 70 && !report.has_memory);
    ck_assert_uint_eq(report.ecc_corrected, 5);
    ck_assert_str_eq(report.trouble, "");
    gpu_monitor_stop(monitor);
    ck_assert(gpu_file_exists("shut")); // the thread has ended
}
END_TEST

START_TEST(xids_are_counted_once)
{
    gpu_file_write(ADDRESS, "temperature 50\nxid 31\nxid 63\n");
    struct gpu_monitor *monitor = start();
    AWAIT(monitor, report.xid_errors == 2);
    ck_assert_str_eq(report.trouble, "");
    gpu_file_write(ADDRESS, "temperature 51\nxid 31\nxid 63\nxid 79\n");
    AWAIT(monitor, report.temperature_celsius == 51 && report.xid_errors == 3);
    ck_assert_uint_eq(report.last_xid, 79);
    ck_assert_msg(strstr(report.trouble, "Xid 79") != NULL, "%s", report.trouble);
    gpu_file_write(ADDRESS, "temperature 52\nxid 31\nxid 63\nxid 79\n");
    AWAIT(monitor, report.temperature_celsius == 52);
    ck_assert_uint_eq(report.xid_errors, 3);
    gpu_monitor_stop(monitor);
}
END_TEST

START_TEST(a_gpu_without_xids_has_the_other_values)
{
    gpu_file_write(ADDRESS, "no_events 1\ntemperature 50\nxid 79\n");
    struct gpu_monitor *monitor = start();
    AWAIT(monitor, report.known);
    ck_assert_uint_eq(report.temperature_celsius, 50);
    gpu_file_write(ADDRESS, "temperature 51\nxid 79\n");
    AWAIT(monitor, report.temperature_celsius == 51);
    ck_assert_uint_eq(report.xid_errors, 0);
    gpu_monitor_stop(monitor);
}
END_TEST

START_TEST(impossible_values_are_left_out)
{
    gpu_file_write(ADDRESS, "temperature 4294967295\ntotal 10\nused 11\ncorrected 3\n");
    struct gpu_monitor *monitor = start();
    AWAIT(monitor, report.known);
    ck_assert(!report.has_temperature);
    ck_assert(!report.has_memory);
    ck_assert(!report.has_ecc);
    ck_assert(!report.has_throttle);
    gpu_monitor_stop(monitor);
}
END_TEST

START_TEST(a_lost_gpu_and_one_that_needs_a_reset_are_trouble)
{
    static const struct {
        const char *file, *word;
    } cases[] = {{"error 15\n", "lost"}, {"error 16\n", "needs a reset"}};
    for (int i = 0; i < 2; i++) {
        gpu_file_write(ADDRESS, "temperature 50\n");
        struct gpu_monitor *monitor = start();
        AWAIT(monitor, report.known);
        ck_assert_str_eq(report.trouble, "");
        gpu_file_write(ADDRESS, cases[i].file);
        AWAIT(monitor, *report.trouble);
        ck_assert_msg(strstr(report.trouble, cases[i].word) != NULL, "%s", report.trouble);
        ck_assert(!report.has_temperature);
        gpu_monitor_stop(monitor);
    }
}
END_TEST

START_TEST(other_errors_are_no_trouble)
{
    gpu_file_write(ADDRESS, "error 999\n");
    struct gpu_monitor *monitor = start();
    AWAIT(monitor, report.known);
    ck_assert(!report.has_temperature);
    ck_assert_str_eq(report.trouble, "");
    gpu_monitor_stop(monitor);
}
END_TEST

// Readers continue, the numbers count as unknown, and stopping does not wait for the thread.
START_TEST(an_nvml_that_hangs_delays_nobody)
{
    gpu_file_write(ADDRESS, "temperature 50\n");
    struct gpu_monitor *monitor = start();
    AWAIT(monitor, report.known);
    gpu_file_write(ADDRESS, "hang 1\n");
    AWAIT(monitor, !report.known);
    ck_assert_str_eq(report.trouble, "");
    gpu_monitor_stop(monitor);
    ck_assert(!gpu_file_exists("shut")); // its thread still hangs
    gpu_file_write(ADDRESS, "temperature 50\n");
    while (!gpu_file_exists("shut"))
        usleep(1000);
}
END_TEST

START_TEST(a_monitor_stops_while_it_naps)
{
    gpu_file_write(ADDRESS, "temperature 50\n");
    struct gpu_monitor *monitor = gpu_monitor_start(ADDRESS, &limits, 3600 * 1000);
    AWAIT(monitor, report.known);
    gpu_monitor_stop(monitor);
    ck_assert(gpu_file_exists("shut"));
}
END_TEST

// Checks that the report stays empty and the log says why.
static void check_unavailable(const char *reason)
{
    char words[2048] = "";
    int fds[2];
    ck_assert_int_eq(pipe(fds), 0);
    ck_assert_int_ge(dup2(fds[1], STDERR_FILENO), 0);
    struct gpu_monitor *monitor = start();
    ssize_t n = read(fds[0], words, sizeof words - 1); // one line, from one write
    ck_assert_int_gt(n, 0);
    ck_assert_msg(strstr(words, "gpu_health_unavailable bus_id=0000:65:00.0 reason=") != NULL, "%s", words);
    ck_assert_msg(strstr(words, reason) != NULL, "%s", words);
    ck_assert_ptr_eq(strchr(words, '\n'), words + n - 1);
    gpu_monitor_read(monitor, &report);
    ck_assert(!report.known);
    ck_assert(!*report.trouble);
    gpu_monitor_stop(monitor);
}

START_TEST(a_gpu_that_nvml_does_not_know_is_one_line_of_the_log)
{
    gpu_file_write("0000:66:00.0", "temperature 50\n");
    check_unavailable("no such GPU: Not Found");
}
END_TEST

START_TEST(a_driver_that_is_not_loaded_is_one_line_of_the_log)
{
    unsetenv("FAKE_NVML");
    check_unavailable("Driver Not Loaded");
}
END_TEST

START_TEST(a_library_without_a_function_is_one_line_of_the_log)
{
    gpu_file_write(ADDRESS, "temperature 50\n");
    check_unavailable("libnvidia-ml.so.1 has no function nvmlEventSetWait_v2");
}
END_TEST

START_TEST(a_missing_library_is_one_line_of_the_log)
{
    check_unavailable("libnvidia-ml.so.1: cannot open shared object file");
}
END_TEST

SUITE("gpu_monitor")
{
    const char *library = argc > 1 ? argv[1] : "fake";
    TIMEOUT(300);
    FIXTURE(gpu_files_open, gpu_files_close);
    if (strcmp(library, "lacks") == 0) {
        TEST(a_library_without_a_function_is_one_line_of_the_log);
    } else if (strcmp(library, "missing") == 0) {
        TEST(a_missing_library_is_one_line_of_the_log);
    } else {
        TEST(values_and_their_changes_are_read);
        TEST(xids_are_counted_once);
        TEST(a_gpu_without_xids_has_the_other_values);
        TEST(impossible_values_are_left_out);
        TEST(a_lost_gpu_and_one_that_needs_a_reset_are_trouble);
        TEST(other_errors_are_no_trouble);
        TEST(an_nvml_that_hangs_delays_nobody);
        TEST(a_monitor_stops_while_it_naps);
        TEST(a_gpu_that_nvml_does_not_know_is_one_line_of_the_log);
        TEST(a_driver_that_is_not_loaded_is_one_line_of_the_log);
    }
}
