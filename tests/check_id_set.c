// SPDX-License-Identifier: Apache-2.0
// cli: the set of ids of a batch.
#include <stdio.h>

#include "cli/id_set.h"
#include "tests/suite.h"

enum { IDS = 10000 };

static const char *id_of(int i)
{
    static char id[32];
    snprintf(id, sizeof id, "row %d", i);
    return id;
}

START_TEST(a_set_that_grows_keeps_ids_and_marks)
{
    struct id_set set;
    id_set_init(&set);
    for (int i = 0; i < IDS; i++) {
        ck_assert(id_set_add(&set, id_of(i)));
        if (i % 3 == 0) ck_assert(id_set_mark(&set, id_of(i)));
    }
    for (int i = 0; i < IDS; i++) {
        ck_assert(id_set_has(&set, id_of(i)));
        ck_assert(!id_set_add(&set, id_of(i)));
        ck_assert_int_eq(id_set_is_marked(&set, id_of(i)), i % 3 == 0);
        ck_assert_int_eq(id_set_mark(&set, id_of(i)), i % 3 != 0);
    }
    ck_assert(!id_set_has(&set, "another"));
    ck_assert(!id_set_is_marked(&set, "another"));
    id_set_fini(&set);
}
END_TEST

SUITE("id_set")
{
    TEST(a_set_that_grows_keeps_ids_and_marks);
}
