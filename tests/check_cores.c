// SPDX-License-Identifier: Apache-2.0
// Cores of compute pools: lists, topology, limits of cgroups and claims, from files as Linux writes them and from
// hostile ones.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cgroup.h"
#include "lib/base/core_claims.h"
#include "lib/base/cores.h"
#include "lib/base/cpu_limits.h"
#include "lib/base/mem.h"
#include "lib/base/memory_limit.h"
#include "tests/suite.h"

static char root[64], system_folder[128], sockets[128];

static void setup(void)
{
    snprintf(root, sizeof root, "/tmp/check_cores.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
    snprintf(system_folder, sizeof system_folder, "%s/sys/devices/system", root);
    snprintf(sockets, sizeof sockets, "%s/proc/net/unix", root);
    cores_system = system_folder;
    cgroup_root = root;
    core_claims_sockets = sockets;
}

static void teardown(void)
{
    char *remove = mem_format("rm -r %s", root);
    ck_assert_int_eq(system(remove), 0);
    free(remove);
}

// Writes a file under the root, with its folders.
static void put(const char *text, const char *format, ...)
{
    char path[512];
    int used = snprintf(path, sizeof path, "%s", root);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path + used, sizeof path - (size_t)used, format, arguments);
    va_end(arguments);
    for (char *slash = path + used; (slash = strchr(slash + 1, '/'));) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

static void put_number(int value, int core, const char *name)
{
    char text[16];
    snprintf(text, sizeof text, "%d\n", value);
    put(text, "/sys/devices/system/cpu/cpu%d/topology/%s", core, name);
}

enum { CORES = 4, FIRST_THREADS = 2 * CORES, THREADS = 2 * FIRST_THREADS };

// Two sockets of four cores with two threads each, numbered as Linux does: the first threads of all cores, then the
// second ones. A socket is a NUMA node.
static void put_machine(cpu_set_t *all)
{
    CPU_ZERO(all);
    for (int i = 0; i < THREADS; i++) {
        CPU_SET(i, all);
        put_number(i % FIRST_THREADS / CORES, i, "physical_package_id");
        put_number(i % CORES, i, "core_id");
    }
    put("0-3,8-11\n", "/sys/devices/system/node/node0/cpulist");
    put("4-7,12-15\n", "/sys/devices/system/node/node1/cpulist");
    put("0-15\n", "/sys/devices/system/cpu/online");
}

// ---- sets -----------------------------------------------------------------------------------------------------------

START_TEST(lists_are_read_and_written)
{
    static const struct {
        const char *text, *written;
    } lists[] = {{"0", "0"},     {"0-3,8\n", "0-3,8"},       {"3,2,1", "1-3"}, {"7-7", "7"},
                 {"1,1,1", "1"}, {"1022-1023", "1022-1023"}, {"00012", "12"}};
    cpu_set_t cores;
    char text[CORES_TEXT];
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        ck_assert_msg(cores_parse(lists[i].text, &cores), "%s", lists[i].text);
        cores_format(&cores, text);
        ck_assert_str_eq(text, lists[i].written);
    }
}
END_TEST

START_TEST(other_text_is_no_list)
{
    static const char *const lists[] = {"",
                                        "\n",
                                        ",",
                                        "0,",
                                        ",0",
                                        "-1",
                                        "1-",
                                        "3-1",
                                        "0-3-5",
                                        " 0",
                                        "0 ",
                                        "a",
                                        "0x1",
                                        "1024",
                                        "0-1024",
                                        "1:2",
                                        "0\n\n",
                                        "+1",
                                        "--",
                                        "99999999999999999999",
                                        "0-99999999999999999999"};
    cpu_set_t cores, before;
    CPU_ZERO(&cores);
    CPU_SET(5, &cores);
    before = cores;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        ck_assert_msg(!cores_parse(lists[i], &cores), "%s", lists[i]);
        ck_assert(CPU_EQUAL(&cores, &before));
    }
}
END_TEST

START_TEST(a_long_list_is_cut)
{
    cpu_set_t cores;
    char text[CORES_TEXT];
    CPU_ZERO(&cores);
    cores_format(&cores, text);
    ck_assert_str_eq(text, "");
    for (int i = 0; i < CPU_SETSIZE; i += 2)
        CPU_SET(i, &cores);
    cores_format(&cores, text);
    ck_assert_int_lt(strlen(text), CORES_TEXT);
    ck_assert_str_eq(text + strlen(text) - 4, ",...");
}
END_TEST

