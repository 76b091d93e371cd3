// SPDX-License-Identifier: Apache-2.0
// net/: which addresses other machines can reach.
#include <check.h>
#include <stdlib.h>

#include "net/rpc.h"

static const struct {
    const char *address;
    enum status status;
    bool loopback;
} addresses[] = {
    {"127.0.0.1:50051", STATUS_OK, true},
    {"127.9.8.7:0", STATUS_OK, true},
    {"localhost:50051", STATUS_OK, true},
    {"[::1]:50051", STATUS_OK, true},
    {"[::ffff:127.0.0.1]:1", STATUS_OK, true},
    {"[::ffff:10.0.0.1]:1", STATUS_OK, false},
    {"0.0.0.0:50051", STATUS_OK, false},
    {"[::]:50051", STATUS_OK, false},
    {":50051", STATUS_OK, false},
    {"10.1.2.3:50051", STATUS_OK, false},
    {"128.0.0.1:50051", STATUS_OK, false},
    {"[fe80::1]:50051", STATUS_OK, false},
    {"127.0.0.1", STATUS_INVALID, false},
    {"127.0.0.1:port", STATUS_INVALID, false},
    {"127.0.0.1:65536", STATUS_INVALID, false},
};

START_TEST(loopback_addresses_are_those_that_no_other_machine_reaches)
{
    bool loopback = false;
    ck_assert_msg(rpc_address_is_loopback(addresses[_i].address, &loopback) == addresses[_i].status, "%s: %s",
                  addresses[_i].address, status_message());
    ck_assert_msg(loopback == addresses[_i].loopback, "%s", addresses[_i].address);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("address");
    TCase *tcase = tcase_create("address");
    tcase_add_loop_test(tcase, loopback_addresses_are_those_that_no_other_machine_reaches, 0,
                        sizeof addresses / sizeof addresses[0]);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
