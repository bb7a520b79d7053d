"""Load on a real server, over the loopback only: throughput together and one after another, time to the first token.

    python benchmarks/serve_load.py cache:smollm2-spdx [--no-draft]
    python benchmarks/serve_load.py cache:smollm2-spdx --minutes 10

The second form sends eight times as many requests at once as the server computes together, for some minutes: every
answer is compared with the one that the same prompt got alone, refused requests must get 429 or 503, and the
server's memory must not grow.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

PROMPTS = """Permission is hereby granted, free of charge, to any person
This program is free software; you can redistribute it and
Redistribution and use in source and binary forms, with or without
Licensed under the Apache License, Version 2.0; you may not
THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
You may reproduce and distribute copies of the Work or Derivative
IN NO EVENT SHALL THE AUTHORS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
The above copyright notice and this permission notice shall be included""".splitlines()
TIE = 2e-3  # nats: tokens that are this close may change places with the rounding of sums
BATCH = 8
PASS = 64  # tokens, at most
REQUESTS = 4  # of each client, so that the load is steady most of the time


@dataclass
class Answer:
    """What came of one request, and when."""

    status: int
    text: str = ""
    ids: list[int] = field(default_factory=list)
    count: int = 0
    first: float = 0.0
    seconds: float = 0.0


@contextmanager
def server(store: str, *options: str):
    """Run a server as users do; yield its address and process id."""
    command = [sys.executable, "-m", "nearlm", "serve", store, "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", line := process.stderr.readline())):
            if not line:
                raise SystemExit("the server did not start")
        threading.Thread(target=lambda: [print(line, end="", file=sys.stderr) for line in process.stderr]).start()
        yield found[0], process.pid
    finally:
        process.terminate()
        print("server ended with", process.wait(20))


def ask(client: httpx.Client, prompt: str, model: str, tokens: int, *, explain: bool = False) -> Answer:
    """Stream one greedy completion; the ids of its tokens are told only with explanations."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    if explain:
        body["nearlm"] = {"explain": True, "neighbors": 0}
    started = time.perf_counter()
    made = Answer(200)
    with client.stream("POST", "/v1/completions", json=body) as response:
        made.status = response.status_code
        if made.status != 200:
            return made
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            made.first = made.first or time.perf_counter() - started
            part = json.loads(line[6:])
            if "error" in part:
                return Answer(503)
            if "usage" in part:
                made.count = part["usage"]["completion_tokens"]
            for choice in part["choices"]:
                made.text += choice["text"]
                made.ids += [token["id"] for token in choice.get("nearlm", {}).get("tokens", [])]
    made.seconds = time.perf_counter() - started
    return made


def together(url: str, clients: int, model: str, tokens: int, requests: int = 1) -> tuple[float, list[Answer]]:
    """Send requests of all clients at once, those of each one after another; return tokens per second and answers."""
    found: list[Answer] = []

    def run(number: int) -> None:
        with httpx.Client(base_url=url, timeout=600) as client:
            for turn in range(requests):
                found.append(ask(client, PROMPTS[(number + turn) % len(PROMPTS)], model, tokens))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    started = time.perf_counter()
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return sum(answer.count for answer in found) / (time.perf_counter() - started), found


def one_by_one(url: str, clients: int, model: str, tokens: int) -> tuple[float, list[Answer]]:
    """Send the same requests one after another."""
    with httpx.Client(base_url=url, timeout=600) as client:
        started = time.perf_counter()
        found = [ask(client, PROMPTS[number % len(PROMPTS)], model, tokens) for number in range(clients)]
        return sum(answer.count for answer in found) / (time.perf_counter() - started), found


def reading_speed(store: str) -> float:
    """Return the tokens per second of a pass over as many as all rows together have with drafts.

    Drafted tokens are read too, so this is more than any number of clients can get.
    """
    from nearlm.knnlm.attachment import Attachment
    from nearlm.knnlm.pass_costs import pass_costs
    from nearlm.mixing import Memory
    from nearlm.store import Datastore
    from nearlm.store.model_files import load_lm

    opened = Datastore.open(store)
    memory, lm = Memory.open(opened), load_lm(opened)
    with lm.packed(), Attachment(lm, memory):
        seconds = pass_costs(lm, memory, BATCH).by_tokens(PASS)
    return len(seconds) / float(seconds[-1])