START_TEST(every_core_goes_to_one_process)
{
    cpu_set_t all, mine, seen;
    CPU_ZERO(&all);
    for (int i = 0; i < 7; i++)
        CPU_SET(3 * i + 1, &all); // 1, 4, ... 19
    ck_assert_int_eq(cores_at(&all, 0), 1);
    ck_assert_int_eq(cores_at(&all, 6), 19);
    for (int processes = 1; processes <= 7; processes++) {
        CPU_ZERO(&seen);
        for (int i = 0; i < processes; i++) {
            ck_assert(cores_share(&all, i, processes, &mine));
            ck_assert_int_ge(CPU_COUNT(&mine), 7 / processes);
            ck_assert_int_le(CPU_COUNT(&mine), 7 / processes + 1);
            cpu_set_t both;
            CPU_AND(&both, &seen, &mine);
            ck_assert_int_eq(CPU_COUNT(&both), 0);
            CPU_OR(&seen, &seen, &mine);
        }
        ck_assert(CPU_EQUAL(&seen, &all));
    }
    ck_assert(!cores_share(&all, 0, 8, &mine));
}
END_TEST

START_TEST(processes_share_cores_socket_by_socket)
{
    cpu_set_t all, mine;
    put_machine(&all);
    for (int i = 0; i < FIRST_THREADS; i++) {
        ck_assert(cores_share(&all, i, FIRST_THREADS, &mine));
        ck_assert_int_eq(CPU_COUNT(&mine), 2);
        ck_assert(CPU_ISSET(i, &mine));
        ck_assert(CPU_ISSET(i + FIRST_THREADS, &mine));
    }
    for (int i = 0; i < 2; i++) { // a socket each
        ck_assert(cores_share(&all, i, 2, &mine));
        for (int core = 0; core < THREADS; core++)
            ck_assert_int_eq(CPU_ISSET(core, &mine) != 0, core % FIRST_THREADS / CORES == i);
    }
}
END_TEST

// ---- choosing -------------------------------------------------------------------------------------------------------

// Chooses n cores of the machine and returns their list. Unlike the list, chosen[0] says which core is the first.
static char *choose(const struct core_load *load, int n, int *chosen, struct cores_choice *choice)
{
    static char text[CORES_TEXT];
    cpu_set_t all, cores;
    put_machine(&all);
    CPU_ZERO(&cores);
    *choice = cores_choose(&all, load, n, chosen);
    for (int i = 0; i < n; i++) {
        ck_assert(!CPU_ISSET(chosen[i], &cores));
        CPU_SET(chosen[i], &cores);
    }
    cores_format(&cores, text);
    return text;
}

START_TEST(an_idle_machine_gives_physical_cores_of_one_node)
{
    static struct core_load load[CPU_SETSIZE];
    struct cores_choice choice;
    int chosen[CPU_SETSIZE];
    ck_assert_str_eq(choose(load, 2, chosen, &choice), "0-1");
    ck_assert(choice.one_node);
    ck_assert(choice.one_thread_per_core);
    ck_assert(!choice.shared);
    ck_assert(!choice.avoided);
    ck_assert_str_eq(choose(load, 4, chosen, &choice), "0-3");
    ck_assert_str_eq(choose(load, 8, chosen, &choice), "0-7"); // no node has as many physical cores
    ck_assert(!choice.one_node);
    ck_assert_str_eq(choose(load, 16, chosen, &choice), "0-15");
    ck_assert(!choice.one_thread_per_core);
}
END_TEST

START_TEST(pools_take_cores_that_others_left)
{
    static struct core_load load[CPU_SETSIZE];
    struct cores_choice choice;
    int chosen[CPU_SETSIZE];
    load[0].alike = load[1].alike = 1;
    ck_assert_str_eq(choose(load, 2, chosen, &choice), "2-3");
    ck_assert(choice.avoided);
    ck_assert(!choice.shared);
    ck_assert_str_eq(choose(load, 3, chosen, &choice), "4-6"); // node 0 has two physical cores left
    for (int i = 2; i < FIRST_THREADS; i++)
        load[i].others = 1;
    ck_assert_str_eq(choose(load, 2, chosen, &choice), "8-9"); // a sibling is better than a core that is in use
    ck_assert(!choice.shared);
}
END_TEST

