"""The report in a real browser: it opens without errors, asks nobody outside for anything, and each image is there and not blank."""
import contextlib
import html
import http.server
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

import made_up
import report
from reporting import formats

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
# Runs in a copy of the page: draws each image and counts its colours. The page itself has no script.
PROBE = """<script>
window.addEventListener('load', () => {
  const seen = [...document.images].map(image => {
    const canvas = document.createElement('canvas');
    canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
    if (!image.naturalWidth) return {name: image.parentElement.id, width: 0, colours: 0, ink: 0};
    const context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
    const colours = new Set(); let ink = 0;
    for (let i = 0; i < pixels.length; i += 4) { colours.add(pixels[i] << 16 | pixels[i + 1] << 8 | pixels[i + 2]); if (pixels[i] + pixels[i + 1] + pixels[i + 2] < 700) ink++; }
    return {name: image.parentElement.id, width: image.naturalWidth, colours: colours.size, ink: ink * 4 / pixels.length};
  });
  document.body.insertAdjacentHTML('beforeend', '<pre id="probe"></pre>');
  document.getElementById('probe').textContent = JSON.stringify(seen);
});
</script>"""


def host_of(path):
    """A proxy is asked for a whole address, or, to be connected, for host:port."""
    return re.sub(r"^\w+://", "", path).split("/")[0].split(":")[0]


class Proxy(http.server.ThreadingHTTPServer):
    """Every request that the browser makes to anybody ends here, is written down, and gets no answer."""

    def __init__(self):
        self.asked = []
        asked = self.asked

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_error(502)

            do_CONNECT = do_POST = do_HEAD = do_GET

            def log_message(self, *_):
                pass

        self.handle_error = lambda *_: None  # a browser that ends does not wait for its answer
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        data = made_up.write(cls.folder / "a.csv", made_up.ladder() + made_up.bubbles())
        with contextlib.redirect_stdout(io.StringIO()):
            assert report.main([str(data), "--out", str(cls.folder / "r.html")]) == 0
        cls.text = (cls.folder / "r.html").read_text()
        # Twice: a new profile and a used one ask for different things.
        cls.household = {host_of(path) for _ in range(2) for path in cls.load("<!DOCTYPE html><title>empty</title>")[2]}

    @classmethod
    def load(cls, text):
        """(page after loading, complaints in the console, all requests to anybody)"""
        (cls.folder / "copy.html").write_text(text)
        proxy = Proxy()
        flags = ["--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--disable-default-apps", "--disable-extensions", f"--proxy-server=127.0.0.1:{proxy.server_port}", "--proxy-bypass-list=<-loopback>", "--enable-logging=stderr", "--v=0",
                 f"--user-data-dir={cls.folder / 'profile'}", "--virtual-time-budget=5000", "--dump-dom"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")
        try:
            done = subprocess.run([BROWSER, *flags, f"file://{cls.folder}/copy.html"], capture_output=True, text=True, timeout=240)
        finally:
            proxy.shutdown()
            proxy.server_close()
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line], proxy.asked

    def open(self, text):
        """The same, without the browser's own household (updates, sign-in): the hosts that it asks on an empty page, too."""
        dom, complaints, asked = self.load(text)
        return dom, complaints, [path for path in asked if host_of(path) not in self.household]

    def with_probe(self, text):
        return text.replace(formats.POLICY, formats.POLICY + "; script-src 'unsafe-inline'").replace("</body>", PROBE + "</body>")

    def probed(self, dom):
        """What the probe wrote; the first match is the script's own text."""
        return json.loads(html.unescape(re.findall(r'<pre id="probe">(.*?)</pre>', dom, re.DOTALL)[-1]))

    def test_as_it_is_no_complaints_and_no_requests(self):
        dom, complaints, asked = self.open(self.text)
        self.assertIn("Findings", dom)
        self.assertEqual((complaints, asked), ([], []))

    def test_every_image_is_there_and_not_blank(self):
        dom, complaints, asked = self.open(self.with_probe(self.text))
        seen = self.probed(dom)
        self.assertEqual((complaints, asked), ([], []))
        self.assertEqual(len(seen), self.text.count("<img "))
        self.assertEqual(len(seen), 3)
        for image in seen:
            self.assertGreater(image["width"], 300, image)
            self.assertGreater(image["colours"], 20, image)
            self.assertGreater(image["ink"], 0.005, image)

    def test_the_checks_can_fail(self):
        """A blank or broken image, an outside request and an error are each noticed."""
        blank = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
        outside = '<img src="http://example.invalid/x.png"><img src="http://fonts.googleapis.com/x.png">'
        broken = self.with_probe(self.text).replace("img-src data:", "img-src data: http:").replace("</body>", f'{outside}<figure id="blank"><img src="{blank}"></figure>'
                                                                                                 "<script>console.error('oh no')</script></body>")
        dom, complaints, asked = self.open(broken)
        self.assertTrue(any("oh no" in line for line in complaints))
        self.assertEqual({host_of(path) for path in asked}, {"example.invalid", "fonts.googleapis.com"})
        seen = {image["name"]: image for image in self.probed(dom)}
        self.assertLess(seen["blank"]["colours"], 20)

    def test_the_policy_stops_what_should_not_be_there(self):
        dom, complaints, asked = self.open(self.text.replace("</body>", '<img src="http://example.invalid/x.png"><script>document.title = "ran"</script></body>'))
        self.assertEqual(asked, [])
        self.assertTrue(any("Content Security Policy" in line for line in complaints))
        self.assertNotIn("<title>ran", dom)


if __name__ == "__main__":
    if not BROWSER:
        reason = "no chromium on PATH (Debian package chromium)"
        print(f"manyranks: skipped (chromium): {reason}", file=sys.stderr)
        sys.exit(1 if "chromium" in os.environ.get("MANYRANKS_REQUIRE", "").split(",") else 77)
    unittest.main()
