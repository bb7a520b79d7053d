"""The inspector page in a real Chromium, talking to a real server."""

import math
import re

import pytest
from browser import ARGUMENTS, Visit, find_chromium
from live import run_server

PROMPT = "the licence grants"
TEXT = "the licence grants rights to any person who uses software free of charge."
KEY = "a-key-of-some-length"
SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
GAINS = (0.1, 0.5, 1.5, 3)
CONTRAST = """() => {
  const luminance = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const card = getComputedStyle(document.querySelector(".result")).backgroundColor;
  const seen = [];
  for (const scale of ["share", "gain"]) {
    const place = document.querySelector("#write-output");
    place.dataset.colour = scale;
    for (const step of ["s0", "s1", "s2", "s3", "s4", "s5", "g1", "g2", "g3", "g4", "l1", "l2", "l3", "l4"]) {
      const token = document.createElement("span");
      token.className = `t ${step}`;
      place.append(token);
      const { color, backgroundColor } = getComputedStyle(token);
      const ground = backgroundColor === "rgba(0, 0, 0, 0)" ? card : backgroundColor;
      const pair = [luminance(color), luminance(ground)].sort().reverse();
      seen.push([step, (pair[0] + 0.05) / (pair[1] + 0.05), ground]);
      token.remove();
    }
  }
  const muted = getComputedStyle(document.querySelector(".status")).color;
  const pair = [luminance(muted), luminance(card)].sort().reverse();
  seen.push(["muted", (pair[0] + 0.05) / (pair[1] + 0.05), card]);
  return seen;
}"""


@pytest.fixture(scope="module")
def chromium():
    path = find_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, running):
    """Visit the page; in the end nothing was complained of, and no other machine was asked."""
    visits = []

    def begin(url=running.url, **options):
        visits.append(Visit(chromium, url, **options))
        return visits[-1]

    yield begin
    for one in visits:
        one.context.close()
        assert not one.complaints
        assert one.hosts == {"127.0.0.1"}


def complete(http, **fields):
    """Return the text and the explained tokens of a greedy completion, without the page."""
    nearlm = {"explain": True, "neighbors": 5, **fields.pop("nearlm", {})}
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "seed": 0, "nearlm": nearlm, **fields}
    [choice] = http.post("/v1/completions", json=body).json()["choices"]
    return choice["text"], choice["nearlm"]["tokens"]


def share(token):
    return token["weight"] * token["p_memory"] / token["p"] if token["p_memory"] is not None else 0.0


def steps(value, ends):
    return sum(value >= end for end in ends)


def gain_class(token):
    gain = math.log2(token["p"] / token["p_lm"])
    step = steps(abs(gain), GAINS)
    return f"{'g' if gain > 0 or not step else 'l'}{step}"


def percentage(text):
    """Read a probability as the page writes it."""
    return float(text.removesuffix(" %")) / 100 if "%" in text else float(text)


def test_tokens_are_written_and_coloured_by_the_share_of_the_memory(visit, http):
    one = visit().open()
    shown = one.write(PROMPT)
    text, tokens = complete(http)
    assert shown == text == "".join(token["token"] for token in tokens)
    assert one.find("#write-output .given").text_content() == PROMPT
    classes = one.tokens().evaluate_all("all => all.map((each) => each.className)")
    expected = [{f"s{steps(share(token), SHARES)}", gain_class(token)} for token in tokens]
    assert all(each <= set(found.split()) for each, found in zip(expected, classes, strict=True))
    assert len(set(classes)) > 1
    assert one.find("#status").text_content().startswith("12 tokens")


def test_a_click_shows_probabilities_and_contexts(visit, http):
    one = visit().open()
    one.write(PROMPT)
    token = next(each for each in complete(http)[1] if any(near["match"] for near in each["neighbors"]))
    index = complete(http)[1].index(token)
    one.tokens().nth(index).click()
    rows = one.find(".probabilities tr").evaluate_all("rows => rows.map((row) => row.cells[1].textContent)")
    for shown, wanted in zip(rows, (token["p"], token["p_lm"], token["p_memory"]), strict=True):
        assert percentage(shown) == pytest.approx(wanted, rel=0.06, abs=1e-12)
    assert "λ = 0.40" in one.find(".probabilities caption").text_content()
    near = one.find(".neighbors li")
    assert near.count() == len(token["neighbors"]) == 5
    for place, neighbor in enumerate(token["neighbors"]):
        assert near.nth(place).locator(".from button").text_content() == neighbor["document"]
        kind = "match" if neighbor["match"] else "other"
        assert near.nth(place).locator(f"mark.{kind}").text_content().strip() == neighbor["token"].strip()
        assert neighbor["after"] in near.nth(place).locator(".context").text_content()


def test_the_context_that_is_shared_is_marked(visit):
    one = visit().open()
    one.score(TEXT)
    one.tokens("score").nth(20).click()
    before = one.find("#score-output").text_content()
    for shared in one.find(".neighbors .shared").all_text_contents():
        assert not shared or " ".join(shared.split()) in " ".join(before.split())


