# SPDX-License-Identifier: Apache-2.0
"""The functions and calls of BFCL, written in the form of published chat templates and parsed back.

Usage: bfcl.py CHECKOUT TEMPLATES BIN

A template renders a conversation that ends with the calls. The text after the generation prompt is what a model would
have written. Its calls must be those of the suite, and no text may be left. The templates of Llama 3.1
and 3.2 refuse a turn with several calls, so each call is a case of its own for them.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

FILES = ["simple_python", "multiple", "parallel", "parallel_multiple", "live_simple", "live_multiple", "live_parallel",
         "live_parallel_multiple"]
TEMPLATES = ["meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct", "Qwen-Qwen2.5-7B-Instruct",
             "Qwen-Qwen3-0.6B", "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
             "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "Mistral-Small-3.2-24B-Instruct-2506",
             "mistralai-Ministral-3-14B-Reasoning-2512"]
END = re.compile(r"(<\|im_end\|>|<\|eot_id\|>|</s>)\s*$")


def lines(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def cases(checkout):
    """Yields the id of each case, its functions, the question and the expected calls."""
    data = os.path.join(checkout, "berkeley-function-call-leaderboard", "bfcl_eval", "data")
    for name in FILES:
        answers = {row["id"]: row["ground_truth"] for row in
                   lines(os.path.join(data, "possible_answer", "BFCL_v4_%s.json" % name))}
        for row in lines(os.path.join(data, "BFCL_v4_%s.json" % name)):
            calls = [{"name": function, "arguments": {key: values[0] if values else values for key, values in arguments.items()}}
                     for call in answers[row["id"]] for function, arguments in call.items()]
            yield row["id"], row["function"], row["question"][0], calls


def render(program, template, messages, tools, prompt):
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for name, value in (("messages", messages), ("tools", tools), ("variables", {"bos_token": "", "eos_token": "</s>"})):
            paths[name] = os.path.join(folder, name)
            with open(paths[name], "w") as file:
                json.dump(value, file)
        run = subprocess.run(
            [program, "render", "--template", template, "--json", *(["--add-generation-prompt"] if prompt else []),
             *[part for name, path in paths.items() for part in ("--" + name, path)]],
            capture_output=True, text=True, timeout=60)
        return json.loads(run.stdout)["prompt"] if run.returncode == 0 else None


def answer_of(program, template, case):
    _, functions, question, calls = case
    tools = [{"type": "function", "function": function} for function in functions]
    question = [{"role": "user", "content": "\n".join(turn["content"] for turn in question)}]
    turn = {"role": "assistant", "content": "",
            "tool_calls": [{"id": "call%05d" % i, "type": "function", "function": call} for i, call in enumerate(calls)]}
    prompt = render(program, template, question, tools, True)
    whole = render(program, template, question + [turn], tools, False)
    if prompt is None or whole is None or not whole.startswith(prompt):
        return None
    return END.sub("", whole[len(prompt):])


def check(binaries, template, all_cases):
    singles = "Llama-3." in template and "Hermes" not in template
    chosen = [(name, functions, question, [call]) for name, functions, question, calls in all_cases for call in calls] \
        if singles else all_cases
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda case: answer_of(os.path.join(binaries, "forepack"), template, case), chosen))
    chosen = [(case, answer) for case, answer in zip(chosen, answers) if answer is not None]
    rows = "\n".join(json.dumps({"tools": {f["name"]: True for f in case[1]}, "answer": answer}) for case, answer in chosen)
    run = subprocess.run([os.path.join(binaries, "split_answers"), template], input=rows, capture_output=True, text=True)
    failed = 0
    for (case, answer), line in zip(chosen, run.stdout.split("\n")[:-1]):
        parts = json.loads(line)
        try:
            calls = [{"name": call["name"], "arguments": json.loads(call["arguments"])} for call in parts["calls"]]
        except ValueError:
            calls = None
        if calls != case[3] or parts["content"].strip():
            failed += 1
            print("FAILED %s %s\n    %r\n    %r" % (os.path.basename(template), case[0], answer, parts))
    complete = run.returncode == 0 and len(run.stdout.split("\n")[:-1]) == len(chosen) > 0
    print("%s: %d answers, %d failed, %d left out%s" % (
        os.path.basename(template), len(chosen), failed, len(answers) - len(chosen), "" if complete else ", INCOMPLETE"))
    return failed == 0 and complete


def main():
    checkout, templates, binaries = sys.argv[1:4]
    all_cases = list(cases(checkout))[::int(os.environ.get("BFCL_STEP", "1"))]  # every N-th case
    results = [check(binaries, os.path.join(templates, name + ".jinja"), all_cases) for name in TEMPLATES]
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
