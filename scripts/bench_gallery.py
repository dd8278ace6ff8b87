"""How fast the gallery shows two runs of 50,000 samples each: start, first byte, first image in a browser, memory.

    python scripts/bench_gallery.py                  # makes the store once, in build/bench-gallery, about 1 GB
    python scripts/bench_gallery.py --samples 5000 --pictures 200 --dir /tmp/small

Every page is measured against a server of its own: cold is its first request and a browser without a cache; again is
the same page in the same browser. An image counts when it was loaded, not when it was asked for. A page's first byte
comes when the server has made all of it; `CPU` is what that takes it, the first time, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
from benching import markdown
from PIL import Image

from diffrl.tracking.index import INDEX, connect
from diffrl.tracking.store import SampleStore, StoredSample

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.gallery import made_trees  # noqa: E402
from tests.gallery.conftest import FLAGS  # noqa: E402
from tests.gallery.made import write_metrics  # noqa: E402

PAGES = {
    "start": "/",
    "overview of a run": "/run?run={run}",
    "compare two evaluations": "/compare?run={run}",
    "the same, sorted by gain": "/compare?run={run}&sort=gain",
    "compare two runs": "/compare",
    "the same with a word": "/compare?run={run}&prompt=apples&sort=value",
    "trees": "/trees?run={run}",
    "tree": "/tree?run={run}&tree=000020-3",
    "curves": "/curves?run={run}",
    "vote": "/vote?run={run}",
    "votes": "/votes",
    "report": "/report?run={run}",
}
WITHOUT = ("start", "curves", "votes")
"""Pages without an image."""
INLINE = ("report",)
"""Pages whose images are part of them."""
PROMPTS, ROOTS = 250, 4
"""Of an evaluation; an iteration of training has 64 prompts and 4 samples each."""
FIRST_PICTURE = """
document.addEventListener("load", (event) => {
  if (event.target.matches?.("main img") && event.target.naturalWidth) window.first ??= performance.now();
}, true);
"""


def make_store(run: Path, samples: int, pictures: int) -> None:
    """Write half evaluations, half training; `pictures` files of 512 pixels, hard links for the other rows."""
    if (run / "made").exists():
        return
    shutil.rmtree(run, ignore_errors=True)
    write_metrics(run, 100)
    config = f"run: {{name: {run.name}, dir: runs, seed: 0, iterations: 100}}\n"
    (run / "config.yaml").write_text(config, encoding="utf-8")
    (run / "environment.json").write_text("{}", encoding="utf-8")
    evaluations = max(2, samples // 2 // (PROMPTS * ROOTS))
    with SampleStore(run) as store:
        for number in range(evaluations):
            store.write(_batch("eval", number * 4, PROMPTS))
        for iteration in range((samples - evaluations * PROMPTS * ROOTS) // 256):
            store.write(_batch("train", iteration, 64))
    index = connect(run, readonly=False)
    index.execute("UPDATE samples SET picture = printf('samples/%s-%06d/%d-%d.webp', stage, iteration, group_id, root)")
    files = [Path(run / file) for (file,) in index.execute("SELECT picture FROM samples ORDER BY random()")]
    index.close()
    for number, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        if number < pictures:
            _draw(number).save(file, lossless=True, quality=0, method=0)
        else:
            os.link(files[number % pictures], file)
    made_trees.write(run, made_trees.forest())
    (run / "made").touch()


def make_second(run: Path, other: Path) -> None:
    """Write the same samples once more, as another run: images by hard links."""
    if (other / "made").exists():
        return
    shutil.rmtree(other, ignore_errors=True)
    shutil.copytree(run, other, copy_function=lambda a, b: os.link(a, b) if a.endswith(".webp") else shutil.copy2(a, b))


def _batch(stage: str, iteration: int, prompts: int) -> list[StoredSample]:
    random = np.random.default_rng((iteration, len(stage)))
    return [
        StoredSample(
            stage=stage,
            iteration=iteration,
            group=group,
            root=root,
            seed=0,
            prompt=f"a photograph of {group} {'red apples' if group % 2 else 'green bottles'} on a wooden table",
            total=float(random.normal(iteration / 100)),
            advantage=float(random.normal()),
            rewards={name: float(random.normal(iteration / 100)) for name in ("shapes", "shapes/count", "aesthetic")},
        )
        for group in range(prompts)
        for root in range(ROOTS)
    ]


def _draw(number: int) -> Image.Image:
    """Return 512 x 512 pixels that compress about as photographs do."""
    random = np.random.default_rng(number)
    coarse = Image.fromarray(random.integers(0, 256, (9, 9, 3), dtype=np.uint8)).resize(
        (512, 512), Image.Resampling.BICUBIC
    )
    grain = random.normal(0, 3, (512, 512, 3))
    return Image.fromarray((np.asarray(coarse) + grain).clip(0, 255).astype(np.uint8))


@contextmanager
def gallery(runs: Path) -> Iterator[tuple[str, float, psutil.Process]]:
    """Run the real command as a process: yield its address, seconds until it answered, the process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "diffrl.cli", "gallery", str(runs), "--port", str(port), "--no-browser"]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit("The gallery did not start.") from None
                time.sleep(0.005)
        yield f"http://127.0.0.1:{port}", time.perf_counter() - began, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def made(runs: Path, path: str) -> tuple[float, int]:
    """Return CPU seconds of a server that has just started for one page without its images, and the page's size."""
    with gallery(runs) as (address, _, process):
        before = sum(process.cpu_times()[:2])
        with urllib.request.urlopen(address + path) as response:
            size = len(response.read())
        return sum(process.cpu_times()[:2]) - before, size