def test_the_sliders_change_the_text(visit, http):
    one = visit().open()
    first = one.write(PROMPT)
    alone, _ = complete(http, model="mem:off")
    memory, _ = complete(http, nearlm={"lam": 1.0})
    assert alone not in (first, memory)  # or the sliders would show nothing
    lam = one.find("#lam")
    assert "lam" not in one.bodies[-1]["nearlm"]
    assert lam.get_attribute("aria-valuetext") == "auto (0.40)"
    assert one.after(lambda: lam.press("Home")) == alone
    assert one.bodies[-1]["nearlm"]["lam"] == 0
    assert one.after(lambda: lam.press("End")) == memory
    assert one.find("#write-output .changed").count() == 1
    one.after(lambda: one.find("#k").press("Home"))
    one.after(lambda: one.find("#knn_temperature").press("End"))
    assert one.bodies[-1]["nearlm"].items() >= {"lam": 1, "k": 1, "knn_temperature": 5000}.items()
    assert one.after(one.page.get_by_role("button", name="Reset").click) == first
    assert one.bodies[-1]["nearlm"] == {"explain": True, "neighbors": 5, "memory": True}


def test_the_switch_leaves_the_model_alone(visit, http):
    one = visit().open()
    first = one.write(PROMPT)
    alone, _ = complete(http, model="mem:off")
    assert one.after(one.find(".switch").click) == alone != first
    assert one.find("#write-output .s0").count() == one.tokens().count() == 12
    assert one.find("#lam").is_disabled()
    assert one.after(lambda: one.find("#memory").press("Space")) == first


def test_a_newer_request_stops_the_older_and_stop_stops(visit):
    one = visit().open()
    one.page.route("**/v1/completions", lambda route: None)  # never answered
    failed = []
    one.page.on("requestfailed", lambda request: failed.append(request.post_data_json["prompt"]))
    for prompt in ("one", "two"):
        one.page.fill("#prompt", prompt)
        with one.page.expect_request("**/v1/completions"):
            one.find("#prompt").press("Control+Enter")
    one.page.wait_for_timeout(100)
    assert failed == ["one"]
    with one.page.expect_event("requestfailed"):
        one.page.get_by_role("button", name="Stop").click()
    one.find("#stop:disabled").wait_for()
    assert failed == ["one", "two"] and one.find("#error").is_hidden()


def test_a_text_is_scored(visit, http):
    one = visit().open()
    one.score(TEXT)
    found = http.post("/v1/nearlm/score", json={"text": TEXT}).json()
    classes = one.tokens("score").evaluate_all("all => all.map((each) => each.className)")
    assert all(gain_class(token) in seen.split() for token, seen in zip(found["tokens"], classes, strict=True))
    cells = one.find("#totals td").all_text_contents()
    bits, bits_alone = (
        -sum(math.log2(token[name]) for token in found["tokens"]) / len(TEXT.encode()) for name in ("p", "p_lm")
    )
    assert [float(cells[1]), float(cells[2])] == pytest.approx([bits_alone, bits], abs=6e-4)
    assert [float(cells[4]), float(cells[5])] == pytest.approx(
        [found["perplexity_lm"], found["perplexity"]], rel=1e-3, abs=6e-3
    )
    one.find("#colour").select_option("share")
    assert one.find("#score-output").get_attribute("data-colour") == "share"
    assert one.find("#legend").text_content() == "0 %100 %"


def test_html_is_text(visit):
    one = visit().open()
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script> &amp; the licence"
    one.write(hostile)
    assert one.find("#write-output .given").text_content() == hostile
    one.score(hostile)
    assert one.find("#score-output").text_content() == hostile
    assert one.find(".output :is(img, script)").count() == 0


def test_the_stores_and_their_documents(visit):
    one = visit().open("stores")
    cards = one.find("#store-list button")
    assert [card.split("model")[0] for card in cards.all_text_contents()] == ["mem", "bare"]
    one.find("#document-list li").nth(2).wait_for()
    assert one.find("#found").text_content() == "3 documents"
    one.page.fill("#query", "doc1")
    one.page.get_by_text("1 of 3 documents").wait_for()
    one.find("#document-list button").click()
    one.find("#document pre").wait_for()
    assert one.find("#document h2").text_content().endswith("doc1.txt")
    body = one.find("#document pre").text_content()
    assert len(body) > 200
    one.after(one.page.get_by_role("button", name="Continue its beginning").click)
    assert len(one.bodies[-1]["prompt"]) > 100 and body.startswith(one.bodies[-1]["prompt"])


def test_a_neighbours_document_opens(visit):
    one = visit().open()
    one.write(PROMPT)
    one.tokens().nth(2).click()
    link = one.find(".neighbors .from button").first
    name = link.text_content()
    link.click()
    one.find("#document h2").wait_for()
    assert one.find("#document h2").text_content() == name
    assert one.find("#tab-stores").get_attribute("aria-selected") == "true"


def test_a_store_without_keys_shows_its_mixture(visit):
    one = visit().open()
    one.find("#store").select_option("bare")
    one.write(PROMPT)
    assert one.bodies[-1]["model"] == "bare"
    assert one.find("#lam").is_disabled()
    one.tokens().nth(3).click()
    assert {"model", "∞-gram"} <= set(one.find(".weights dt").all_text_contents())


