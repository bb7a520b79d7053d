"""Write the screenshots of the inspector page in docs/figures: `python docs/make_screenshots.py STORE`.

Serves the store (`cache:smollm2-spdx` with an index and a gate made the ones in the repository) on a free port of this
machine and drives Chromium, which must be installed, through the page.
"""

import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

FIGURES = Path(__file__).with_name("figures")
PROMPT = "You may share this game with your friends, and change it if you like. But you must"
TEXT = """The above copyright notice and this permission notice shall be included in all copies or substantial portions
of the Software. My neighbour's cat sleeps on the warm stone wall all afternoon.
THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT.""".replace("\n", " ")
WIDE, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
MOST_BYTES = 200_000


def main() -> None:
    """Serve, look, and keep what is seen."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    chromium = shutil.which("chromium") or sys.exit("needs Chromium: apt-get install chromium")
    port = free_port()
    server = subprocess.Popen([sys.executable, "-m", "nearlm", "serve", sys.argv[1], "--port", str(port)])
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(url, server)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            take_all(browser, url)
            browser.close()
    finally:
        server.terminate()
        server.wait()


def take_all(browser: Browser, url: str) -> None:
    """Take every screenshot."""
    for name, viewport, scheme in (("write", WIDE, "light"), ("phone", PHONE, "dark")):
        page = visit(browser, url, viewport, scheme)
        write(page)
        keep(page, name)
    page = visit(browser, url, WIDE, "dark")
    score(page)
    keep(page, "score")
    page = visit(browser, url, WIDE, "light")
    read(page)
    keep(page, "stores")


def visit(browser: Browser, url: str, viewport: dict[str, int], scheme: str) -> Page:
    """Open the page in a browser that remembers nothing."""
    page = browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce").new_page()
    page.set_default_timeout(300_000)
    page.goto(url)
    page.wait_for_selector("#store option", state="attached")
    return page


def write(page: Page) -> None:
    """Go on from a prompt, and choose a token that owes much to the memory and is that of a near context."""
    page.fill("#prompt", PROMPT)
    page.fill("#max-tokens", "90")
    page.locator("#prompt").press("Control+Enter")
    page.wait_for_selector("#write-output[aria-busy=false] [role=option]", state="attached")
    good = (
        "all => all.map((_, i) => i).filter((i) => /s[345] g[34]/.test(all[i].className) && all[i].textContent.trim())"
    )
    tokens = page.locator("#write-output [role=option]")
    for place in tokens.evaluate_all(good):
        tokens.nth(place).click()
        if page.locator(".neighbors mark.match").count():
            return


def score(page: Page) -> None:
    """Score a text of which the memory knows a part."""
    page.get_by_role("tab", name="Score").click()
    page.fill("#text", TEXT)
    page.locator("#text").press("Control+Enter")
    page.wait_for_selector("#score-output[aria-busy=false] [role=option]", state="attached")
    tokens = page.locator("#score-output [role=option]")
    tokens.nth(tokens.evaluate_all("all => all.findIndex((one, i) => i > 4 && one.className.includes('g4'))")).click()


def read(page: Page) -> None:
    """Search the documents and open one."""
    page.get_by_role("tab", name="Stores").click()
    page.fill("#query", "merchantability")
    page.get_by_text(" of ").first.wait_for()
    page.locator("#document-list button").nth(1).click()
    page.wait_for_selector("#document pre")


def keep(page: Page, name: str) -> None:
    """Save what is seen, if it is small enough for a repository."""
    path = FIGURES / f"page-{name}.png"
    page.mouse.move(0, 0)
    page.screenshot(path=path)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    if size > MOST_BYTES:
        sys.exit(f"{path.name} has {size} bytes, expected at most {MOST_BYTES}")
    print(f"{path.name}: {size} bytes")


def free_port() -> int:
    """Return a port of this machine that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for(url: str, server: "subprocess.Popen[bytes]") -> None:
    """Wait until a server answers."""
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health")
            return
        except urllib.error.URLError:
            time.sleep(0.5)
    sys.exit("the server ended before it answered")


if __name__ == "__main__":
    main()
