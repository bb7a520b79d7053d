"""How fast the inspector page is with many tokens, in Chromium: a stream, a click, a move of the keyboard.

    python benchmarks/page_speed.py [--tokens 1000] [--rounds 3]

The server streams prepared tokens as fast as the page takes them, so that only the page's own work is measured: the
time of the browser's main thread for the stream (script, style, layout), its longest task, and the time from a click
until its details are laid out.
"""

import argparse
import json
import shutil
import statistics
import sys
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from playwright.sync_api import CDPSession, Page, sync_playwright

from nearlm.serve.page_files import add_page

WORDS = "Permission is hereby granted , free of charge to any person obtaining a copy of this software \n".split(" ")
STORE = {"name": "prepared", "model": "none", "records": 1, "documents": 0, "tokens": 1, "settings": {}}
TIMES = ("TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration")
CLICKS = """async (count) => {
  const tokens = [...document.querySelectorAll("#write-output [role=option]")];
  const frame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  const times = [];
  for (let i = 0; i < count; i += 1) {
    await frame();
    const begun = performance.now();
    tokens[(i * 37) % tokens.length].click();
    document.body.getBoundingClientRect();
    times.push(performance.now() - begun);
  }
  return times;
}"""
MOVES = """async ([count, key]) => {
  document.querySelectorAll("#write-output [role=option]")[500].focus();
  const times = [];
  for (let i = 0; i < count; i += 1) {
    const begun = performance.now();
    document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    document.body.getBoundingClientRect();
    times.push(performance.now() - begun);
  }
  return times;
}"""
WATCH = """() => {
  window.longTasks = [];
  new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((each) => each.duration)))
    .observe({ type: "longtask" });
}"""


def token(index: int) -> dict[str, Any]:
    word = WORDS[index % len(WORDS)]
    text = word if word == "\n" else f" {word}"
    near = {"document": "MIT.txt", "before": "and to permit persons " * 6, "after": " to whom the" * 4, "token": text}
    share = index % 11 / 10
    weights = {"lm": 1 - share, "knn": share / 2, "infini-gram": share / 4, "text": share / 4}
    return {
        "token": text,
        "id": index % len(WORDS),
        "p": 0.5,
        "p_lm": 0.5 ** (index % 5),
        "p_memory": 0.5,
        "weight": share,
        "searched": True,
        "weights": weights,
        "suffix": {"length": 7, "count": 12, "document": "MIT.txt"},
        "neighbors": [{**near, "record": n, "distance": 3.0 + n, "weight": 0.2, "match": n < 3} for n in range(5)],
    }


def lines(count: int) -> Iterator[bytes]:
    for index in range(count):
        choice = {"index": 0, "text": "", "nearlm": {"tokens": [token(index)]}}
        yield f"data: {json.dumps({'choices': [choice]})}\n\n".encode()
    yield b"data: [DONE]\n\n"


def make_server() -> tuple[uvicorn.Server, str]:
    app = FastAPI()
    add_page(app)
    app.get("/v1/nearlm/stores")(lambda: {"stores": [STORE]})

    @app.post("/v1/completions")
    def completions(asked: dict[str, Any]) -> StreamingResponse:
        return StreamingResponse(lines(asked["max_tokens"]), media_type="text/event-stream")

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        pass
    port = server.servers[0].sockets[0].getsockname()[1]
    return server, f"http://127.0.0.1:{port}"


def times(cdp: CDPSession) -> dict[str, float]:
    found = {each["name"]: each["value"] for each in cdp.send("Performance.getMetrics")["metrics"]}
    return {name: found[name] * 1000 for name in TIMES}


def measure(page: Page, url: str, tokens: int) -> dict[str, float]:
    page.goto(url)
    page.wait_for_selector("#store option", state="attached")
    page.fill("#prompt", "Permission")
    page.fill("#max-tokens", str(tokens))
    cdp = page.context.new_cdp_session(page)
    cdp.send("Performance.enable")
    page.evaluate(WATCH)
    before = times(cdp)
    page.locator("#prompt").press("Control+Enter")
    last = f"#write-output[aria-busy=false] [role=option]:nth-child({tokens})"
    page.wait_for_selector(last, state="attached", timeout=120_000)
    stream = {f"stream {name}": value - before[name] for name, value in times(cdp).items()}
    longest = max(page.evaluate("() => window.longTasks"), default=0.0)
    clicks = page.evaluate(CLICKS, 50)
    moves = {key: page.evaluate(MOVES, [50, key]) for key in ("ArrowRight", "ArrowUp")}
    return {
        **stream,
        "stream longest task": longest,
        "click median": statistics.median(clicks),
        "click longest": max(clicks),
        **{f"{key} median": statistics.median(found) for key, found in moves.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    chromium = shutil.which("chromium") or sys.exit("needs Chromium: apt-get install chromium")
    server, url = make_server()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        rounds = [measure(browser.new_page(), url, options.tokens) for _ in range(options.rounds)]
        browser.close()
    server.should_exit = True
    print(f"{options.tokens} tokens, median of {options.rounds} rounds, ms")
    for name in rounds[0]:
        print(f"{name:32}{statistics.median(each[name] for each in rounds):10.1f}")


if __name__ == "__main__":
    main()
