// SPDX-License-Identifier: Apache-2.0
#include "lib/base/cores.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

enum { NODES_MAX = 64 };

const char *cores_system = "/sys/devices/system";

// ---- sets -----------------------------------------------------------------------------------------------------------

void cores_usable(cpu_set_t *cores)
{
    CPU_ZERO(cores);
    // The call fails on machines with more cores than a cpu_set_t holds. Core 0 is used then.
    if (sched_getaffinity(0, sizeof *cores, cores) != 0 || CPU_COUNT(cores) < 1) CPU_SET(0, cores);
}

int cores_at(const cpu_set_t *cores, int index)
{
    int core = 0;
    for (; core < CPU_SETSIZE - 1; core++)
        if (CPU_ISSET(core, cores) && index-- == 0) break;
    return core;
}

// Reads a core number and moves *text_p past it. Returns -1 if there is none below CPU_SETSIZE.
static int number_parse(const char **text_p)
{
    int number = 0;
    if (**text_p < '0' || **text_p > '9') return -1;
    for (; **text_p >= '0' && **text_p <= '9'; ++*text_p) {
        number = 10 * number + (**text_p - '0');
        if (number >= CPU_SETSIZE) return -1;
    }
    return number;
}

bool cores_parse(const char *list, cpu_set_t *cores)
{
    cpu_set_t read;
    CPU_ZERO(&read);
    for (;; list++) {
        int first = number_parse(&list), last = first;
        if (*list == '-') {
            list++;
            last = number_parse(&list);
        }
        if (first < 0 || last < first) return false;
        for (int core = first; core <= last; core++)
            CPU_SET(core, &read);
        if (*list != ',') break;
    }
    if (strcmp(list, "") != 0 && strcmp(list, "\n") != 0) return false;
    *cores = read;
    return true;
}

void cores_format(const cpu_set_t *cores, char text[CORES_TEXT])
{
    static const char cut[] = ",...";
    size_t used = 0;
    *text = 0;
    for (int first = 0; first < CPU_SETSIZE; first++) {
        if (!CPU_ISSET(first, cores)) continue;
        char range[32];
        int last = first;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, cores))
            last++;
        int length = snprintf(range, sizeof range, last > first ? "%s%d-%d" : "%s%d", used ? "," : "", first, last);
        if (used + (size_t)length + sizeof cut > CORES_TEXT) {
            memcpy(text + used, cut, sizeof cut);
            return;
        }
        memcpy(text + used, range, (size_t)length + 1);
        used += (size_t)length;
        first = last;
    }
}

// ---- topology -------------------------------------------------------------------------------------------------------

// Place of a core in the machine.
struct place {
    int package, core, number, node;
    bool chosen;
};

// Returns a number from the core's topology in sysfs, or 0 if the machine does not report it.
static int topology_read(int number, const char *what)
{
    char path[256];
    int value = 0;
    snprintf(path, sizeof path, "%s/cpu/cpu%d/topology/%s", cores_system, number, what);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    if (fscanf(file, "%d", &value) != 1) value = 0;
    fclose(file);
    return value;
}

// Reads the cores of a NUMA node. Returns false if the machine does not report the node.
static bool node_read(int node, cpu_set_t *cores)
{
    char path[256], list[4096];
    snprintf(path, sizeof path, "%s/node/node%d/cpulist", cores_system, node);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    bool read = fgets(list, sizeof list, file) != NULL && cores_parse(list, cores);
    fclose(file);
    return read;
}

static int place_compare(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->package != y->package) return x->package < y->package ? -1 : 1;
    if (x->core != y->core) return x->core < y->core ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

// Returns the places of the cores, socket by socket, with the hardware threads of a core next to each other. Nodes are
// 0 where the machine does not report them.
static void places_read(const cpu_set_t *all, struct place places[CPU_SETSIZE])
{
    const int n = CPU_COUNT(all);
    for (int i = 0; i < n; i++) {
        const int number = cores_at(all, i);
        places[i] = (struct place){.package = topology_read(number, "physical_package_id"),
                                   .core = topology_read(number, "core_id"),
                                   .number = number};
    }
    for (int node = 0; node < NODES_MAX; node++) {
        cpu_set_t cores;
        if (!node_read(node, &cores)) continue;
        for (int i = 0; i < n; i++)
            if (CPU_ISSET(places[i].number, &cores)) places[i].node = node;
    }
    qsort(places, (size_t)n, sizeof *places, place_compare);
}

bool cores_share(const cpu_set_t *all, int index, int processes, cpu_set_t *mine)
{
    struct place places[CPU_SETSIZE];
    const int n = CPU_COUNT(all);
    if (n < processes) return false;
    places_read(all, places);
    CPU_ZERO(mine);
    for (int i = n * index / processes; i < n * (index + 1) / processes; i++)
        CPU_SET(places[i].number, mine);
    return true;
}

