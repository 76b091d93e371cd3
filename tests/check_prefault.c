// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "kernels/cpu/prefault.h"
#include "tests/suite.h"

enum { PAGE = 4096, PAGES = 1024, REGIONS = 3, ALL = REGIONS * PAGES };

static char *memory;

static void set_up(void)
{
    memory = mmap(NULL, (size_t)ALL * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
}

static void tear_down(void)
{
    munmap(memory, (size_t)ALL * PAGE);
}

static int resident_pages(void)
{
    static unsigned char resident[ALL];
    int n = 0;
    ck_assert_int_eq(mincore(memory, (size_t)ALL * PAGE, resident), 0);
    for (int i = 0; i < ALL; i++)
        n += resident[i] & 1;
    return n;
}

START_TEST(all_pages_of_all_regions_become_resident)
{
    const bool read_only = _i;
    if (read_only) ck_assert_int_eq(mprotect(memory, (size_t)ALL * PAGE, PROT_READ), 0);
    ck_assert_int_eq(resident_pages(), 0);
    const struct prefault_range range = {memory, (size_t)PAGES * PAGE, REGIONS, read_only};
    struct prefault *prefault = prefault_start(&range, 1);
    ck_assert_ptr_nonnull(prefault);
    while (resident_pages() < ALL) // the test's time limit bounds this
        sched_yield();
    prefault_stop(prefault);
}
END_TEST

// Writes of another thread must not be lost, whenever they happen.
START_TEST(writes_at_the_same_time_are_kept)
{
    const struct prefault_range range = {memory, (size_t)PAGES * PAGE, REGIONS, false};
    struct prefault *prefault = prefault_start(&range, 1);
    for (int i = ALL - 1; i >= 0; i--)
        memory[(size_t)i * PAGE] = (char)(i % 127 + 1);
    while (resident_pages() < ALL)
        sched_yield();
    prefault_stop(prefault);
    for (int i = 0; i < ALL; i++)
        ck_assert_int_eq(memory[(size_t)i * PAGE], i % 127 + 1);
}
END_TEST

START_TEST(prefaulting_can_be_stopped_at_any_time)
{
    const struct prefault_range ranges[] = {
        {memory, 100, 1, true}, {memory + PAGE, 0, 0, false}, {memory, (size_t)PAGES * PAGE, REGIONS, false}};
    prefault_stop(prefault_start(ranges, 3));
    prefault_stop(NULL);
}
END_TEST

SUITE("prefault")
{
    FIXTURE(set_up, tear_down);
    LOOP(all_pages_of_all_regions_become_resident, 0, 2);
    TEST(writes_at_the_same_time_are_kept);
    TEST(prefaulting_can_be_stopped_at_any_time);
}
