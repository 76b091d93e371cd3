#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the worth of each rule of admission (router/sched/bin_planner.h): plans traces without the rule.

Builds the simulator with one rule taken out at a time and plans the same load with each; the bin policies batch and
none show a router with no rules. Rules 5 and 6 are left out,
since traces have neither priorities nor tenants. Plans are deterministic. Prints one table for each load. The traces are
in ../shared/data/traces, or of --traces: azure_conv.csv, azure_code.csv, mooncake_conversation.csv.
"""
import argparse
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import mutate  # noqa: E402

ROOT = mutate.ROOT
CLUSTER = ["--shape", os.path.join(ROOT, "bench/shapes/llama-3.1-8b.json"), "--tflops", "300", "--gbytes-per-s", "2500",
           "--workers", "2", "--kv-blocks", "8000"]
LOADS = [
    ("azure_conv.csv", ["--requests", "1000", "--time-scale", "0.15"]),
    ("azure_code.csv", ["--requests", "1000", "--time-scale", "0.2"]),
    ("mooncake_conversation.csv", ["--requests", "300"]),
]
SCHED = "router/sched/"

# Name of the variant: the places in the sources that change, each with its text and the replacement.
RULES = {
    "all rules": [],
    "1: the node attached last is next": [(SCHED + "node_index.c", "return x->finish < y->finish;", "(void)0;"),
                                          (SCHED + "node_index.c",
                                           "return x->requests != y->requests ? x->requests < y->requests : x->ordinal",
                                           "return x->ordinal")],
    "1: a busy node gets any bin": [(SCHED + "node_choice.c", "if (!node->account.bins || ", "if (true || ")],
    "2: no rows are left for decodes": [(SCHED + "view.c", "return budget - (decodes < budget / 2 ? decodes : budget / 2);",
                                         "return (void)decodes, budget;")],
    "3: a long prompt holds its bin": [(SCHED + "view.c", "node->account.long_prompts ? rows - rows / 2 : rows", "rows"),
                                       (SCHED + "bin_planner.c", "rows > f->pass_rows ? f->pass_rows / 2 : rows", "rows"),
                                       ("router/core/ledger.c", "a->is_long = computed > sched_node_pass_rows(&node->sched)",
                                        "a->is_long = false")],
    "4: overdue requests wait their turn": [(SCHED + "bin_planner.c", "    fill_overdue(f);\n", "    (void)fill_overdue;\n")],
    "7: shared prefixes do not follow": [(SCHED + "bin_planner.c", "if (!f->node->prefixes) return;\n    const struct "
                                          "sched_request *last", "return;\n    const struct sched_request *last")],
    "7: no request waits for a cache": [(SCHED + "bin_planner.c", "if (r->overdue || !r->n_prefix) return false;",
                                         "return false;")],
    "8: the oldest that fits": [(SCHED + "bin_planner.c", """    struct request_need room = room_left(f, rows);
    struct sched_request *r = length_index_longest(&queue->packable, &room);
    while (r && !bin_fits(f, r))
        r = f->scans_left > 0 ? length_index_next(&queue->packable, r, &room) : NULL;
    return r;
""", """    for (int k = 0; k < 2; k++)
        for (struct sched_request *r = (k ? &f->set->queue : &f->set->overdue)->first; r && f->scans_left > 0; r = r->next)
            if (r->packable && r->tenant_queue == queue && r->need.rows <= rows && bin_fits(f, r)) return r;
    return NULL;
""")],
}


def replace(source, changes):
    for path, old, new in changes:
        target = os.path.join(source, path)
        with open(target) as file:
            text = file.read()
        if text.count(old) != 1:
            sys.exit(f"{path}: the text of a rule is not there once: {old}")
        with open(target, "w") as file:
            file.write(text.replace(old, new))


def plan(program, trace, load):
    done = subprocess.run([program, *CLUSTER, "--trace", trace, *load, "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", default=os.path.join(ROOT, "../shared/data/traces"))
    parser.add_argument("--folder", default=os.path.join(ROOT, "build/rules"))
    options = parser.parse_args()
    source, build = mutate.prepare(options.folder, "-O1 -g1 -Wno-error")
    rows = {name: [] for name, _ in LOADS}
    for rule, changes in RULES.items():
        before = {path: open(os.path.join(source, path)).read() for path, _, _ in changes}
        replace(source, changes)
        built = mutate.compile_program(build)
        for path, text in before.items():
            with open(os.path.join(source, path), "w") as file:
                file.write(text)
        if built.returncode:
            sys.exit(f"{rule}: does not compile:\n{built.stdout}")
        for name, load in LOADS:
            for policy in ["dataset"] if changes else ["dataset", "batch", "none"]:
                row = plan(os.path.join(build, "bin/forepack-sim"), os.path.join(options.traces, name),
                           [*load, "--bin-policy", policy])
                rows[name].append((rule if policy == "dataset" else f"--bin-policy {policy}", row))
    for name, load in LOADS:
        print(f"\n{name} {' '.join(load)}\n\n| without rule | TTFT p50 / p99 in s | ITL p99 in ms | requests/s |")
        print("| --- | --- | ---: | ---: |")
        for rule, row in rows[name]:
            print(f"| {rule} | {row['ttft_ms_p50'] / 1e3:.2f} / {row['ttft_ms_p99'] / 1e3:.1f} | {row['itl_ms_p99']:.1f} | "
                  f"{row['requests_per_s']:.2f} |")


if __name__ == "__main__":
    main()
