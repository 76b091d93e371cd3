#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/pictures.py draws well-formed pictures of made-up requests: they say what the data say, and nothing leaves the
page. Data that bench/pictures.sh does not collect are refused with one sentence."""
import copy
import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "pictures.py")
SVG = "{http://www.w3.org/2000/svg}"

KEPT = {"runs": [{"kept": False, "text": "Long ago.\n\n"}, {"kept": True, "text": "The <code> of A&B is 12."},
                 {"kept": False, "text": " The sea was calm." * 20}, {"kept": True, "text": "\nQuestion: code?"}],
        "usage": {"prompt_tokens": 120, "kept_tokens": 15}, "text": " 12", "whole_text": " 12"}
BIN = {"lengths": [100, 20, 300],
       "policies": [{"policy": "padded", "rows": 900, "bins": 0, "pad_fraction": 0.5333, "prefill_ms_mean": 90,
                     "peak_mb": 9},
                    {"policy": "batch", "rows": 420, "bins": 1, "prefill_ms_mean": 42, "peak_mb": 4, "capacity": 512,
                     "padded_time_ratio": 2.14, "padded_memory_ratio": 2.25}]}


def request(rate, kept, score_ms, prefill_ms, text):
    ttft_ms = 1.5 + score_ms + prefill_ms
    return {"rate": rate, "expected": " 12", "text": text,
            "usage": {"prompt_tokens": 1000, "kept_tokens": kept, "scored_tokens": 1000 if score_ms else 0},
            "timing": {"queue_ms": 1, "score_ms": score_ms, "pack_wait_ms": 0.5, "prefill_ms": prefill_ms,
                       "ttft_ms": ttft_ms, "total_ms": ttft_ms + 9}}


REQUESTS = [request(0.3, 300, 20, prefill, text) for prefill, text in ((60, " 12"), (80, " 13"), (70, "12"))]
REQUESTS += [request(1, 1000, 0, prefill, " 12") for prefill in (201, 203, 202)]


class Pictures(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.data = {"kept.json": copy.deepcopy(KEPT), "bin.json": copy.deepcopy(BIN),
                     "requests.json": copy.deepcopy(REQUESTS)}

    def run_program(self):
        for name, value in self.data.items():
            with open(os.path.join(self.folder.name, name), "w", encoding="utf-8") as file:
                json.dump(value, file)
        return subprocess.run([sys.executable, PROGRAM, self.folder.name, os.path.join(self.folder.name, "out")],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)

    def picture(self, name):
        """Returns the root of a picture and the texts in it."""
        result = self.run_program()
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        root = ElementTree.parse(os.path.join(self.folder.name, "out", name)).getroot()
        return root, [text.text for text in root.iter(SVG + "text")]

    def assert_inside(self, root):
        width, height = float(root.get("width")), float(root.get("height"))
        for shape in [*root.iter(SVG + "rect"), *root.iter(SVG + "text")]:
            x, y = float(shape.get("x")), float(shape.get("y"))
            extent = float(shape.get("width") or shape.get("textLength") or 0)
            self.assertTrue(0 <= x and x + extent <= width, ElementTree.tostring(shape))
            self.assertTrue(0 <= y and y + float(shape.get("height") or 0) <= height, ElementTree.tostring(shape))

    def test_kept_tokens(self):
        root, texts = self.picture("kept-tokens.svg")
        self.assert_inside(root)
        self.assertEqual(texts[0], "The main model reads 15 of 120 tokens")
        kept = [text.text for text in root.iter(SVG + "text") if text.get("class") == "mono keep"]
        self.assertEqual(kept, ["The <code> of A&B is 12.", "Question: code?"])
        self.assertEqual(len([1 for rect in root.iter(SVG + "rect") if rect.get("class") == "mark"]), 2)
        pale = [text.text for text in root.iter(SVG + "text") if text.get("class") == "mono pale"]
        self.assertEqual(" ".join(pale), "Long ago." + " The sea was calm." * 20)
        self.assertIn("the same answer as with all 120 tokens", texts)

    def test_other_answer(self):
        self.data["kept.json"]["whole_text"] = " 99"
        self.assertIn("with all tokens: 99", self.picture("kept-tokens.svg")[1])

    def test_packed_bin(self):
        root, texts = self.picture("packed-bin.svg")
        self.assert_inside(root)
        self.assertIn("900 rows to compute: 3 prompts of 300 rows", texts)
        self.assertIn("53 % of the rows are padding", texts)
        widths = [float(rect.get("width")) for rect in root.iter(SVG + "rect") if rect.get("fill")]
        self.assertEqual(widths[:3], widths[3:])
        self.assertAlmostEqual(widths[2] / widths[0], 3, places=2)

    def test_timeline_of_medians(self):
        root, texts = self.picture("timeline.svg")
        self.assert_inside(root)
        self.assertIn("first token after 92 ms", texts)
        self.assertIn("first token after 204 ms", texts)
        self.assertIn("score 1,000 tokens: 20 ms", texts)
        self.assertEqual(texts.count("speculator"), 1)

    def test_keep_rates(self):
        root, texts = self.picture("keep-rates.svg")
        self.assert_inside(root)
        for words in ("92 ms", "204 ms", "300 (30 %)", "2.2", "2 of 3", "3 of 3"):
            self.assertIn(words, texts)

    def assert_refused(self, name, sentence):
        result = self.run_program()
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr, "%s: %s\n" % (os.path.join(self.folder.name, name), sentence))

    def test_two_bins(self):
        self.data["bin.json"]["policies"][1]["bins"] = 2
        self.assert_refused("bin.json", "the prompts must be one padded batch and one bin")

    def test_missing_field(self):
        del self.data["kept.json"]["usage"]
        self.assert_refused("kept.json", "not what bench/pictures.sh collects (KeyError: 'usage')")

    def test_missing_rate(self):
        self.data["requests.json"] = REQUESTS[:3]
        self.assert_refused("requests.json",
                            "not what bench/pictures.sh collects (IndexError: list index out of range)")


unittest.main()
