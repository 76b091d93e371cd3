#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""RULER's thirteen tasks against any OpenAI-compatible server: the score of each task and length, with all tokens and, if the
server is Forepack's, at keep rates or qualities. `forepack bench documents` makes the documents (bench/ruler.h).

Example: bench/ruler.py --server-url http://127.0.0.1:8000/v1 --model main --tokenizer DIR --keep-rates 0.5,0.3
"""
import json
import os
import subprocess

import openai_server
from openai_server import Refused

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TASKS = ("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3",
         "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2")


def lengths(text):
    return [int(part) for part in text.split(",")]


def tasks(text):
    names = TASKS if text == "ruler" else tuple(text.split(","))
    if not set(names) <= set(TASKS):
        raise ValueError
    return names


def score(document, text):
    found = [answer.lower() in text.lower() for answer in document["answers"]]
    return float(any(found)) if document["match"] == "any" else sum(found) / len(found)


def make_documents(options, task, tokens):
    command = [options.forepack, "bench", "documents", "--task", task, "--tokens", str(tokens), "--count",
               str(options.documents), "--seed", str(options.seed)]
    command += ["--model", options.tokenizer] if options.tokenizer else ["--characters-per-token", str(options.characters_per_token)]
    command += ["--passages", options.passages] if options.passages and task.startswith("qa") else []
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Refused("%s: %s" % (options.forepack, error.strerror)) from error
    if made.returncode:
        raise Refused(made.stderr.strip())
    documents = [json.loads(line) for line in made.stdout.splitlines()]
    for document in documents:
        document["prompt"] = document["prompt"].removesuffix(document["answer_prefix"])
    return documents


def main():
    parser = openai_server.parser(__doc__)
    parser.add_argument("--task", type=tasks, default=TASKS, help="ruler (default), or tasks, comma-separated: " + ", ".join(TASKS))
    parser.add_argument("--prompt-tokens", type=lengths, default=[4096, 8192, 16384], metavar="N,N",
                        help="lengths of prompt and answer together (default 4096,8192,16384)")
    parser.add_argument("--documents", type=int, default=20, help="documents of each task and length (default 20)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the documents, below 1000")
    parser.add_argument("--tokenizer", metavar="DIR", help="model directory, whose tokenizer counts the lengths exactly")
    parser.add_argument("--characters-per-token", type=float, default=4, metavar="X",
                        help="without --tokenizer: estimate lengths by this number (default 4)")
    parser.add_argument("--passages", metavar="FILE", help="qa_1, qa_2: SQuAD's or HotpotQA's JSON file")
    parser.add_argument("--forepack", metavar="PATH", default=os.path.join(HERE, "build", "release", "bin", "forepack"),
                        help="the program that makes documents (default build/release/bin/forepack)")
    options = parser.parse_args()
    server, rows = openai_server.Server(options), []
    if not options.json and not options.tokenizer:
        print("lengths are estimated: %g characters per token" % options.characters_per_token)
    for tokens in options.prompt_tokens:
        of_length = []
        for task in options.task:
            measured = openai_server.measure(server, options, task, make_documents(options, task, tokens), score)
            of_length += [{"task": row["task"], "tokens": tokens} | row for row in measured]
            openai_server.show(of_length[-len(measured):], options)
        if len(options.task) == len(TASKS):
            ways = len(of_length) // len(TASKS)
            of_length += [openai_server.mean_row(of_length[way::ways], "ruler") for way in range(ways)]
            openai_server.show(of_length[-ways:], options)
        rows += of_length
    if options.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    openai_server.run(main)
