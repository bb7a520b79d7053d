"""The page's files as they are served: all there, all from the package, nothing that a strict policy forbids."""

import re

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from nearlm.serve.page_files import add_page, read_page

PAGE = read_page()
SCRIPTS = sorted(name for name in PAGE if name.endswith(".js"))


@pytest.fixture(scope="module")
def site():
    app = FastAPI()
    add_page(app)
    return TestClient(app)


def text(name):
    return PAGE[name].content.decode()


def test_the_page_is_served_with_a_strict_policy(site):
    found = site.get("/")
    assert found.status_code == 200 and found.content == PAGE["index.html"].content
    assert found.headers["content-type"] == "text/html; charset=utf-8"
    policy = found.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy


@pytest.mark.parametrize("name", sorted(PAGE))
def test_every_file_is_served_as_what_it_is(site, name):
    found = site.get(f"/assets/{name}")
    assert found.status_code == 200 and found.content == PAGE[name].content
    assert found.headers["content-type"] == PAGE[name].media_type


@pytest.mark.parametrize("name", ["..%2Fpage_files.py", "%2e%2e/page_files.py", "nothing.js", "%00", "a" * 3000])
def test_nothing_else_is_served(site, name):
    assert site.get(f"/assets/{name}").status_code == 404


def test_what_the_page_refers_to_is_there():
    referred = re.findall(r'(?:src|href)="([^"#][^"]*)"', text("index.html"))
    assert len(referred) >= 3 and all(name.removeprefix("assets/") in PAGE for name in referred)
    for script in SCRIPTS:
        assert all(name in PAGE for name in re.findall(r'from "\./([^"]+)"', text(script))), script


@pytest.mark.parametrize("name", sorted(PAGE))
def test_nothing_comes_from_elsewhere_and_nothing_is_inline(name):
    content = text(name).replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?://|@import|url\(", content)
    assert not re.search(r"<script>|<style|\sstyle=|\son[a-z]+=|javascript:", content)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_make_no_html_of_text_and_are_short(name):
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser", text(name)
    )
    assert len(text(name).splitlines()) <= 350