// ---- choosing -------------------------------------------------------------------------------------------------------

struct choosing {
    struct place places[CPU_SETSIZE]; // [n]
    int n;
    const struct core_load *load;
};

static bool same_core(const struct place *a, const struct place *b)
{
    return a->package == b->package && a->core == b->core;
}

static int core_threads(const struct choosing *c, int i)
{
    return c->load[c->places[i].number].alike + c->load[c->places[i].number].others;
}

// Returns the number of threads on the physical core of place i: threads of other pools and chosen threads.
static int physical_threads(const struct choosing *c, int i)
{
    int threads = 0, first = i, last = i;
    while (first > 0 && same_core(&c->places[first - 1], &c->places[i]))
        first--;
    while (last + 1 < c->n && same_core(&c->places[last + 1], &c->places[i]))
        last++;
    for (int k = first; k <= last; k++)
        threads += core_threads(c, k) + c->places[k].chosen;
    return threads;
}

// The cost of a choice: compared member by member, in this order.
struct cost {
    int threads, alike, physical;
};

static bool cost_is_less(const struct cost *a, const struct cost *b)
{
    if (a->threads != b->threads) return a->threads < b->threads;
    if (a->alike != b->alike) return a->alike < b->alike;
    return a->physical < b->physical;
}

static void cost_raise(struct cost *cost, const struct cost *other)
{
    if (other->threads > cost->threads) cost->threads = other->threads;
    if (other->alike > cost->alike) cost->alike = other->alike;
    if (other->physical > cost->physical) cost->physical = other->physical;
}

// Marks the n best places of a node (-1: of all nodes) as chosen. Returns the cost of the worst of these places, or
// false if the node has fewer places.
static bool node_choose(struct choosing *c, int node, int n, struct cost *cost)
{
    *cost = (struct cost){0};
    for (int i = 0; i < c->n; i++)
        c->places[i].chosen = false;
    for (; n > 0; n--) {
        int best = -1;
        struct cost least = {0};
        for (int i = 0; i < c->n; i++) {
            if (c->places[i].chosen || (node >= 0 && c->places[i].node != node)) continue;
            const struct cost mine = {core_threads(c, i), c->load[c->places[i].number].alike, physical_threads(c, i)};
            if (best >= 0 && !cost_is_less(&mine, &least)) continue;
            best = i;
            least = mine;
        }
        if (best < 0) return false;
        c->places[best].chosen = true;
        cost_raise(cost, &least);
    }
    return true;
}

// Returns the node whose n best places cost least, or -1 if the best places of all nodes cost less than the places of
// any single node.
static int best_node(struct choosing *c, int n)
{
    struct cost least, cost;
    int best = -1;
    node_choose(c, -1, n, &least);
    for (int node = 0; node < NODES_MAX; node++) {
        if (!node_choose(c, node, n, &cost)) continue;
        if (cost_is_less(&cost, &least) || (best < 0 && !cost_is_less(&least, &cost))) {
            best = node;
            least = cost;
        }
    }
    return best;
}

// Copies the chosen cores. First comes the core with the fewest first threads; the other cores follow in the order of
// the machine.
static void chosen_copy(const struct choosing *c, int n, int *chosen)
{
    int cores[CPU_SETSIZE], k = 0, first = 0;
    for (int i = 0; i < c->n; i++)
        if (c->places[i].chosen) cores[k++] = c->places[i].number;
    for (int i = 1; i < n; i++)
        if (c->load[cores[i]].first < c->load[cores[first]].first) first = i;
    for (int i = 0; i < n; i++)
        chosen[i] = cores[(first + i) % n];
}

struct cores_choice cores_choose(const cpu_set_t *usable, const struct core_load *load, int n, int *chosen)
{
    struct choosing *c = mem_alloc(sizeof *c);
    struct cores_choice choice = {0};
    struct cost unused;
    c->n = CPU_COUNT(usable);
    c->load = load;
    places_read(usable, c->places);
    const int node = best_node(c, n);
    node_choose(c, node, n, &unused);
    for (int i = 0; i < c->n; i++) {
        const struct place *p = &c->places[i];
        const bool loaded = core_threads(c, i) > 0;
        choice.shared |= p->chosen && loaded;
        choice.avoided |= !p->chosen && loaded;
        choice.one_node |= node >= 0 && p->node != node;
        if (i && same_core(p, p - 1)) choice.one_thread_per_core |= p->chosen != p[-1].chosen;
    }
    chosen_copy(c, n, chosen);
    free(c);
    return choice;
}
