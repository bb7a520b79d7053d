"""Serve a store and call it with the openai client.

Usage: python examples/serve_and_call.py mem "a prompt"
"""

import re
import subprocess
import sys

from openai import OpenAI

store, prompt = sys.argv[1:3]
command = [sys.executable, "-m", "nearlm", "serve", store, "--port", "0"]
server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
try:
    lines = iter(server.stderr.readline, "")
    address = next(found[0] for line in lines if (found := re.search(r"http://[\w.:]+", line)))
    client = OpenAI(base_url=f"{address}/v1", api_key="none")
    for model in client.models.list():  # the model with its memory, and the model alone
        answer = client.completions.create(model=model.id, prompt=prompt, max_tokens=12, temperature=0)
        print(f"{model.id}: {answer.choices[0].text!r}")
finally:
    server.terminate()
    server.wait()
