#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""LongBench's six categories (arXiv 2308.14508) against any OpenAI-compatible server: the score of each data set, with all
tokens and, if the server is Forepack's, at keep rates or qualities. The data folder has one file for each data set as
published, such as hotpotqa.jsonl, with the fields input, context, answers and all_classes.

Scores: F1 of words, ROUGE-L, accuracy, edit similarity. Chinese texts are compared by characters. Prompts are worded anew, so
compare ways of one run rather than published figures. Needs rapidfuzz (pip install rapidfuzz).

Example: bench/longbench.py --data longbench/data --server-url http://127.0.0.1:8000/v1 --model main --keep-rates 0.5,0.3
"""
import collections
import json
import os
import re
import string
import sys

import openai_server
from openai_server import Refused

try:
    from rapidfuzz import distance, fuzz
except ImportError:
    sys.exit("bench/longbench.py needs rapidfuzz: pip install rapidfuzz")

QUESTION = "Read the text below and answer the question after it with as few words as possible.\n\n{context}\n\n" \
           "Question: {input}\n"
DOCUMENTS = "Answer the question from the passages below. Give only the answer.\n\n{context}\n\nQuestion: {input}\n"
SUMMARY = "Write a summary of the text below on one page.\n\n{context}\n\n"
ASKED_SUMMARY = "Read the text below and answer the request after it in a few sentences.\n\n{context}\n\nRequest: {input}\n"
EXAMPLES = "Continue the examples below: complete the last one in the same form.\n\n{context}\n{input}"
COUNT = "Some of the paragraphs below are repeated. Count the different paragraphs, and give only the number.\n\n{context}\n\n"
RETRIEVAL = "One of the paragraphs below has the summary after them. Give only the name of the paragraph, such as " \
            "Paragraph 1.\n\n{context}\n\nSummary: {input}\n"
CODE = "Write the next line of the code below.\n\n{context}{input}"

# Name: (category, prompt, beginning of the answer, score, tokens of the answer, bare prompt, only the first line counts)
SETS = {
    "narrativeqa": ("single-document", QUESTION, "Answer:", "f1", 128, False, False),
    "qasper": ("single-document", QUESTION, "Answer:", "f1", 128, False, False),
    "multifieldqa_en": ("single-document", QUESTION, "Answer:", "f1", 64, False, False),
    "multifieldqa_zh": ("single-document", QUESTION, "Answer:", "f1", 64, False, False),
    "hotpotqa": ("multi-document", DOCUMENTS, "Answer:", "f1", 32, False, False),
    "2wikimqa": ("multi-document", DOCUMENTS, "Answer:", "f1", 32, False, False),
    "musique": ("multi-document", DOCUMENTS, "Answer:", "f1", 32, False, False),
    "dureader": ("multi-document", DOCUMENTS, "Answer:", "rouge_l", 128, False, False),
    "gov_report": ("summaries", SUMMARY, "Summary:", "rouge_l", 512, False, False),
    "qmsum": ("summaries", ASKED_SUMMARY, "Answer:", "rouge_l", 512, False, False),
    "multi_news": ("summaries", SUMMARY, "Summary:", "rouge_l", 512, False, False),
    "vcsum": ("summaries", SUMMARY, "Summary:", "rouge_l", 512, False, False),
    "trec": ("few-shot", EXAMPLES, "", "class_accuracy", 64, True, True),
    "triviaqa": ("few-shot", EXAMPLES, "", "f1", 32, True, True),
    "samsum": ("few-shot", EXAMPLES, "", "rouge_l", 128, True, True),
    "lsht": ("few-shot", EXAMPLES, "", "class_accuracy", 64, True, True),
    "passage_count": ("synthetic", COUNT, "Number:", "number_accuracy", 32, False, False),
    "passage_retrieval_en": ("synthetic", RETRIEVAL, "Name:", "number_accuracy", 32, False, False),
    "passage_retrieval_zh": ("synthetic", RETRIEVAL, "Name:", "number_accuracy", 32, False, False),
    "lcc": ("code", CODE, "", "edit_similarity", 64, True, False),
    "repobench-p": ("code", CODE, "", "edit_similarity", 64, True, False),
}
Rules = collections.namedtuple("Rules", "category prompt prefix score max_tokens bare first_line")


# --- scores of one answer and one right answer, 0 to 1

def words(text):
    """Returns the words without case, punctuation and articles; Chinese characters are words of their own."""
    text = "".join(" " if c in string.punctuation or c in "，。！？；：、（）“”‘’《》" else c for c in text.lower())
    text = re.sub(r"([\u4e00-\u9fff])", r" \1 ", text)
    return [word for word in text.split() if word not in ("a", "an", "the")]


def f1(answer, right, _row):
    answer, right = words(answer), words(right)
    common = sum((collections.Counter(answer) & collections.Counter(right)).values())
    return 2 * common / (len(answer) + len(right)) if common else 0.0


def rouge_l(answer, right, _row):
    """Returns the F-measure of the longest common subsequence of words."""
    answer, right = words(answer), words(right)
    common = distance.LCSseq.similarity(answer, right)
    return 2 * common / (len(answer) + len(right)) if common else 0.0


def class_accuracy(answer, right, row):
    """Returns 1 over the number of classes that the answer names, if the right one is among them. A class whose name is part of
    the right class does not count."""
    named = [c for c in row["all_classes"] if c in answer and not (c in right and c != right)]
    return 1 / len(named) if right in named else 0.0


def number_accuracy(answer, right, _row):
    """Returns the share of right ones among the numbers of the answer."""
    numbers, wanted = re.findall(r"\d+", answer), re.search(r"\d+", right)
    return numbers.count(wanted.group()) / len(numbers) if numbers and wanted else 0.0


def edit_similarity(answer, right, _row):
    """Compares the first line that is code."""
    lines = [line for line in answer.lstrip("\n").split("\n") if not any(mark in line for mark in ("`", "#", "//"))]
    return fuzz.ratio(lines[0] if lines else "", right) / 100


def score(document, text):
    if document["rules"].first_line:
        text = text.lstrip("\n").split("\n")[0]
    function = globals()[document["rules"].score]
    return max(function(text, right, document["row"]) for right in document["row"]["answers"])


# --- the data

def read_row(rules, row, options):
    for name, kind in (("input", str), ("context", str), ("answers", list)):
        if not isinstance(row.get(name), kind):
            raise ValueError("no field '%s'" % name)
    if not row["answers"] or not all(isinstance(answer, str) for answer in row["answers"]):
        raise ValueError("answers must be texts")
    if rules.score == "class_accuracy" and not isinstance(row.get("all_classes"), list):
        raise ValueError("no field 'all_classes'")
    context, most = row["context"], options.max_characters
    if most and len(context) > most:  # the middle is left out, as LongBench does
        context = context[:most // 2] + context[-(most - most // 2):]
    before, _, after = rules.prompt.partition("{context}")  # texts may have braces of their own
    return {"prompt": before + context + after.replace("{input}", row["input"]), "answer_prefix": rules.prefix,
            "max_tokens": rules.max_tokens, "bare": rules.bare, "row": row, "rules": rules}


def read_set(path, rules, options):
    documents = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip() or len(documents) == options.documents:
                continue
            try:
                documents.append(read_row(rules, json.loads(line), options))
            except (ValueError, AttributeError) as error:
                raise Refused("%s:%d: %s" % (path, number, error)) from error
    if not documents:
        raise Refused("%s: has no rows" % path)
    return documents


def find_sets(options):
    try:
        names = [os.path.splitext(name)[0] for name in sorted(os.listdir(options.data)) if name.endswith(".jsonl")]
    except OSError as error:
        raise Refused("%s: %s" % (options.data, error.strerror)) from error
    wanted = options.sets.split(",") if options.sets else [name for name in SETS if name in names]
    for name in wanted:
        if name not in SETS or name not in names:
            raise Refused("--sets %s: no such file, or no data set of LongBench" % name)
    if not wanted:
        raise Refused("%s: has no file of LongBench, such as hotpotqa.jsonl" % options.data)
    return wanted


def means(rows):
    """Returns a row for each category and way, and one for all categories, with the mean of the scores."""
    out = []
    for category in list(dict.fromkeys(row["category"] for row in rows)) + ["longbench"]:
        groups = {}
        for row in rows:
            if category in (row["category"], "longbench"):
                groups.setdefault((row["policy"], row["keep_rate"], row.get("quality")), []).append(row)
        for group in groups.values():
            out.append(openai_server.mean_row(group, category) | {"category": category})
    return out


def main():
    parser = openai_server.parser(__doc__)
    parser.add_argument("--data", required=True, metavar="DIR", help="folder of LongBench's JSON Lines files")
    parser.add_argument("--sets", metavar="NAME,NAME", help="data sets (default: all that the folder has)")
    parser.add_argument("--documents", type=int, default=0, help="first documents of each set; 0 is all (default)")
    parser.add_argument("--max-characters", type=int, default=0, metavar="N",
                        help="cut longer contexts in the middle; 0 cuts none (default)")
    options = parser.parse_args()
    options.documents = options.documents or None
    server, rows = openai_server.Server(options), []
    for name in find_sets(options):
        rules = Rules(*SETS[name])
        documents = read_set(os.path.join(options.data, name + ".jsonl"), rules, options)
        measured = openai_server.measure(server, options, name, documents, score)
        openai_server.show(measured, options)
        rows += [row | {"category": rules.category} for row in measured]
    sums = means(rows)
    openai_server.show(sums, options)
    if options.json:
        print(json.dumps(rows + sums, indent=1))


if __name__ == "__main__":
    openai_server.run(main)
