// SPDX-License-Identifier: Apache-2.0
// Tests net/: turns of connections that open calls without credit, with a clock that the test moves.
#include "lib/net/turns.h"
#include "tests/suite.h"

enum { MAX = 100, ROUND_US = 1000, PER_ROUND = 4, MANY = 10 };

static struct turns t;
static struct turn turns[MANY];
static int64_t now_us;
static int woken, resumed;

static void wake(void *owner)
{
    woken++;
}

static void resume(struct turn *turn)
{
    resumed++;
}

static void setup(void)
{
    now_us = 1000000;
    woken = resumed = 0;
    turns_init(&t, MAX, now_us);
    turns_start(&t, wake, NULL);
    for (int i = 0; i < MANY; i++)
        turns[i] = (struct turn){.resume = NULL};
}

static void teardown(void)
{
    turns_fini(&t);
}

static bool take(int i, int64_t cost)
{
    return turn_take(&t, &turns[i], cost, now_us);
}

START_TEST(a_connection_waits_once_the_bucket_is_empty)
{
    uint64_t waited = turns_waited();
    ck_assert(take(0, 0));
    turn_pay(&t, &turns[0], MAX - 1, now_us);
    ck_assert(take(0, 0));
    ck_assert_int_eq(turns_due_us(&t), INT64_MAX);
    turn_pay(&t, &turns[0], 1, now_us);
    ck_assert_int_eq(woken, 0);
    ck_assert(!take(0, 0));
    ck_assert(!take(0, 0)); // waits already
    ck_assert_int_eq(woken, 1);
    ck_assert_uint_eq(turns_waited() - waited, 1);
    ck_assert_int_eq(turns_due_us(&t), now_us + TURNS_FULL_US / MAX);
    now_us += TURNS_FULL_US / MAX - 1;
    ck_assert_ptr_null(turns_next(&t, now_us));
    now_us++;
    ck_assert_ptr_eq(turns_next(&t, now_us), &turns[0]);
    ck_assert_ptr_null(turns_next(&t, now_us));
}
END_TEST

// A read may cost more than the bucket has. Nobody gets a turn until time has refilled the bucket.
START_TEST(a_debt_is_paid_with_time)
{
    turn_pay(&t, &turns[0], 3 * MAX, now_us);
    ck_assert(!take(1, 0));
    now_us += 2 * TURNS_FULL_US;
    ck_assert_ptr_null(turns_next(&t, now_us));
    now_us += TURNS_FULL_US / MAX;
    ck_assert_ptr_eq(turns_next(&t, now_us), &turns[1]);
    now_us += 60000000; // the bucket holds MAX at most
    ck_assert(take(1, 0));
    turn_pay(&t, &turns[1], MAX, now_us);
    ck_assert(!take(1, 0));
}
END_TEST

START_TEST(who_has_paid_least_comes_first)
{
    turn_pay(&t, &turns[0], 64, now_us);
    turn_pay(&t, &turns[1], MAX, now_us);
    ck_assert(!take(1, 0));
    ck_assert(!take(0, 0));
    ck_assert(!take(2, 5)); // will have paid 5
    ck_assert(!take(3, 4)); // in the same class as 5, and later
    ck_assert(!take(4, 0));
    now_us += 10000000;
    ck_assert_ptr_eq(turns_next(&t, now_us), &turns[4]);
    ck_assert_ptr_eq(turns_next(&t, now_us), &turns[2]);
    ck_assert_ptr_eq(turns_next(&t, now_us), &turns[3]);
    ck_assert_ptr_eq(turns_next(&t, now_us), &turns[1]); // 64 and 100 are in one class, too
    ck_assert_ptr_null(turns_next(&t, now_us));          // a round has four turns
    now_us += ROUND_US;
    ck_assert_ptr_eq(turns_next(&t, now_us), &turns[0]);
}
END_TEST

START_TEST(nobody_overtakes_those_who_wait)
{
    turn_pay(&t, &turns[2], MAX, now_us);
    ck_assert(!take(0, 0));
    now_us += TURNS_FULL_US;
    ck_assert(!take(1, 0)); // though the bucket is full
    ck_assert_ptr_eq(turns_next(&t, now_us), &turns[0]);
    ck_assert_ptr_eq(turns_next(&t, now_us), &turns[1]);
    ck_assert(take(2, 0));
}
END_TEST