START_TEST(pools_share_cores_with_other_programs_first)
{
    static struct core_load load[CPU_SETSIZE];
    struct cores_choice choice;
    int chosen[CPU_SETSIZE];
    for (int i = 0; i < THREADS; i++)
        load[i].alike = 1;
    load[5] = load[6] = (struct core_load){.others = 1};
    ck_assert_str_eq(choose(load, 2, chosen, &choice), "5-6");
    ck_assert(choice.shared);
}
END_TEST

START_TEST(first_threads_keep_apart)
{
    static struct core_load load[CPU_SETSIZE];
    struct cores_choice choice;
    int chosen[CPU_SETSIZE];
    load[0].first = load[1].first = 1;
    choose(load, 4, chosen, &choice);
    ck_assert_int_eq(chosen[0], 2);
    ck_assert_int_eq(chosen[1], 3);
    ck_assert_int_eq(chosen[2], 0);
    ck_assert_int_eq(chosen[3], 1);
}
END_TEST

START_TEST(a_machine_that_reports_nothing_has_equal_cores)
{
    static struct core_load load[CPU_SETSIZE];
    cpu_set_t all;
    int chosen[4];
    put("garbage", "/sys/devices/system/cpu/cpu3/topology/core_id");
    put("99999999999999999999", "/sys/devices/system/cpu/cpu4/topology/core_id");
    put("", "/sys/devices/system/cpu/cpu5/topology/physical_package_id");
    put("0-99999\n", "/sys/devices/system/node/node0/cpulist");
    put("4-\n", "/sys/devices/system/node/node1/cpulist");
    CPU_ZERO(&all);
    for (int i = 3; i < 7; i++)
        CPU_SET(i, &all);
    cores_choose(&all, load, 4, chosen);
    int sum = 0;
    for (int i = 0; i < 4; i++)
        sum |= 1 << chosen[i];
    ck_assert_int_eq(sum, 0x78);
}
END_TEST

// ---- limits of cgroups ----------------------------------------------------------------------------------------------

START_TEST(a_quota_is_the_lowest_of_the_cgroup_and_its_ancestors)
{
    ck_assert(cpu_limits_quota() <= 0); // no cgroups
    put("0::/a.slice/b.service\n", "/proc/self/cgroup");
    put("max 100000\n", "/sys/fs/cgroup/a.slice/b.service/cpu.max");
    ck_assert(cpu_limits_quota() <= 0);
    put("150000 100000\n", "/sys/fs/cgroup/a.slice/cpu.max");
    ck_assert_double_eq(cpu_limits_quota(), 1.5);
    put("400000 100000\n", "/sys/fs/cgroup/a.slice/b.service/cpu.max");
    ck_assert_double_eq(cpu_limits_quota(), 1.5);
    put("25000 50000\n", "/sys/fs/cgroup/a.slice/b.service/cpu.max");
    ck_assert_double_eq(cpu_limits_quota(), 0.5);
    ck_assert_int_eq(cpu_limits_threads(1, 1), 1);
}
END_TEST

START_TEST(version_1_has_quotas_too)
{
    put("9:name=systemd:/x\n4:cpu,cpuacct:/pod/c\n0::/\n", "/proc/self/cgroup");
    put("-1\n", "/sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us");
    put("100000\n", "/sys/fs/cgroup/cpu/pod/cpu.cfs_period_us");
    ck_assert(cpu_limits_quota() <= 0);
    put("250000\n", "/sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us");
    ck_assert_double_eq(cpu_limits_quota(), 2.5);
}
END_TEST

static const size_t MIB = 1 << 20;

START_TEST(memory_is_limited_by_the_lowest_of_the_ancestors)
{
    ck_assert_uint_eq(memory_limit_bytes(), 0);
    put("0::/a.slice/b.service\n", "/proc/self/cgroup");
    put("max\n", "/sys/fs/cgroup/a.slice/b.service/memory.max");
    ck_assert_uint_eq(memory_limit_bytes(), 0);
    put("262144000\n", "/sys/fs/cgroup/a.slice/memory.max");
    ck_assert_uint_eq(memory_limit_bytes(), 250 * MIB);
    put("104857600\n", "/sys/fs/cgroup/a.slice/b.service/memory.max");
    ck_assert_uint_eq(memory_limit_bytes(), 100 * MIB);
}
END_TEST

