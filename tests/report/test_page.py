"""The page of a report in a browser; skipped where none is installed."""

import json
import os
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path

import pytest

from tests.report.made import made
from tests.report.test_figures import LONG, make
from warprun.report.report import Asked, report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
WIDTHS = (1300, 420)
ELSEWHERE = "http://127.0.0.1:47651/elsewhere.svg"
"""Nothing answers there."""
MEASURE = """
<pre id="found"></pre><script>
const seen = {}
function look(frame) {
  const page = frame.contentDocument, root = page.documentElement, inside = frame.contentWindow
  seen[frame.id] = {
    page: root.scrollWidth, window: root.clientWidth,
    loaded: inside.performance.getEntriesByType("resource").map(each => each.name).filter(name => !name.startsWith("data:")),
    images: [...page.images].map(image => ({alt: image.alt, width: image.naturalWidth, shown: image.clientWidth})),
    boxes: [...page.querySelectorAll(".wide")].map(box => ({width: box.clientWidth, content: box.scrollWidth})),
    table: page.querySelector("table").offsetWidth,
  }
  document.getElementById("found").textContent = JSON.stringify(seen)
}
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
@pytest.mark.parametrize("kind", ["settings with long names", "an image from elsewhere"])
def test_a_page_in_a_browser(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second kind shows that the test sees what is loaded."""
    assert BROWSER is not None
    monkeypatch.chdir(tmp_path)
    make(LONG, noise=5.0)
    made(Path("runs", "a-folder-with-a-long-name" * 5), [1.0], state="failed")
    report(Asked((Path("runs"),)))
    text = Path("report/report.html").read_text()
    if kind == "an image from elsewhere":
        text = text.replace("</body>", f'<img src="{ELSEWHERE}"></body>')
    frames = (f'<iframe id="{width}" width={width} height=900 onload="look(this)" srcdoc="{escape(text)}"></iframe>' for width in WIDTHS)
    Path("measure.html").write_text(f"<!doctype html>{MEASURE}{''.join(frames)}")
    options = ["--headless", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path}/browser", "--timeout=30000"]
    if os.geteuid() == 0:
        options.append("--no-sandbox")
    done = subprocess.run([BROWSER, *options, "--dump-dom", f"file://{tmp_path}/measure.html"], capture_output=True, text=True, timeout=120)
    told = re.search(r'<pre id="found">(.*?)</pre>', done.stdout)
    assert told is not None, done.stderr[-2000:]
    found = json.loads(unescape(told[1]))
    assert found.keys() == set(map(str, WIDTHS))
    if kind == "an image from elsewhere":
        assert all(each["loaded"] == [ELSEWHERE] for each in found.values())
        return
    for width, each in found.items():
        assert each["loaded"] == [] and each["page"] <= each["window"], width
        assert len(each["images"]) == 4 and all(len(image["alt"]) > 15 and image["width"] > 0 for image in each["images"]), width
        assert len({image["alt"] for image in each["images"]}) == 4
        assert all(box["width"] <= each["window"] for box in each["boxes"])
    small = found["420"]
    assert small["table"] > small["boxes"][0]["width"] and small["boxes"][0]["content"] >= small["table"]  # which scrolls in its box
    assert max(image["shown"] for image in small["images"]) > 500  # and so does what is too wide to be read when it is shrunk
