"""A gallery that answers in this process, one on a real port, and a real headless Chromium to look at it with."""

from __future__ import annotations

import shutil
import socket
import threading
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from diffrl.gallery.app import make_app
from diffrl.gallery.links import ServerLinks
from diffrl.gallery.site import Site
from diffrl.gallery.sources import find_sources
from reward_models.serving.connections import server_config
from tests.gallery.made import make_run
from tests.patience import LONG, until

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_collection_modifyitems(items):
    """On a loaded machine a browser now and then loses a key or draws late: such a test must fail twice to fail."""
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="session")
def _finished(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "made")


@pytest.fixture
def made(_finished, tmp_path):
    """A finished run of four iterations."""
    return shutil.copytree(_finished, tmp_path / "runs" / "made", copy_function=shutil.copyfile)


@pytest.fixture
def site_of(tmp_path):
    """A site of some paths; votes go to a file of the test's."""

    def site(*paths: Path, **options) -> Site:
        return Site(find_sources(paths), ServerLinks("test"), {"votes": tmp_path / "votes.jsonl", **options})

    return site


@pytest.fixture
def client_of(site_of):
    """A client of the gallery of some paths, in this process."""

    def client(*paths: Path, **options) -> TestClient:
        return TestClient(make_app(site_of(*paths, **options)), base_url="http://127.0.0.1")

    return client


@pytest.fixture
def served(site_of):
    """The address of a running gallery of some paths."""
    import uvicorn

    servers = []

    def start(*paths: Path, **options) -> str:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # no Nagle's delay
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        server = uvicorn.Server(server_config(make_app(site_of(*paths, **options)), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        servers.append((server, thread, listener))
        until(lambda: server.started or not thread.is_alive())
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for server, thread, listener in servers:
        server.should_exit = True
        thread.join(LONG)
        listener.close()


@pytest.fixture(scope="session")
def chromium():
    """A headless Chromium, the system's own; tests that need it are skipped where there is none."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("browser tests need Chromium: apt install chromium")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=1000 * LONG)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS, timeout=1000 * LONG)
        yield browser
        browser.close()


@pytest.fixture
def context_of(chromium):
    """Makes browser contexts that wait for a slow machine, and closes them in the end."""
    made = []

    def context(**options):
        made.append(chromium.new_context(**options))
        made[-1].set_default_timeout(1000 * LONG)  # of navigation too
        return made[-1]

    yield context
    for one in made:
        one.close()


@pytest.fixture
def page(context_of):
    """A fresh page; an error in its scripts fails the test.

    The content security policy is off: Playwright waits for conditions by `eval`, which the policy rightly refuses.
    That no page needs more than the policy allows is tested on `strict_page`.
    """
    yield from _page(context_of, bypass_csp=True)


@pytest.fixture
def strict_page(context_of):
    """The same under the content security policy."""
    yield from _page(context_of)


def _page(context_of, **options):
    context = context_of(viewport={"width": 1280, "height": 800}, reduced_motion="reduce", **options)
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if "Content Security Policy" in line.text else None)
    yield page
    context.close()
    assert not errors, errors