START_TEST(version_1_limits_memory_too)
{
    put("7:memory:/pod/c\n0::/\n", "/proc/self/cgroup");
    put("9223372036854771712\n", "/sys/fs/cgroup/memory/pod/c/memory.limit_in_bytes");
    ck_assert_uint_eq(memory_limit_bytes(), 0);
    put("104857600\n", "/sys/fs/cgroup/memory/pod/memory.limit_in_bytes");
    ck_assert_uint_eq(memory_limit_bytes(), 100 * MIB);
    put("52428800\n", "/sys/fs/cgroup/memory.max"); // both are mounted
    ck_assert_uint_eq(memory_limit_bytes(), 50 * MIB);
}
END_TEST

static const char *const no_limits[] = {"", "\n", "-1\n", "0\n", "many\n", "nan\n", "1e300\n"};

START_TEST(hostile_cgroups_do_not_limit_memory)
{
    put("0::/\n", "/proc/self/cgroup");
    put(no_limits[_i], "/sys/fs/cgroup/memory.max");
    ck_assert_uint_eq(memory_limit_bytes(), 0);
}
END_TEST

START_TEST(used_memory_grows_with_touched_pages)
{
    const size_t before = memory_used_bytes();
    char *pages = mem_alloc(64 * MIB);
    memset(pages, 1, 64 * MIB);
    ck_assert_uint_ge(memory_used_bytes(), before + 60 * MIB);
    free(pages);
}
END_TEST

// A container reads its path on the host, which does not exist in its own tree.
START_TEST(a_container_has_the_quota_of_its_root)
{
    put("0::/system.slice/docker-1.scope\n", "/proc/self/cgroup");
    put("300000 100000\n", "/sys/fs/cgroup/cpu.max");
    ck_assert_double_eq(cpu_limits_quota(), 3);
}
END_TEST

START_TEST(hostile_cgroups_set_no_quota)
{
    static const char *const texts[] = {"",
                                        "\n",
                                        "100000",
                                        "-5 100000",
                                        "100000 0",
                                        "x y",
                                        "1e400 1",
                                        "0 100000",
                                        "nan 100000",
                                        "inf 1",
                                        "100000 -100000",
                                        "1 1e-300",
                                        "99999999999999999999999999 1"};
    put("0::/a\n", "/proc/self/cgroup");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put(texts[i], "/sys/fs/cgroup/a/cpu.max");
        ck_assert_msg(cpu_limits_quota() <= 0, "%s: %g", texts[i], cpu_limits_quota());
    }
    static const char *const groups[] = {"", "0", "0:", "0::", "0::../a\n", "0::/../a\n", "::::\n", "\n\n"};
    put("150000 100000\n", "/sys/fs/cgroup/a/cpu.max");
    put("150000 100000\n", "/sys/fs/a/cpu.max");
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        put(groups[i], "/proc/self/cgroup");
        ck_assert_msg(cpu_limits_quota() <= 0, "%s", groups[i]);
    }
}
END_TEST

START_TEST(the_description_names_the_limits)
{
    char text[CPU_LIMITS_TEXT], list[CORES_TEXT];
    cpu_set_t usable;
    cores_usable(&usable);
    cores_format(&usable, list);
    put(list, "/sys/devices/system/cpu/online");
    cpu_limits_describe(text);
    ck_assert_str_eq(text, "");
    put("0-1023\n", "/sys/devices/system/cpu/online");
    cpu_limits_describe(text);
    ck_assert_str_eq(text, "affinity mask");
    put("0::/a\n", "/proc/self/cgroup");
    put(list, "/sys/fs/cgroup/a/cpuset.cpus.effective");
    put("150000 100000\n", "/sys/fs/cgroup/a/cpu.max");
    cpu_limits_describe(text);
    ck_assert_str_eq(text, "cpuset, quota 1.5");
    ck_assert_int_eq(cpu_limits_restrict(list), STATUS_OK);
    cpu_limits_describe(text);
    ck_assert_str_eq(text, "--cpus, quota 1.5");
}
END_TEST

START_TEST(cpus_must_be_usable)
{
    cpu_set_t before, after;
    cores_usable(&before);
    ck_assert_int_eq(cpu_limits_restrict("1-"), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "--cpus 1-: must be a list of cores"));
    ck_assert_int_eq(cpu_limits_restrict("0-1023"), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "is not among the cores that this process may use"));
    cores_usable(&after);
    ck_assert(CPU_EQUAL(&before, &after));
    char one[16];
    snprintf(one, sizeof one, "%d", cores_at(&before, CPU_COUNT(&before) - 1));
    ck_assert_int_eq(cpu_limits_restrict(one), STATUS_OK);
    cores_usable(&after);
    ck_assert_int_eq(CPU_COUNT(&after), 1);
    ck_assert_int_eq(cpu_limits_threads(1, 1), 1);
}
END_TEST

