import hashlib
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from turnout.core.errors import InvalidInput, MissingExtra
from turnout.data import FashionMnist
from turnout.data import files as module
from turnout.data.files import DOWNLOADS, Download, DownloadFailed, download

CONTENT = bytes(range(256)) * 3000  # several pieces


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/gone":
            self.send_error(404, "Not Found")
            return
        self.send_response(200)
        if self.path != "/unknown-length":
            self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:-100] if self.path == "/broken-off" else CONTENT)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    with HTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _no_data_directory(monkeypatch):
    monkeypatch.delenv("TURNOUT_DATA", raising=False)


def offer(monkeypatch, *urls, checksum=None):
    checksum = checksum or f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
    files = tuple(
        Download(url, f"set/part-{number}.bin", checksum) for number, url in enumerate(urls)
    )
    monkeypatch.setattr(module, "DOWNLOADS", {"a-set": files})


def left_behind(folder):
    return [path.name for path in folder.rglob("*")]


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_files_arrive_complete_and_readable(server, tmp_path, monkeypatch, algorithm):
    digest = hashlib.new(algorithm, CONTENT).hexdigest()
    urls = (f"{server}/one", f"{server}/two")
    offer(monkeypatch, *urls, checksum=f"{algorithm}:{digest}")
    paths = download("a-set", tmp_path)
    assert [path.name for path in paths] == ["part-0.bin", "part-1.bin"]
    assert all(path.read_bytes() == CONTENT for path in paths)
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in paths)
    assert sorted(left_behind(tmp_path)) == ["part-0.bin", "part-1.bin", "set"]


@pytest.mark.parametrize("shown", [True, False])
def test_a_progress_bar_is_drawn_where_it_is_asked_for(server, tmp_path, monkeypatch, capfd, shown):
    offer(monkeypatch, f"{server}/one")
    download("a-set", tmp_path, show_progress=shown)
    assert ("100%" in capfd.readouterr().err) is shown


def test_whole_files_are_not_fetched_again(tmp_path, monkeypatch):
    offer(monkeypatch, "http://127.0.0.1:9/closed")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "part-0.bin").write_bytes(CONTENT)
    (tmp_path / "set" / "part-0.bin").chmod(0o600)
    (path,) = download("a-set", tmp_path)
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o777 == 0o600  # and may belong to somebody else


def test_damaged_files_are_replaced(server, tmp_path, monkeypatch):
    offer(monkeypatch, f"{server}/one")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "part-0.bin").write_bytes(CONTENT[:-1])
    assert download("a-set", tmp_path)[0].read_bytes() == CONTENT


def test_the_environment_names_the_directory(server, tmp_path, monkeypatch):
    offer(monkeypatch, f"{server}/unknown-length")
    monkeypatch.setenv("TURNOUT_DATA", str(tmp_path / "new"))
    assert download("a-set") == [tmp_path / "new" / "set" / "part-0.bin"]


@pytest.mark.parametrize(
    ("path", "checksum", "reason"),
    [("/one", f"md5:{'0' * 32}", "does not match"), ("/broken-off", None, "IncompleteRead")],
)
def test_what_comes_damaged_never_appears(server, tmp_path, monkeypatch, path, checksum, reason):
    offer(monkeypatch, server + path, checksum=checksum)
    with pytest.raises(DownloadFailed, match=rf"{reason}.*by other means.*part-0\.bin"):
        download("a-set", tmp_path)
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("path", ["/gone", "closed"])
def test_what_cannot_be_fetched_says_where_to_put_it(server, tmp_path, monkeypatch, path):
    url = f"{server}{path}" if path == "/gone" else "http://127.0.0.1:9/file"
    offer(monkeypatch, url)
    with pytest.raises(DownloadFailed, match=rf"{url} cannot be fetched .*set.part-0\.bin"):
        download("a-set", tmp_path)
    assert left_behind(tmp_path) == []


def test_a_stop_from_the_keyboard_leaves_nothing(server, tmp_path, monkeypatch):
    offer(monkeypatch, f"{server}/one")

    def stop(downloader, url, target, pooch):
        Path(target).write_bytes(CONTENT[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", stop)
    with pytest.raises(KeyboardInterrupt):
        download("a-set", tmp_path)
    assert left_behind(tmp_path) == []


def test_a_folder_that_cannot_be_written(server, tmp_path, monkeypatch):
    offer(monkeypatch, f"{server}/one")
    (tmp_path / "set").write_text("a file where the folder should be")
    with pytest.raises(DownloadFailed, match="cannot be fetched"):
        download("a-set", tmp_path)


def test_without_pooch_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingExtra, match=r"pip install 'turnout\[cli\]'"):
        download("cifar10", tmp_path)


def test_names_and_directories_are_checked(tmp_path):
    with pytest.raises(InvalidInput, match=r"^name must be one of .*got 'yelp'.*data list"):
        download("yelp", tmp_path)
    with pytest.raises(InvalidInput, match=r"^directory: .*TURNOUT_DATA"):
        download("cifar10")


def test_what_is_offered_has_checksums_and_goes_where_it_is_looked_for():
    from turnout.data import Cifar10, EmnistLetters

    sources = {"fashion-mnist": FashionMnist, "cifar10": Cifar10, "emnist-letters": EmnistLetters}
    assert set(DOWNLOADS) == set(sources)
    for name, files in DOWNLOADS.items():
        forms = sources[name].files.forms
        for file in files:
            algorithm, _, digest = file.checksum.partition(":")
            assert len(digest) == hashlib.new(algorithm).digest_size * 2
            assert file.url.startswith("https://")
            assert file.path in forms or file.path.rpartition("/")[0] in forms