def test_everything_works_with_the_keyboard(visit, http):
    one = visit().open()
    keys = one.page.keyboard

    def focused(script):
        return one.page.evaluate(f"() => document.activeElement.{script}")

    def tab_to(script, wanted, key="Tab"):
        for _ in range(30):
            if focused(script) == wanted:
                return
            keys.press(key)
        raise AssertionError(f"the tab key does not reach {wanted}")

    tab_to("id", "prompt")
    keys.type(PROMPT)
    one.after(lambda: keys.press("Control+Enter"))
    tab_to("getAttribute('role')", "option")
    assert focused("textContent") == one.tokens().nth(0).text_content()
    keys.press("ArrowRight")
    keys.press("ArrowRight")
    assert one.tokens().nth(2).get_attribute("aria-selected") == "true"
    assert one.find(".inspector .head").text_content().split(",")[0].endswith("token 3")
    assert one.find("#write-output [tabindex='0']").count() == 1
    keys.press("End")
    assert one.tokens().last.get_attribute("aria-selected") == "true"
    keys.press("ArrowUp")
    keys.press("Escape")
    assert one.find(".inspector .hint").first.is_visible()
    keys.press("Enter")
    assert one.find(".inspector .probabilities").is_visible()
    tab_to("id", "tab-write", "Shift+Tab")
    keys.press("ArrowRight")
    tab_to("id", "text")
    keys.type(TEXT)
    one.after(lambda: keys.press("Control+Enter"), "score")
    assert one.tokens("score").count() > 10


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(visit, scheme):
    one = visit(viewport={"width": 390, "height": 844}, color_scheme=scheme, has_touch=True).open()
    one.write(PROMPT, 60)

    def width():
        return one.page.evaluate("() => document.documentElement.scrollWidth")

    assert width() <= 390
    one.tokens().nth(40).tap()
    sheet = one.find(".inspector").bounding_box()
    chosen = one.tokens().nth(40).bounding_box()
    assert width() <= 390 and chosen["y"] + chosen["height"] <= sheet["y"]
    one.page.get_by_role("button", name="Close").tap()
    assert one.find(".inspector").is_hidden()
    one.score(TEXT)
    assert width() <= 390
    one.page.get_by_role("tab", name="Stores").tap()
    one.find("#document-list button").first.tap()
    one.find("#document pre").wait_for()
    assert width() <= 390


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_can_be_read(visit, scheme):
    one = visit(color_scheme=scheme, reduced_motion="reduce").open()
    seen = one.page.evaluate(CONTRAST)
    assert len(seen) == 29 and all(contrast >= 4.5 for _, contrast, _ in seen), seen
    dark = one.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", dark))) < 200) == (scheme == "dark")
    assert one.page.evaluate("() => getComputedStyle(document.querySelector('.knob')).transitionDuration") == "0s"


def test_every_control_has_a_name(visit):
    one = visit().open()
    one.write(PROMPT)
    one.tokens().nth(1).click()
    for tab in ("write", "score", "stores"):
        one.page.get_by_role("tab", name=tab.capitalize()).click()
        snapshot = one.find("body").aria_snapshot()
        unnamed = re.findall(
            r"- (?:button|textbox|searchbox|slider|spinbutton|combobox|switch|tab|listbox)\s*(?:\[|:|$)", snapshot, re.M
        )
        assert not unnamed, snapshot


def test_a_refusal_is_one_line(visit):
    one = visit().open()
    one.write(PROMPT)
    one.page.fill("#max-tokens", "1000")
    one.find("#error:not([hidden])").wait_for()
    assert one.find("#error span").text_content() == "max_tokens is 1000, the server allows 64 (error 400)"
    assert one.find("#error").bounding_box()["height"] < 60
    assert one.tokens().count() == 12  # what was written stays
    one.complaints = [each for each in one.complaints if "400 (Bad Request)" not in each]


def test_a_key_is_asked_for_once(visit, stores, served_lm):
    server = run_server(stores, served_lm, key=KEY)
    try:
        one = visit(server.url)
        one.page.goto(server.url)
        dialog = one.page.get_by_role("dialog")
        for key in ("wrong", KEY):
            dialog.wait_for()
            one.page.fill("#key", key)
            one.page.get_by_role("button", name="Use it").click()
        one.find("#store option").first.wait_for(state="attached")
        assert one.write(PROMPT)
        one.open()  # again: the key is known
        assert dialog.is_hidden()
        one.complaints = [each for each in one.complaints if "401" not in each]
    finally:
        server.stop()


def test_a_server_that_is_gone_is_said_so(visit, stores, served_lm):
    server = run_server(stores, served_lm)
    one = visit(server.url).open()
    server.stop()
    one.page.fill("#prompt", PROMPT)
    one.page.get_by_role("button", name="Generate").click()
    one.page.get_by_text("The server does not answer. Is `nearlm serve` still running?").wait_for()
    assert one.page.get_by_role("button", name="Try again").is_visible()
    one.complaints = [each for each in one.complaints if "ERR_CONNECTION" not in each]
