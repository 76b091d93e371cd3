// SPDX-License-Identifier: Apache-2.0
// docs/metrics.md lists the same metrics as the table in router/metrics/table.c. The dashboard and the rules for alerts
// and scaling in deploy/monitoring name no others.
//
// METRICS_RECORD=1 writes the list into docs/metrics.md instead of comparing it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "router/metrics/exposition.h"
#include "tests/suite.h"

static char *path_of(const char *name)
{
    const char *source = getenv("FOREPACK_SOURCE");
    return mem_format("%s/%s", source ? source : ".", name);
}

static char *file_text(const char *name)
{
    char *path = path_of(name);
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s cannot be read", path);
    char *text = mem_alloc(1 << 20);
    size_t size = fread(text, 1, (1 << 20) - 1, file);
    ck_assert_uint_gt(size, 0);
    fclose(file);
    free(path);
    return text;
}

static char *table_text(void)
{
    char *text = mem_string("| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n");
    for (const struct metric *metric = metrics_table; metric->name; metric++) {
        char *longer = mem_format("%s| `%s` | %s | %s | %s |\n", text, metric->name, metric_type_name(metric->type),
                                  metric->labels, metric->help);
        free(text);
        text = longer;
    }
    return text;
}

static void record(const char *before, size_t before_size, const char *table, const char *after)
{
    char *path = path_of("docs/metrics.md");
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(before, 1, before_size, file), before_size);
    fprintf(file, "%s%s", table, after);
    ck_assert_int_eq(fclose(file), 0);
    free(path);
}

START_TEST(the_list_in_the_docs_is_the_table)
{
    char *docs = file_text("docs/metrics.md"), *table = table_text();
    const char *heading = "## All metrics\n\n", *list = strstr(docs, heading),
               *after = strstr(docs, "\n## Reading them");
    ck_assert_ptr_nonnull(list);
    ck_assert_ptr_nonnull(after);
    ck_assert(list < after);
    list += strlen(heading);
    if (getenv("METRICS_RECORD")) {
        record(docs, (size_t)(list - docs), table, after);
    } else {
        bool same = (size_t)(after - list) == strlen(table) && strncmp(list, table, strlen(table)) == 0;
        ck_assert_msg(same, "docs/metrics.md differs from the table: run this test with METRICS_RECORD=1");
    }
    free(docs);
    free(table);
}
END_TEST

static bool is_named(const char *name, size_t size, const struct metric *metric)
{
    static const char *const suffixes[] = {"", "_bucket", "_sum", "_count"};
    int n = metric->type == METRIC_HISTOGRAM ? 4 : 1;
    size_t length = strlen(metric->name);
    if (size < length || strncmp(name, metric->name, length) != 0) return false;
    for (int i = 0; i < n; i++) {
        if (size - length == strlen(suffixes[i]) && strncmp(name + length, suffixes[i], size - length) == 0)
            return true;
    }
    return false;
}

static void check_names(const char *file, const char *prefix)
{
    char *text = file_text(file);
    int n = 0;
    for (const char *name = text; (name = strstr(name, prefix)); n++) {
        size_t size = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_:");
        const struct metric *metric = metrics_table;
        while (metric->name && !is_named(name, size, metric))
            metric++;
        ck_assert_msg(metric->name != NULL, "%s: %.*s is not a metric", file, (int)size, name);
        name += size;
    }
    ck_assert_int_gt(n, 0);
    free(text);
}

START_TEST(dashboard_and_rules_name_metrics_that_exist)
{
    check_names("deploy/monitoring/grafana-dashboard.json", "forepack:");
    check_names("deploy/monitoring/grafana-dashboard.json", "process_");
    check_names("deploy/monitoring/alerts.yaml", "forepack:");
    check_names("deploy/kubernetes/components/autoscaling/scaled-objects.yaml", "forepack:");
    check_names("docs/metrics.md", "forepack:pool_");
}
END_TEST

SUITE("metrics_docs")
{
    TEST(the_list_in_the_docs_is_the_table);
    TEST(dashboard_and_rules_name_metrics_that_exist);
}
