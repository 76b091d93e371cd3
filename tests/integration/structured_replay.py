# SPDX-License-Identifier: Apache-2.0
"""Prints a streamed answer that must match a schema, and kills a process when chunk number AT of it has come.

Usage: structured_replay.py URL AT PID; AT 0: kills nothing
"""
import os
import signal
import sys

import openai

url, at, pid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=600)
body = {"guided_json": {"type": "array", "items": {"type": "string", "maxLength": 9}, "minItems": 6, "maxItems": 8}}
stream = client.completions.create(
    model=client.models.list().data[0].id, prompt="Names: ", max_tokens=200, seed=5, stream=True, extra_body=body
)
text = ""
for number, chunk in enumerate(stream, 1):
    text += chunk.choices[0].text if chunk.choices else ""
    if number == at:
        os.kill(pid, signal.SIGKILL)
print(text)