def measure(url: str, clients: int, tokens: int, rounds: int) -> None:
    """Measure throughput with the memory and without, in turns."""
    with httpx.Client(base_url=url) as client:
        name = client.get("/v1/models").json()["data"][0]["id"]
    for model in (name, f"{name}:off"):  # loads kernels and pages
        one_by_one(url, clients, model, tokens)
    speeds: dict[tuple[str, str], list[float]] = {}
    firsts: dict[str, list[float]] = {"one after another": [], f"{clients} clients at once": []}
    for _ in range(rounds):
        for model in (name, f"{name}:off"):
            alone, lone = one_by_one(url, clients, model, tokens)
            speed, answers = together(url, clients, model, tokens, REQUESTS)
            speeds.setdefault((model, "one after another"), []).append(alone)
            speeds.setdefault((model, f"{clients} clients"), []).append(speed)
            if model == name:
                firsts[f"{clients} clients at once"] += [answer.first for answer in answers]
                firsts["one after another"] += [answer.first for answer in lone]
    medians = {key: statistics.median(values) for key, values in speeds.items()}
    for (model, how), value in medians.items():
        print(f"{model:24} {how:20} {value:8.1f} tokens/s")
    on, off = medians[name, f"{clients} clients"], medians[f"{name}:off", f"{clients} clients"]
    print(f"{clients} clients / one after another, with memory: {on / medians[name, 'one after another']:.2f}")
    print(f"memory on / off, {clients} clients: {on / off:.3f}")
    alone_on, alone_off = medians[name, "one after another"], medians[f"{name}:off", "one after another"]
    print(f"memory on / off, one after another: {alone_on / alone_off:.3f}")
    for how, found in firsts.items():
        p95 = sorted(found)[int(0.95 * (len(found) - 1))]
        median = statistics.median(found)
        print(f"time to first token with memory, {how}: median {median:.2f} s, p95 {p95:.2f} s ({len(found)} requests)")


def resident(pid: int) -> float:
    """Return the megabytes that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def margins(client: httpx.Client, prompt: str, model: str, tokens: int) -> list[float]:
    """Return by how many nats each token of an answer was likelier than the next one."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 2}
    tops = client.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]["top_logprobs"]
    pairs = (sorted(top.values(), reverse=True) for top in tops)
    return [best - next_best for best, next_best in pairs]


def is_tie(expected: Answer, sure: list[float], ids: list[int]) -> bool:
    """Tell whether an answer leaves the expected one where two tokens are equally likely but for rounding."""
    place = next((i for i, (a, b) in enumerate(zip(expected.ids, ids, strict=False)) if a != b), None)
    return place is not None and sure[place] < TIE


def overload(url: str, pid: int, minutes: float, tokens: int) -> bool:
    """Send eight times as much as is computed together, for some minutes; return whether all was well."""
    with httpx.Client(base_url=url, timeout=600) as client:
        name = client.get("/v1/models").json()["data"][0]["id"]
        asked = [(model, prompt) for model in (name, f"{name}:off") for prompt in PROMPTS]
        expected = {(model, prompt): ask(client, prompt, model, tokens, explain=True) for model, prompt in asked}
        sure = {(model, prompt): margins(client, prompt, model, tokens) for model, prompt in asked}
    statuses: Counter[int] = Counter()
    others: list[tuple[tuple[str, str], list[int]]] = []
    until = time.monotonic() + 60 * minutes
    lock = threading.Lock()

    def run(number: int) -> None:
        with httpx.Client(base_url=url, timeout=600) as client:
            turn = number
            while time.monotonic() < until:
                turn += 1
                model = name if turn % 2 else f"{name}:off"
                prompt = PROMPTS[turn % len(PROMPTS)]
                answer = ask(client, prompt, model, tokens, explain=True)
                with lock:
                    statuses[answer.status] += 1
                    if answer.status == 200 and answer.ids != expected[model, prompt].ids:
                        others.append(((model, prompt), answer.ids))
                if answer.status != 200:
                    time.sleep(0.5)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8 * BATCH)]
    [thread.start() for thread in threads]
    held = []
    while time.monotonic() < until:
        time.sleep(min(5, max(0.1, until - time.monotonic())))
        held.append(resident(pid))
    [thread.join() for thread in threads]
    ties = sum(is_tie(expected[key], sure[key], ids) for key, ids in others)
    early, late = held[len(held) // 4], held[-1]
    print(f"{8 * BATCH} clients, {BATCH} computed together, {minutes:g} minutes: answers by status {dict(statuses)}")
    print(
        f"as alone: {statuses[200] - len(others)}; other tokens of the same likelihood (rounding): {ties}; "
        f"wrong: {len(others) - ties}"
    )
    print(f"resident memory after a quarter {early:.0f} MB, at the end {late:.0f} MB, most {max(held):.0f} MB")
    return len(others) == ties and set(statuses) <= {200, 429, 503} and late <= 1.03 * early


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=0.0, help="at eight times the load that is computed together")
    parser.add_argument("--no-draft", action="store_true", help="one token per pass and request")
    given = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    options = ("--max-batch", str(BATCH), "--max-queue", str(4 * BATCH)) if given.minutes else ()
    with server(given.store, *options, *(("--no-draft",) if given.no_draft else ())) as (url, pid):
        if given.minutes:
            return 0 if overload(url, pid, min(given.minutes, 60), given.tokens) else 1
        measure(url, given.clients, given.tokens, given.rounds)
    if not given.no_draft:
        print(f"a pass over {PASS} tokens reads {reading_speed(given.store):.1f} tokens/s, drafted ones too")
    return 0


if __name__ == "__main__":
    sys.exit(main())
