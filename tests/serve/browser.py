"""A real Chromium for the tests of the page: Debian's package, driven by Playwright, kept from every other machine."""

import shutil
from urllib.parse import urlsplit

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


def find_chromium() -> str:
    """Return where Chromium is; skip the test if it or Playwright is not installed."""
    pytest.importorskip("playwright", reason="needs playwright (extra dev)")
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    return found


class Visit:
    """A visit to the page, which remembers what the console said and what was asked of which host."""

    def __init__(self, browser, url, **options):
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        self.context.set_default_timeout(60_000)  # slow machines
        self.page = self.context.new_page()
        self.url = url
        self.complaints: list[str] = []
        self.hosts: set[str | None] = set()
        self.bodies: list[dict] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._request)

    def _console(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _request(self, request):
        self.hosts.add(urlsplit(request.url).hostname)
        if request.post_data:
            self.bodies.append(request.post_data_json)

    def open(self, tab="write"):
        self.page.goto(f"{self.url}/#{tab}")
        self.page.locator("#store option").first.wait_for(state="attached")
        return self

    def find(self, selector):
        return self.page.locator(selector)

    def tokens(self, tab="write"):
        return self.find(f"#{tab}-output [role=option]")

    def text(self, tab="write"):
        return self.find(f"#{tab}-output [role=listbox]").text_content()

    def after(self, change, tab="write"):
        """Do something that makes the page ask again; return the text once that is answered."""
        with self.page.expect_request("**/v1/completions" if tab == "write" else "**/v1/nearlm/score"):
            change()
        self.find(f"#{tab}-output[aria-busy=false]").wait_for(state="attached")
        return self.text(tab)

    def write(self, prompt, tokens=12):
        """Fill the form and generate; return the text."""
        self.page.fill("#prompt", prompt)
        self.page.fill("#max-tokens", str(tokens))
        return self.after(self.page.get_by_role("button", name="Generate").click)

    def score(self, text):
        """Open the second tab, paste a text and score it."""
        self.page.get_by_role("tab", name="Score").click()
        self.page.fill("#text", text)
        return self.after(self.page.get_by_role("button", name="Score").click, "score")
