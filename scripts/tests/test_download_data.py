"""download_data.py against a server on loopback that can break off, lie, refuse ranges and serve wrong bytes."""
import hashlib
import http.server
import io
import os
import sys
import tarfile
import tempfile
import threading
import unittest
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import download_data  # noqa: E402


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.requests.append((self.path, self.headers.get("Range")))
        body = server.files.get(self.path)
        if body is None:
            return self.send_error(404)
        begin, wanted = 0, self.headers.get("Range")
        if wanted and server.ranges:
            begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if begin >= len(body):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body) - begin))
        self.end_headers()
        end = len(body)
        if server.break_after and server.breaks > 0:  # closes the connection in the middle
            server.breaks -= 1
            end = min(end, begin + server.break_after)
        self.wfile.write(body[begin:end])

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.ranges, self.break_after, self.breaks, self.requests = files, True, 0, 0, []
        self.thread = threading.Thread(target=self.serve_forever, args=(0.02,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server_port}/"

    def stop(self):
        self.shutdown()
        self.server_close()
        self.thread.join()


class Download(unittest.TestCase):
    def setUp(self):
        self.body = os.urandom(300_000)
        self.server = Server({"/a.gz": self.body})
        self.addCleanup(self.server.stop)
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name) / "to"
        self.sets = {"mnist": {"mirrors": [self.server.url], "files": {"a.gz": ("sha256", hashlib.sha256(self.body).hexdigest())}}}

    def run_it(self, *more, name="mnist"):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = download_data.main([name, "--to", str(self.folder), "--retries", "3", *more], self.sets)
        return code, out.getvalue() + err.getvalue()

    def check_file(self):
        self.assertEqual((self.folder / "a.gz").read_bytes(), self.body)
        self.assertFalse((self.folder / "a.gz.part").exists())

    def test_fetches_and_then_has_it(self):
        self.assertEqual(self.run_it()[0], 0)
        self.check_file()
        count = len(self.server.requests)
        code, text = self.run_it()
        self.assertEqual(code, 0)
        self.assertIn("already here", text)
        self.assertEqual(len(self.server.requests), count)

    def test_goes_on_where_it_stopped(self):
        self.server.break_after, self.server.breaks = 100_000, 2
        self.assertEqual(self.run_it()[0], 0)
        self.check_file()
        self.assertEqual([r for _, r in self.server.requests], [None, "bytes=100000-", "bytes=200000-"])

    def test_a_later_run_resumes(self):
        self.server.break_after, self.server.breaks = 50_000, 3
        self.assertEqual(self.run_it()[0], 74)
        self.assertEqual((self.folder / "a.gz.part").stat().st_size, 150_000)
        self.assertFalse((self.folder / "a.gz").exists())
        self.assertEqual(self.run_it()[0], 0)
        self.check_file()

    def test_server_without_ranges_starts_again(self):
        self.server.ranges, self.server.break_after, self.server.breaks = False, 100_000, 1
        self.assertEqual(self.run_it()[0], 0)
        self.check_file()

    def test_wrong_checksum_is_refused(self):
        self.server.files["/a.gz"] = b"x" + self.body[1:]
        code, text = self.run_it()
        self.assertEqual(code, 65)
        self.assertIn("expected", text)
        self.assertFalse((self.folder / "a.gz").exists())
        self.assertFalse((self.folder / "a.gz.part").exists())

    def test_stale_part_is_thrown_away(self):
        self.folder.mkdir()
        (self.folder / "a.gz.part").write_bytes(b"stale" * 1000)
        self.assertEqual(self.run_it()[0], 0)
        self.check_file()

    def test_part_that_is_complete(self):
        self.folder.mkdir()
        (self.folder / "a.gz.part").write_bytes(self.body)
        self.assertEqual(self.run_it()[0], 0)  # the server answers 416
        self.check_file()

    def test_damaged_file_is_fetched_again(self):
        self.folder.mkdir()
        (self.folder / "a.gz").write_bytes(self.body[:-1])
        self.assertEqual(self.run_it()[0], 0)
        self.check_file()

    def test_next_mirror_serves(self):
        bad = Server({})
        self.addCleanup(bad.stop)
        self.sets["mnist"]["mirrors"] = [bad.url, self.server.url]
        self.assertEqual(self.run_it()[0], 0)
        self.check_file()
        self.assertEqual(len(bad.requests), 1)  # a 404 is not asked for again

    def test_mirror_flag_and_dead_mirror(self):
        self.sets["mnist"]["mirrors"] = ["http://127.0.0.1:9/"]
        code, text = self.run_it()
        self.assertEqual(code, 74)
        self.assertIn("no mirror gave it", text)
        self.assertEqual(self.run_it("--mirror", self.server.url)[0], 0)

    def test_usage(self):
        with redirect_stderr(io.StringIO()):
            self.assertEqual(download_data.main(["imagenet"], self.sets), 64)
            self.assertEqual(download_data.main(["mnist", "--speed"], self.sets), 64)

    def test_cifar_is_unpacked(self):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name, data in {"data_batch_1.bin": b"\1" * 3073, "test_batch.bin": b"\2" * 3073, "readme.html": b"no"}.items():
                member = tarfile.TarInfo("cifar-10-batches-bin/" + name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        body = packed.getvalue()
        self.server.files["/cifar-10-binary.tar.gz"] = body
        self.sets["cifar10"] = {"mirrors": [self.server.url], "files": {"cifar-10-binary.tar.gz": ("sha256", hashlib.sha256(body).hexdigest())}}
        self.assertEqual(self.run_it(name="cifar10")[0], 0)
        self.assertEqual((self.folder / "data_batch_1.bin").read_bytes(), b"\1" * 3073)
        self.assertFalse((self.folder / "readme.html").exists())

    def test_known_sets_are_complete(self):
        for name, chosen in download_data.SETS.items():
            self.assertTrue(all(m.startswith("https://") for m in chosen["mirrors"]), name)
            for algorithm, value in chosen["files"].values():
                self.assertEqual(len(value), hashlib.new(algorithm).digest_size * 2)


if __name__ == "__main__":
    unittest.main()
