"""Every example, asked as its README says; the pages in a headless browser."""

import os
import re
import shutil
import subprocess
import threading
import zlib

import pytest

import browser
from kiln_server import ROOT, exchange, read_until, replace, wait_for
from websocket import RawSocket

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="session")
def built():
    """The examples that are compiled ahead."""
    subprocess.run(["make", "--no-print-directory", "examples"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


@pytest.fixture
def kiln(built, server, tmp_path):
    shutil.copytree(EXAMPLES, tmp_path / "www", ignore=shutil.ignore_patterns(".*"))
    return server(config={"DebugPages": True}).start()


@pytest.fixture
def page(tmp_path):
    if browser.program() is None:
        pytest.skip("no Chromium is installed")
    with browser.Browser(tmp_path) as one:
        yield one


def test_each_example_is_listed_and_has_a_readme(kiln):
    index = kiln.get("/").text
    folders = sorted(p.name for p in EXAMPLES.iterdir() if p.is_dir())
    assert folders
    for name in folders:
        assert f'href="/{name}/' in index, name
        assert (EXAMPLES / name / "README.md").read_text().startswith("# ")
    assert not re.search(r'(?:src|href)="(?:https?:)?//', index), "the list needs nothing from elsewhere"
    for link in re.findall(r'href="(/[^"]*)"', index):
        if link.startswith("/postgres/") or (link.startswith("/rust/") and not (kiln.www / "rust/index.so").exists()):
            continue
        assert kiln.get(link).status in (200, 301), link


@pytest.mark.parametrize("suffix", ["", "native", "index"])
def test_hello(kiln, suffix):
    assert kiln.get(f"/hello/{suffix}").text == f"Hello there! Path: /hello/{suffix}\n"
    if suffix:
        assert kiln.get(f"/hello/{suffix}/a/b?c").text == f"Hello there! Path: /hello/{suffix}/a/b\n"


@pytest.mark.parametrize("suffix", ["", "native"])
def test_counter(kiln, suffix):
    seen = []

    def ask():
        client = kiln.client()
        seen.extend(int(exchange(client, "GET", f"/counter/{suffix}").text) for _ in range(50))
        client.close()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(1, 201))


@pytest.mark.parametrize("suffix", ["", "native"])
def test_redirects(kiln, suffix):
    answer = kiln.get(f"/redirect/{suffix}")
    assert (answer.status, answer.headers["Location"], answer.body) == (301, "https://example.com/new-home", b"")
    answer = kiln.get(f"/redirect-body/{suffix}")
    assert (answer.status, answer.headers["Location"], answer.text) == (301, "https://example.com/new-home", "https://example.com/new-home")


@pytest.mark.parametrize("suffix", ["", "native"])
def test_my_ip(kiln, suffix):
    assert kiln.get(f"/my-ip/{suffix}").text == "127.0.0.1"


def test_editing_an_example_shows_at_the_next_reload(kiln):
    source = kiln.www / "hello" / "index._c"
    assert kiln.get("/hello/").text.startswith("Hello there!")
    replace(source, source.read_text().replace("Hello there!", "Good day!"))
    wait_for(lambda: kiln.get("/hello/").text == "Good day! Path: /hello/\n", "the edited answer")


# ---- session -----------------------------------------------------------------------------------------------


def test_session(kiln):
    def cookie(answer):
        return {"Cookie": answer.headers["Set-Cookie"].split(";")[0], "Content-Type": "application/x-www-form-urlencoded"}

    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert "Who are you?" in kiln.get("/session/").text
    assert kiln.post("/session/", "do=login&name=", form).status == 400
    login = kiln.post("/session/", "do=login&name=A%3Cb", form)
    assert (login.status, login.headers["Location"]) == (303, "/session/")
    jar = cookie(login)
    assert "Hello, A&lt;b!" in kiln.get("/session/", jar).text
    assert "looked at this page 2 times" in kiln.get("/session/", jar).text
    again = kiln.post("/session/", "do=login&name=C", jar)
    assert cookie(again)["Cookie"] != jar["Cookie"]
    assert "Who are you?" in kiln.get("/session/", jar).text, "the id from before the login is worth nothing"
    logout = kiln.post("/session/", "do=logout", cookie(again))
    assert logout.status == 303 and "Max-Age=0" in logout.headers["Set-Cookie"]
    assert "Who are you?" in kiln.get("/session/", cookie(again)).text


def test_session_in_a_browser(kiln, page):
    page.open(kiln.url("/session/"))
    page.type("[name=name]", "Ada <3")
    page.click("button")
    page.wait("document.querySelector('h1').textContent == 'Hello, Ada <3!'")
    assert page.run("document.cookie") == "", "scripts cannot read the session's cookie"
    page.click("button")
    page.wait("document.querySelector('h1').textContent == 'Who are you?'")


# ---- to do ---------------------------------------------------------------------------------------------------


def test_todo_api(kiln):
    assert kiln.get("/todo/api").json() == []
    added = kiln.post("/todo/api", '{"text": "a \\"ä"}'.encode())
    assert (added.status, added.json()) == (201, [{"id": 1, "text": 'a "ä', "done": False}])
    assert kiln.request("PATCH", "/todo/api/1", '{"done": true}').json()[0]["done"] is True
    assert kiln.request("PATCH", "/todo/api/9", '{"done": true}').status == 404
    for bad in ("", "{", "{}", '{"text": ""}', '{"text": 1}'):
        assert kiln.post("/todo/api", bad).status == 400
    refused = kiln.request("PUT", "/todo/api/1", "x")
    assert (refused.status, refused.headers["Allow"]) == (405, "PATCH, DELETE")
    assert kiln.request("DELETE", "/todo/api/1").json() == []
    assert kiln.get("/todo/.todo.db").status == 404


def test_todo_parallel_writers_lose_nothing(kiln):
    def add(n):
        client = kiln.client()
        for i in range(10):
            assert exchange(client, "POST", "/todo/api", f'{{"text": "{n}-{i}"}}').status == 201
        client.close()

    threads = [threading.Thread(target=add, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({item["text"] for item in kiln.get("/todo/api").json()}) == 40


def test_todo_in_a_browser(kiln, page):
    page.open(kiln.url("/todo/"))
    page.type("#text", "<b>write</b> an endpoint")
    page.click("form button")
    page.wait("document.querySelectorAll('li').length == 1")
    assert page.text("li span") == "<b>write</b> an endpoint"
    page.click("li input")
    page.wait("document.querySelector('li').className == 'done'")
    page.open(kiln.url("/todo/"))
    page.wait("document.querySelector('li.done input:checked')")
    page.click("li button")
    page.wait("document.querySelectorAll('li').length == 0")


# ---- upload -----------------------------------------------------------------------------------------------------


def test_upload_in_a_browser(kiln, page, tmp_path):
    small = tmp_path / "small ä.txt"
    small.write_bytes(b"hello")
    big = tmp_path / "big.bin"
    content = os.urandom(1 << 20) * 30
    big.write_bytes(content)
    page.open(kiln.url("/upload/"))
    page.choose_files("#files", [small, big])
    page.run("window.seen = []; new MutationObserver(() => seen.push(document.getElementById('bar').value))"
             ".observe(document.getElementById('state'), {childList: true})")
    page.click("button")
    page.wait("document.getElementById('state').textContent == 'done'")
    rows = page.run("[...document.querySelectorAll('tr')].map(r => [...r.cells].map(c => c.textContent))")
    assert rows == [
        ["small ä.txt", "5 bytes", f"{zlib.crc32(b'hello'):08x}"],
        ["big.bin", f"{len(content)} bytes", f"{zlib.crc32(content):08x}"],
    ]
    seen = page.run("seen")
    assert seen == sorted(seen) and seen[-1] == 1


def test_upload_refuses_what_is_no_upload(kiln):
    answer = kiln.get("/upload/receive")
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    assert kiln.post("/upload/receive", b"x").status == 400


# ---- clock -----------------------------------------------------------------------------------------------------


def test_clock_pushes_ticks_and_ends_with_its_client(kiln):
    with kiln.connect() as s:
        s.sendall(b"GET /clock/events HTTP/1.1\r\nHost: x\r\nLast-Event-ID: 41\r\n\r\n")
        head = read_until(s, b"data: ")
        assert b"text/event-stream" in head and b"id: 42\nevent: tick\n" in head
        read_until(s, b"id: 43\n")


def test_clock_in_a_browser(kiln, page):
    page.open(kiln.url("/clock/"))
    page.wait("/^\\d\\d:\\d\\d:\\d\\d$/.test(document.getElementById('time').textContent)")
    page.wait("document.getElementById('state').textContent.startsWith('tick 2,')")


# ---- other languages -----------------------------------------------------------------------------------------------


def test_cplusplus(kiln):
    assert kiln.get("/cplusplus/?words=pear+apple+fig").text == "apple\nfig\npear\n"


def test_rust(kiln):
    if not (kiln.www / "rust" / "index.so").exists():
        pytest.skip("no rustc is installed")
    assert kiln.get("/rust/?text=stressed+%C3%A4").text == "ä desserts\n"


# ---- PostgreSQL ------------------------------------------------------------------------------------------------------


@pytest.fixture
def postgres(tmp_path_factory):
    """A PostgreSQL server of this test's own on a socket, or the one that PGHOST names."""
    if os.environ.get("PGHOST"):
        yield {}
        return
    programs = [p for p in [*sorted(ROOT.__class__("/usr/lib/postgresql").glob("*/bin")), *map(ROOT.__class__, os.get_exec_path())]
                if (p / "initdb").exists() and (p / "postgres").exists()]
    if not programs:
        pytest.skip("no PostgreSQL server is installed (set PGHOST to use one)")
    base = tmp_path_factory.mktemp("pg")
    user = {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}
    if user:
        shutil.chown(base, **user)
        for parent in list(base.parents)[:3]:
            parent.chmod(parent.stat().st_mode | 0o011)
    data = base / "data"
    made = subprocess.run([programs[-1] / "initdb", "-D", data, "-A", "trust", "-U", "kiln", "--no-sync"], capture_output=True, text=True, **user)
    if made.returncode != 0:
        pytest.skip(f"initdb does not work here: {made.stderr[-300:]}")
    run = subprocess.Popen([programs[-1] / "postgres", "-D", data, "-k", base, "-c", "listen_addresses=", "-F"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **user)
    try:
        wait_for(lambda: (base / ".s.PGSQL.5432").exists() and run.poll() is None, "PostgreSQL")
        yield {"PGHOST": str(base), "PGUSER": "kiln", "PGDATABASE": "postgres"}
    finally:
        run.terminate()
        run.wait()


def test_postgres_says_so_when_there_is_none(built, server, tmp_path):
    shutil.copytree(EXAMPLES / "postgres", tmp_path / "www" / "postgres")
    with server(env={"PGHOST": str(tmp_path / "nowhere")}) as kiln:
        answer = kiln.get("/postgres/")
        assert answer.status == 503 and answer.text.startswith("skipped: no PostgreSQL server")


def test_postgres_queries_run_side_by_side_on_one_thread(built, server, tmp_path, postgres):
    shutil.copytree(EXAMPLES / "postgres", tmp_path / "www" / "postgres")
    with server(config={"Threads": 1}, env=postgres) as kiln:

        def ready():
            return kiln.get("/postgres/").text.startswith("PostgreSQL ")

        wait_for(ready, "an answer of PostgreSQL")
        # Each query sleeps in the database; all are on their way before the first has its answer.
        sockets = [kiln.connect() for _ in range(20)]
        for s in sockets:
            s.sendall(b"GET /postgres/ HTTP/1.1\r\nHost: x\r\n\r\n")
        for s in sockets:
            assert b"PostgreSQL " in read_until(s, b"bit\n")
            s.close()


def test_isolated(built, server, tmp_path):
    shutil.copytree(EXAMPLES, tmp_path / "www", ignore=shutil.ignore_patterns(".*"))
    (tmp_path / "www/isolated/.data").mkdir()
    kiln = server(config={"Isolate": ["/isolated"]}).start()
    lines = [line.split(None, 3) for line in kiln.get("/isolated/").text.splitlines()]
    text = kiln.get("/isolated/").text
    assert len(lines) == 6
    assert re.search(r"read its own source +allowed", text)
    assert re.search(r"read /etc/passwd +Permission denied", text)
    assert re.search(r"signal another process +Operation not permitted", text)
    assert re.search(r"open a socket +Operation not permitted", text)
    assert re.search(r"write \.data/visits +allowed\nvisits: 2\n", text)
    assert kiln.get("/isolated/.data/visits").status == 404


# ---- chat ------------------------------------------------------------------------------------------------------------


def test_chat_in_a_browser(kiln, page):
    page.open(kiln.url("/chat/"))

    def say(text):
        page.type("#text", text)
        page.click("button")

    with RawSocket(kiln, "/chat/room") as other:
        other.text("Ada")
        assert other.read_text() == "Ada came in."
        say("<b>Bob</b>")
        assert other.read_text() == "<b>Bob</b> came in."
        page.wait("document.querySelectorAll('li').length == 1")
        say("Hello!")
        assert other.read_text() == "<b>Bob</b>: Hello!"
        other.text("Grüße")
        page.wait("[...document.querySelectorAll('li')].map(l => l.textContent).join('|') == '<b>Bob</b> came in.|<b>Bob</b>: Hello!|Ada: Grüße'")
        other.close()
    page.wait("document.querySelector('li:last-child').textContent == 'Ada went out.'")