// ---- claims ---------------------------------------------------------------------------------------------------------

START_TEST(pools_see_claims_until_they_are_released)
{
    cpu_set_t all;
    int a[2], b[2], c[2];
    struct cores_choice choice;
    CPU_ZERO(&all);
    for (int i = 900; i < 908; i++) // no pool of this machine has these cores
        CPU_SET(i, &all);
    core_claims_sockets = "/proc/net/unix";
    struct core_claims *first = core_claims_take(&all, 2, a, &choice);
    struct core_claims *second = core_claims_take(&all, 2, b, &choice);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++)
            ck_assert_int_ne(a[i], b[k]);
    ck_assert(choice.avoided);
    core_claims_release(first);
    first = core_claims_take(&all, 2, c, &choice);
    ck_assert_int_eq(c[0], a[0]);
    ck_assert_int_eq(c[1], a[1]);
    core_claims_release(first);
    core_claims_release(second);
    core_claims_release(NULL);
}
END_TEST

START_TEST(long_lists_take_several_names)
{
    cpu_set_t even;
    int a[400], b[100];
    struct cores_choice choice;
    CPU_ZERO(&even);
    for (int i = 20; i < 1020; i += 2)
        CPU_SET(i, &even);
    core_claims_sockets = "/proc/net/unix";
    struct core_claims *first = core_claims_take(&even, 400, a, &choice);
    struct core_claims *second = core_claims_take(&even, 100, b, &choice);
    for (int i = 0; i < 400; i++)
        for (int k = 0; k < 100; k++)
            ck_assert_int_ne(a[i], b[k]);
    core_claims_release(first);
    core_claims_release(second);
}
END_TEST

#define SOCKET "0000000000000000: 00000002 00000000 00000000 0001 01 1 "

START_TEST(hostile_names_are_no_claims)
{
    cpu_set_t all;
    int chosen[2];
    struct cores_choice choice;
    put_machine(&all);
    put(SOCKET "@forepack-cores/\n" SOCKET "@forepack-cores/x\n" SOCKET "@forepack-cores//0-1/0/\n" SOCKET
               "@forepack-cores/x/0-99999/0/1\n" SOCKET "@forepack-cores/x/-/-/1\n" SOCKET
               "@forepack-cores/x/0,/0/1\n" SOCKET "forepack-cores/x/0-1/0/1\n" SOCKET "@other/x/0-1/0/1\n\n",
        "/proc/net/unix");
    core_claims_release(core_claims_take(&all, 2, chosen, &choice));
    ck_assert(choice.shared || choice.avoided); // the third name is a claim of a program without a name
    put(SOCKET "@forepack-cores/x/0-15/9999/1\n" SOCKET "@forepack-cores/x/1-15/-/1\n", "/proc/net/unix");
    core_claims_release(core_claims_take(&all, 1, chosen, &choice));
    ck_assert_int_eq(chosen[0], 0);
    ck_assert(choice.shared);
}
END_TEST

SUITE("cores")
{
    FIXTURE(setup, teardown);
    TEST(lists_are_read_and_written);
    TEST(other_text_is_no_list);
    TEST(a_long_list_is_cut);
    TEST(every_core_goes_to_one_process);
    TEST(processes_share_cores_socket_by_socket);
    TEST(an_idle_machine_gives_physical_cores_of_one_node);
    TEST(pools_take_cores_that_others_left);
    TEST(pools_share_cores_with_other_programs_first);
    TEST(first_threads_keep_apart);
    TEST(a_machine_that_reports_nothing_has_equal_cores);
    TEST(a_quota_is_the_lowest_of_the_cgroup_and_its_ancestors);
    TEST(version_1_has_quotas_too);
    TEST(memory_is_limited_by_the_lowest_of_the_ancestors);
    TEST(version_1_limits_memory_too);
    EACH(hostile_cgroups_do_not_limit_memory, no_limits);
    TEST(used_memory_grows_with_touched_pages);
    TEST(a_container_has_the_quota_of_its_root);
    TEST(hostile_cgroups_set_no_quota);
    TEST(the_description_names_the_limits);
    TEST(cpus_must_be_usable);
    TEST(pools_see_claims_until_they_are_released);
    TEST(long_lists_take_several_names);
    TEST(hostile_names_are_no_claims);
}