def measure(run: Path, browser: object, path: str, pictures: bool) -> dict[str, float]:
    """Return one page: seconds to the first byte and to the first picture, cold and again, and the server's memory."""
    with gallery(run.parent) as (address, start, process):
        context = browser.new_context(viewport={"width": 1280, "height": 800})  # type: ignore[attr-defined]
        page = context.new_page()
        page.add_init_script(FIRST_PICTURE)
        seconds = {"start": start}
        for when in ("cold", "again"):
            page.wait_for_load_state("networkidle")
            page.goto(address + path, wait_until="load")
            timing = "performance.getEntriesByType('navigation')[0].responseStart / 1000"
            seconds[f"byte, {when}"] = page.evaluate(timing)
            if pictures:
                while page.evaluate("window.first") is None:  # the page's policy forbids Playwright's own waiting
                    page.wait_for_timeout(20)
                seconds[f"picture, {when}"] = page.evaluate("window.first / 1000")
        page.wait_for_load_state("networkidle")
        seconds["memory"] = process.memory_info().rss / 2**20
        context.close()
    seconds["CPU"], size = made(run.parent, path)
    return seconds | {"size": size / 1e3}


def main() -> None:
    """Make the store, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--pictures", type=int, default=2_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path("build/bench-gallery"))
    arguments = parser.parse_args()
    run = arguments.dir / "runs" / "large"
    make_store(run, arguments.samples, arguments.pictures)
    make_second(run, run.with_name("second"))
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    size = (run / INDEX).stat().st_size / 1e6
    print(f"2 x {arguments.samples:,} samples, {arguments.pictures:,} images of 512 px, index {size:.0f} MB each")
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; "
        f"medians of {arguments.turns}\n"
    )
    columns = ["start", "CPU", "byte, cold", "byte, again", "picture, cold", "picture, again", "size", "memory"]
    rows = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for name, path in PAGES.items():
            address = path.format(run=run.name)
            pictures = name not in WITHOUT + INLINE
            turns = [measure(run, browser, address, pictures) for _ in range(arguments.turns)]
            medians = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
            digits = {"size": "{:.0f} kB", "memory": "{:.0f} MiB"}
            cells = [digits.get(key, "{:.2f} s").format(medians[key]) if key in medians else "" for key in columns]
            rows.append([name, *cells])
            print(name, *cells, file=sys.stderr, flush=True)
        browser.close()
    print(markdown(["page", *columns], rows))


if __name__ == "__main__":
    main()