START_TEST(a_turn_allows_one_read)
{
    turns[0].resume = resume;
    turn_pay(&t, &turns[1], MAX, now_us);
    ck_assert(!take(0, 0));
    now_us += TURNS_FULL_US / MAX;
    ck_assert_ptr_null(turns_next(&t, now_us));
    ck_assert_int_eq(resumed, 1);
    turn_pay(&t, &turns[1], MAX, now_us);
    ck_assert(take(0, 0));
    ck_assert(!take(0, 0));
}
END_TEST

START_TEST(a_round_resumes_few_connections)
{
    turn_pay(&t, &turns[0], MAX, now_us);
    for (int i = 0; i < MANY; i++) {
        turns[i].resume = resume;
        ck_assert(!take(i, 0));
    }
    now_us += TURNS_FULL_US;
    for (int i = 0; i < 3; i++)
        turns_next(&t, now_us);
    ck_assert_int_eq(resumed, PER_ROUND);
    ck_assert_int_eq(turns_due_us(&t), now_us + ROUND_US);
}
END_TEST

START_TEST(who_leaves_gets_no_turn)
{
    turns[0].resume = turns[1].resume = resume;
    turn_pay(&t, &turns[2], MAX, now_us);
    for (int i = 0; i < 3; i++)
        ck_assert(!take(i, 0));
    ck_assert(turn_waits(&t, &turns[1]));
    turn_leave(&t, &turns[1]);
    turn_leave(&t, &turns[1]);
    ck_assert(!turn_waits(&t, &turns[1]));
    turns_stop(&t); // the others go on
    ck_assert_int_eq(resumed, 1);
    ck_assert_int_eq(t.waiting, 0);
    ck_assert(take(1, 0));
}
END_TEST

START_TEST(who_gets_credit_waits_no_longer)
{
    turns[0].resume = resume;
    turn_pay(&t, &turns[1], MAX, now_us);
    turn_excuse(&t, &turns[0]); // does not wait
    ck_assert_int_eq(resumed, 0);
    ck_assert(!take(0, 0));
    turn_excuse(&t, &turns[0]);
    ck_assert_int_eq(resumed, 1);
    ck_assert_int_eq(t.waiting, 0);
    ck_assert(!take(0, 0)); // it had no turn that it could use later
}
END_TEST

// Others that have paid nothing come again and again.
START_TEST(who_has_paid_most_waits_for_eight_turns_at_most)
{
    enum { FAIR = 8 };
    turn_pay(&t, &turns[0], 2 * MAX, now_us);
    ck_assert(!take(0, 0));
    int n = 0;
    for (struct turn *given = NULL; given != &turns[0]; n++) {
        turns[1] = (struct turn){.resume = NULL};
        ck_assert(!take(1, 0));
        now_us += TURNS_FULL_US;
        given = turns_next(&t, now_us);
        ck_assert_int_lt(n, FAIR + 1);
        if (given == &turns[0]) turn_leave(&t, &turns[1]);
    }
    ck_assert_int_gt(n, 1);
}
END_TEST

START_TEST(what_is_paid_halves_with_time)
{
    turn_pay(&t, &turns[0], MAX, now_us);
    now_us += 3 * TURNS_FULL_US; // 100 becomes 12
    turn_pay(&t, &turns[1], 2 * MAX, now_us);
    ck_assert(!take(0, 0));
    turns[2] = (struct turn){.paid = 16, .paid_us = now_us};
    turns[3] = (struct turn){.paid = 7, .paid_us = now_us};
    ck_assert(!take(2, 0));
    ck_assert(!take(3, 0));
    now_us += 10000000;
    ck_assert_ptr_eq(turns_next(&t, now_us), &turns[3]);
    ck_assert_ptr_eq(turns_next(&t, now_us), &turns[0]);
    ck_assert_ptr_eq(turns_next(&t, now_us), &turns[2]);
}
END_TEST

SUITE("turns")
{
    TCASE("turns");
    FIXTURE(setup, teardown);
    TEST(a_connection_waits_once_the_bucket_is_empty);
    TEST(a_debt_is_paid_with_time);
    TEST(who_has_paid_least_comes_first);
    TEST(nobody_overtakes_those_who_wait);
    TEST(a_turn_allows_one_read);
    TEST(a_round_resumes_few_connections);
    TEST(who_leaves_gets_no_turn);
    TEST(who_gets_credit_waits_no_longer);
    TEST(who_has_paid_most_waits_for_eight_turns_at_most);
    TEST(what_is_paid_halves_with_time);
}
