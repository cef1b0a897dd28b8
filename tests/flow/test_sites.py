"""Sites, as a client sees them: which host and path lead to which file or endpoint, what is
never shown, and that a change on the disk shows by itself."""

import os
import shutil
import subprocess
import sys

import pytest

from kiln_server import Link, Server, wait_for, write_tree

# Tells what it was asked for; the word tells versions apart.
ENDPOINT = """#include <kiln.h>
int kiln_run(kiln_context *ctx, const char *path)
{
    kiln_content_type(ctx, "text/plain");
    kiln_printf(ctx, "WORD|%s|%s|%s", path, kiln_script_name(ctx), kiln_path_info(ctx));
    return 0;
}
"""


def endpoint(word):
    return ENDPOINT.replace("WORD", word)


class Raw:
    """An answer to a request whose every byte the test chose."""

    def __init__(self, data: bytes):
        head, _, self.body = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        parts = lines[0].split(" ", 2)
        self.status = int(parts[1]) if len(parts) > 1 else 0
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        self.text = self.body.decode("latin-1")

    def __repr__(self):
        return f"<{self.status} {self.headers} {self.body[:200]!r}>"


def ask(kiln: Server, target: str, host="localhost", method="GET") -> Raw:
    request = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    return Raw(kiln.raw(request.encode("latin-1")))


def eventually(kiln: Server, target: str, condition, host="localhost"):
    """Asks until the answer is as it should be."""
    last = []

    def check():
        last[:] = [ask(kiln, target, host)]
        return condition(last[0])

    try:
        wait_for(check, f"{target} to change")
    except AssertionError as error:
        raise AssertionError(f"{error}: {last[0]}") from None
    return last[0]


def shows(text):
    return lambda answer: answer.status == 200 and answer.text == text


def is_gone(answer):
    return answer.status == 404


# ---- hosts ------------------------------------------------------------------------------------


def test_one_site_answers_every_host(server, files):
    files({"index.html": "home"})
    with server() as kiln:
        for host in ("localhost", "example.com", "a.b:99", "127.0.0.1", "[::1]:80", ""):
            assert ask(kiln, "/", host).text == "home"


def test_backend_has_a_site_per_host(server, files):
    files({"a.com/index.html": "A", "b.com/index.html": "B", "b.com/error404.html": "B has no such page", "loose.html": "?"})
    with server(layout="backend") as kiln:
        assert ask(kiln, "/", "a.com").text == "A"
        assert ask(kiln, "/", "A.Com:8080").text == "A"
        assert ask(kiln, "/", "a.com.").text == "A"
        assert ask(kiln, "/", "b.com").text == "B"
        assert ask(kiln, "/", "c.com").status == 404
        assert ask(kiln, "/loose.html", "a.com").status == 404
        assert ask(kiln, "/a.com/index.html", "b.com").status == 404
        assert ask(kiln, "/../a.com/index.html", "b.com").status == 400
        assert ask(kiln, "/", "a.com/../b.com").status in (400, 404)
        assert ask(kiln, "http://a.com/", "b.com").text == "A"
        missing = ask(kiln, "/x", "b.com")
        assert missing.status == 404 and missing.text == "B has no such page"
        assert "no such page" not in ask(kiln, "/x", "a.com").text


def test_backend_default_directory(server, files):
    files({"a.com/index.html": "A", "default/index.html": "anyone"})
    with server(layout="backend") as kiln:
        assert ask(kiln, "/", "a.com").text == "A"
        assert ask(kiln, "/", "unknown.com").text == "anyone"


def test_hosts_come_and_go_while_running(server, files):
    root = files({"a.com/index.html": "A"})
    with server(layout="backend") as kiln:
        assert ask(kiln, "/", "new.com").status == 404
        write_tree(root, {"new.com/index.html": "N", "new.com/api._c": endpoint("N")})
        eventually(kiln, "/", shows("N"), "new.com")
        eventually(kiln, "/api/x", shows("N|/api/x|/api|/x"), "new.com")
        (root / "new.com").rename(root / "newer.com")
        eventually(kiln, "/", is_gone, "new.com")
        eventually(kiln, "/", shows("N"), "newer.com")
        (root / "www.newer.com").symlink_to("newer.com")
        eventually(kiln, "/", shows("N"), "www.newer.com")


def test_domain_alias_filter_and_url_alias_in_order(server, files):
    files(
        {
            "examplecom/new.html": "new",
            "examplecom/dir/index.html": "dir",
            "othercom/a.html": "other",
            "ported/a.html": "ported",
        }
    )
    config = {
        "DomainAlias": {"www.example.com": "example.com", "Other.net": "other.com", "example.com:7000": "ported"},
        "FilterFromDomain": ".",
        "DomainFilterTo": "",
        "UrlAlias": {"examplecom/old.html": "/new.html", "examplecom/old": "/dir/", "othercom/x": "/a.html"},
    }
    with server(config, layout="backend") as kiln:
        assert ask(kiln, "/new.html", "example.com").text == "new"
        assert ask(kiln, "/new.html", "www.example.com:8080").text == "new"
        assert ask(kiln, "/a.html", "other.NET").text == "other"
        assert ask(kiln, "/a.html", "example.com:7000").text == "ported"
        assert ask(kiln, "/old.html?query", "www.example.com").text == "new"
        assert ask(kiln, "/old", "example.com").text == "dir"
        assert ask(kiln, "/x", "other.com").text == "other"
        assert ask(kiln, "/x", "example.com").status == 404


# ---- what answers -------------------------------------------------------------------------------


def test_directory_answers_by_index_priority(server, files):
    root = files({"index.html": "page", "sub/index.html": "page", "empty/a.txt": "a"})
    with server() as kiln:
        assert ask(kiln, "/").text == "page"
        assert ask(kiln, "/empty/").status == 404
        write_tree(root, {"index._c": endpoint("code")})
        eventually(kiln, "/", lambda a: a.text.startswith("code|/|"))
        (root / "index._c").unlink()
        eventually(kiln, "/", shows("page"))
        (root / "index.html").unlink()
        eventually(kiln, "/", is_gone)
        assert ask(kiln, "/sub/").text == "page"


def test_index_priority_is_an_option(server, files):
    files({"index.html": "index", "start.html": "start", "index._c": endpoint("code")})
    with server({"indexPriority": ["start.html", "index._csdll", "index._cs", "index.html"]}) as kiln:
        assert ask(kiln, "/").text == "start"
        kiln.write_config(indexPriority=["index._cs", "index.html"])
        kiln.reload()
        eventually(kiln, "/", lambda a: a.text.startswith("code"))


def test_directory_urls_get_their_slash(server, files):
    files({"d/index.html": "page", "sp ace/index.html": "space", "evil.com/index.html": "x", "back\\slash/index.html": "x"})
    with server() as kiln:
        for target, location in {
            "/d": "/d/",
            "/d?a=b&c=d": "/d/?a=b&c=d",
            "/sp%20ace": "/sp%20ace/",
            "//evil.com": "/evil.com/",
            "/%2fevil.com": "/evil.com/",
            "/.//evil.com": "/evil.com/",
            "/d/../%2f/evil.com": "/evil.com/",
            "/back%5Cslash": "/back%5Cslash/",
        }.items():
            answer = ask(kiln, target)
            assert (answer.status, answer.headers.get("location")) == (301, location), target
        assert ask(kiln, "/sp%20ace/").text == "space"
        assert ask(kiln, "/d", method="HEAD").status == 301
        posted = ask(kiln, "/d", method="POST")
        assert posted.status == 308 and posted.headers["location"] == "/d/"


def test_endpoints_answer_their_names_and_what_is_below(server, files):
    files(
        {
            "hello._c": endpoint("hello"),
            "sub/index._c": endpoint("sub"),
            "sub/page.html": "page",
            "real/a.html": "a",
            "real._c": endpoint("real"),
            "full/index.html": "full",
            "full._c": endpoint("full"),
            "file": "file",
            "file._c": endpoint("file"),
        }
    )
    with server() as kiln:
        assert ask(kiln, "/hello").text == "hello|/hello|/hello|"
        assert ask(kiln, "/hello._c").text == "hello|/hello._c|/hello._c|"
        assert ask(kiln, "/hello/a/b?q").text == "hello|/hello/a/b|/hello|/a/b"
        assert ask(kiln, "/hello/").text == "hello|/hello/|/hello|/"
        assert ask(kiln, "/hello._c/x").text == "hello|/hello._c/x|/hello._c|/x"
        assert ask(kiln, "/sub/").text == "sub|/sub/|/sub/|"
        assert ask(kiln, "/sub/index/x").text == "sub|/sub/index/x|/sub/index|/x"
        assert ask(kiln, "/sub/page.html").text == "page"
        assert ask(kiln, "/sub/missing").status == 404
        assert ask(kiln, "/hellox").status == 404
        # A real file, or a directory with an index, stands before a short name.
        assert ask(kiln, "/full/").text == "full"
        assert ask(kiln, "/full/missing").status == 404
        assert ask(kiln, "/full._c/x").text == "full|/full._c/x|/full._c|/x"
        assert ask(kiln, "/real/a.html").text == "a"
        assert ask(kiln, "/real/missing").text == "real|/real/missing|/real|/missing"
        assert ask(kiln, "/file").text == "file"
        assert ask(kiln, "/hello", method="OPTIONS").text == "hello|/hello|/hello|"
        assert ask(kiln, "/hello", method="DELETE").text == "hello|/hello|/hello|"


def test_loop_find_endpoint(server, files):
    files({"index.html": "root", "a/index._c": endpoint("a"), "a/b/page.html": "page"})
    with server({"LoopFindEndpoint": True}) as kiln:
        assert ask(kiln, "/a/b/missing").text == "a|/a/b/missing|/a|/b/missing"
        assert ask(kiln, "/a/b/page.html").text == "page"
        assert ask(kiln, "/nowhere/at/all").text == "root"
        assert ask(kiln, "/a/.env").status == 404
    with server(base="off", files={"index.html": "root", "a/index._c": endpoint("a")}) as kiln:
        assert ask(kiln, "/a/b/missing").status == 404
        assert ask(kiln, "/nowhere").status == 404


def test_static_only_runs_nothing_and_shows_no_source(server, files):
    files({"index._c": endpoint("ran"), "index.html": "page", "api.so": "\x7fELF", "util.h": "secret"})
    with server(layout="static") as kiln:
        assert ask(kiln, "/").text == "page"
        for target in ("/index._c", "/index", "/api.so", "/api", "/api._c", "/util.h"):
            answer = ask(kiln, target)
            assert answer.status == 404 and "secret" not in answer.text and "kiln.h" not in answer.text, target


def test_methods(server, files):
    files({"a.html": "a"})
    with server() as kiln:
        refused = ask(kiln, "/a.html", method="DELETE")
        assert refused.status == 405 and "GET" in refused.headers["allow"]
        options = ask(kiln, "/a.html", method="OPTIONS")
        assert options.status == 204 and "GET" in options.headers["allow"]
        everything = ask(kiln, "*", method="OPTIONS")
        assert everything.status == 204 and "POST" in everything.headers["allow"]
        assert ask(kiln, "/a.html", method="TRACE").status == 405
        assert ask(kiln, "/missing", method="POST").status == 404


def test_path_limits(server, files):
    files({"1/2/a.html": "a", "1/2/3/b.html": "b", "index.html": "home"})
    with server({"MaxDirDepth": 3, "MaxFilePathLength": 100}) as kiln:
        assert ask(kiln, "/1/2/a.html").text == "a"
        assert ask(kiln, "/1/2/3/b.html").status == 404
        assert ask(kiln, "/" + "x" * 99).status == 404
        assert ask(kiln, "/" + "x" * 100).status == 414
        assert ask(kiln, "/" + "%41" * 99).status == 404
        assert ask(kiln, "/?" + "x" * 1000).text == "home"


# ---- what is never shown ---------------------------------------------------------------------------


SECRET = "top secret"


@pytest.fixture
def guarded(server, files, tmp_path):
    """A site with secrets in it and around it."""
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.html").write_text(SECRET)
    files(
        {
            "index.html": "home",
            "dir/a.html": "a",
            "api._c": f"/* {SECRET} */\n" + endpoint("api"),
            "lib/util.h": SECRET,
            "lib/util.c": SECRET,
            "api._c~": SECRET,
            "api._c.bak": SECRET,
            ".api._c.swp": SECRET,
            "old.so.1": SECRET,
            "index.php": SECRET,
            ".env": SECRET,
            ".htaccess": SECRET,
            ".git/config": SECRET,
            "dir/.hidden/x.html": SECRET,
            ".well-known/acme/token": "token",
            "out.txt": Link("../secret.txt"),
            "out": Link("../outside"),
            "passwd": Link("/etc/passwd"),
            "source.txt": Link("api._c"),
            "env.txt": Link(".env"),
            "inside.html": Link("dir/a.html"),
        }
    )
    with server({"LoopFindEndpoint": False}) as kiln:
        yield kiln


ATTEMPTS = """
/../secret.txt
/../../secret.txt
/dir/../../secret.txt
/%2e%2e/secret.txt
/%2e%2e%2fsecret.txt
/..%2fsecret.txt
/.%2e/secret.txt
/%2E./secret.txt
/%252e%252e/secret.txt
/%25%32%65%25%32%65/secret.txt
/..%5csecret.txt
/..\\secret.txt
/dir\\..\\..\\secret.txt
/....//secret.txt
/.../secret.txt
/..;/secret.txt
/%c0%ae%c0%ae/secret.txt
/%c0%ae%c0%ae%c0%afsecret.txt
/%uff0e%uff0e/secret.txt
//../secret.txt
/./../secret.txt
/dir/%2e%2e/%2e%2e/secret.txt
/../www/../secret.txt
/index.html/../../secret.txt
/api/../../secret.txt
/api._c/../../secret.txt
/out.txt
/out/x.html
/out/
/out
/passwd
/source.txt
/env.txt
/api._c~
/api._c%7e
/api._c.bak
/api._c%00
/api._c%00.html
/api%2e_c.bak
/api._C
/.api._c.swp
/old.so.1
/index.php
/index.php/x
/lib/util.h
/lib/util.c
/.env
/%2eenv
/%2Eenv
//.env
/./.env
/dir/../.env
/dir/..%2f.env
/.env/
/.env%20
/.htaccess
/.git/config
/.git
/.git/
/.well-known/../.env
/.well-known/%2e%2e/.env
/.well-known/.env
/dir/.hidden/x.html
/dir/%2ehidden/x.html
/file:///etc/passwd
/%2fetc%2fpasswd
//etc/passwd
/%
/%0
/%zz
/%00
http://localhost/../secret.txt
http://localhost/.env
""".split()


def test_traversal_and_disclosure_attempts_fail(guarded):
    for target in ATTEMPTS:
        answer = ask(guarded, target)
        assert answer.status in (400, 403, 404), (target, answer)
        assert SECRET not in answer.text and "root:" not in answer.text, target
    for length in (600, 4000, 7000):
        assert ask(guarded, "/" + "a/" * (length // 2)).status in (404, 414)
        assert ask(guarded, "/" + "../" * (length // 3) + "secret.txt").status in (400, 414)
        assert ask(guarded, "/" + "%2e%2e/" * (length // 7) + "secret.txt").status in (400, 414)
    assert ask(guarded, "/inside.html").text == "a"
    assert ask(guarded, "/.well-known/acme/token").text == "token"
    assert ask(guarded, "/api").text == "api|/api|/api|"
    for method in ("HEAD", "POST", "OPTIONS", "PROPFIND"):
        for target in ("/.env", "/api._c~", "/lib/util.h"):
            assert ask(guarded, target, method=method).status == 404


def test_own_files_inside_the_root_are_not_served(server, files, tmp_path):
    root = files({"index.html": "home"})
    config = {"PidFile": "www/kiln.pid", "SessionsDir": "www/sess", "ErrorLog": "www/error.log", "Logging": True, "AccessLog": "www/access.log"}
    with server(config) as kiln:
        wait_for(lambda: (root / "kiln.pid").exists() and (root / "error.log").exists(), "the server's own files")
        for target in ("/kiln.pid", "/error.log", "/access.log", "/sess/data.mdb", "/sess/", "/sess"):
            assert ask(kiln, target).status == 404, target
        assert ask(kiln, "/").text == "home"


def test_links_out_of_the_root_when_allowed(server, files, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.html").write_text("outside")
    files({"out": Link("../outside"), "x.html": Link("../outside/x.html")})
    with server({"SymlinksOutside": True}) as kiln:
        assert ask(kiln, "/out/x.html").text == "outside"
        assert ask(kiln, "/x.html").text == "outside"
        (tmp_path / "outside" / "x.html").write_text("changed")
        eventually(kiln, "/out/x.html", shows("changed"))
        eventually(kiln, "/x.html", shows("changed"))


def test_a_link_swapped_in_later_shows_nothing(server, files, tmp_path):
    (tmp_path / "secret.txt").write_text(SECRET)
    root = files({"a.html": "a", "d/a.html": "a", ".env": SECRET})
    with server({"FileCacheSize": 0}) as kiln:
        for target in ("../secret.txt", ".env", "/etc/passwd"):
            (root / "next").symlink_to(target)
            (root / "next").rename(root / "a.html")
            for _ in range(50):
                answer = ask(kiln, "/a.html")
                assert SECRET not in answer.text and "root:" not in answer.text
            eventually(kiln, "/a.html", lambda a: a.status in (403, 404))


# ---- changes ---------------------------------------------------------------------------------------------


def test_files_and_directories_change_while_running(server, files):
    root = files({"a.html": "one", "d/x.html": "x", "keep.html": "keep"})
    with server() as kiln:
        assert ask(kiln, "/a.html").text == "one"
        (root / "a.html").write_text("two")
        eventually(kiln, "/a.html", shows("two"))
        (root / ".a.tmp").write_text("renamed over")
        (root / ".a.tmp").rename(root / "a.html")
        eventually(kiln, "/a.html", shows("renamed over"))
        (root / "a.html").rename(root / "a.html~")
        (root / "a.html").write_text("by an editor")
        (root / "a.html~").unlink()
        eventually(kiln, "/a.html", shows("by an editor"))
        (root / "d").rename(root / "e")
        eventually(kiln, "/d/x.html", is_gone)
        eventually(kiln, "/e/x.html", shows("x"))
        write_tree(root, {"new/deep/er/y.html": "y"})
        eventually(kiln, "/new/deep/er/y.html", shows("y"))
        shutil.rmtree(root / "new")
        eventually(kiln, "/new/deep/er/y.html", is_gone)
        (root / "a.html").unlink()
        eventually(kiln, "/a.html", is_gone)
        assert ask(kiln, "/keep.html").text == "keep"


def test_endpoints_change_while_running(server, files):
    root = files({"index.html": "home"})
    with server() as kiln:
        assert ask(kiln, "/api").status == 404
        write_tree(root, {"api._c": endpoint("one")})
        eventually(kiln, "/api/x", shows("one|/api/x|/api|/x"))
        write_tree(root, {"api._c": endpoint("two")})
        eventually(kiln, "/api/x", shows("two|/api/x|/api|/x"))
        (root / "api._c").rename(root / "other._c")
        eventually(kiln, "/api", is_gone)
        eventually(kiln, "/other", shows("two|/other|/other|"))
        write_tree(root, {"other/index.html": "a directory"})
        eventually(kiln, "/other", lambda a: a.status == 301)


def test_a_deployment_swaps_its_link(server, files):
    root = files(
        {
            "releases/1/index.html": "release 1",
            "releases/1/old.html": "old",
            "releases/1/api._c": endpoint("one"),
            "releases/2/index.html": "release 2",
            "releases/2/api._c": endpoint("two"),
            "current": Link("releases/1"),
        }
    )
    with server() as kiln:
        assert ask(kiln, "/current/").text == "release 1"
        assert ask(kiln, "/current/api").text.startswith("one|")
        (root / "next").symlink_to("releases/2")
        (root / "next").rename(root / "current")
        eventually(kiln, "/current/", shows("release 2"))
        eventually(kiln, "/current/old.html", is_gone)
        eventually(kiln, "/current/api", lambda a: a.text.startswith("two|"))
        assert ask(kiln, "/releases/1/api").text.startswith("one|")


def test_the_root_itself_is_a_link(server, tmp_path):
    write_tree(tmp_path / "r1", {"index.html": "release 1", "api._c": endpoint("one")})
    write_tree(tmp_path / "r2", {"index.html": "release 2", "api._c": endpoint("two")})
    (tmp_path / "live").symlink_to("r1")
    with server({"SiteDir": "live"}, layout=None) as kiln:
        assert ask(kiln, "/").text == "release 1"
        assert ask(kiln, "/api").text.startswith("one|")
        (tmp_path / "next").symlink_to("r2")
        (tmp_path / "next").rename(tmp_path / "live")
        eventually(kiln, "/", shows("release 2"))
        eventually(kiln, "/api", lambda a: a.text.startswith("two|"))


def test_the_root_goes_and_comes_back(server, files, tmp_path):
    root = files({"index.html": "first"})
    with server() as kiln:
        assert ask(kiln, "/").text == "first"
        root.rename(tmp_path / "away")
        eventually(kiln, "/", is_gone)
        write_tree(root, {"index.html": "second"})
        eventually(kiln, "/", shows("second"))


def test_a_burst_of_changes(server, files):
    root = files({"index.html": "home"})
    with server() as kiln:
        for i in range(10000):
            path = root / f"d{i % 20}" / f"f{i}.html"
            if i < 20:
                path.parent.mkdir()
            path.write_text(str(i))
        for i in (0, 1, 4999, 9998, 9999):
            eventually(kiln, f"/d{i % 20}/f{i}.html", shows(str(i)))
        for i in range(20):
            (root / f"d{i}").rename(root / f"e{i}")
        for i in (0, 7, 9999):
            eventually(kiln, f"/e{i % 20}/f{i}.html", shows(str(i)))
            eventually(kiln, f"/d{i % 20}/f{i}.html", is_gone)
        assert ask(kiln, "/").text == "home"


LIMITED = """
import ctypes, os, sys
if ctypes.CDLL(None).unshare(0x10000000) != 0:  # CLONE_NEWUSER
    sys.exit(77)
with open("/proc/sys/user/max_inotify_watches", "w") as limit:
    limit.write("3")
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_the_inotify_limit_is_reached(server, files, tmp_path):
    """In a user namespace of its own, whose limit is low."""
    probe = subprocess.run([sys.executable, "-c", LIMITED, "/bin/true"], capture_output=True)
    if probe.returncode != 0:
        pytest.skip("user namespaces are not allowed here")
    program = tmp_path / "limited"
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.argv.insert(1, {str(Server(tmp_path / 'p').program)!r})\n{LIMITED}")
    program.chmod(0o755)
    root = files({"a/a.html": "a", "b/b/b.html": "b", "c/c.html": "c", "c/api._c": endpoint("one")})
    with server(program=program) as kiln:
        assert len([line for line in kiln.log().splitlines() if "inotify limit" in line]) == 1
        assert "sysctl fs.inotify.max_user_watches" in kiln.log()
        for name in ("a/a.html", "b/b/b.html", "c/c.html"):
            (root / name).write_text("changed " + name)
            assert ask(kiln, "/" + name).text == "changed " + name
            (root / name).unlink()
            assert ask(kiln, "/" + name).status == 404
        write_tree(root, {"c/new/x.html": "new"})
        assert ask(kiln, "/c/new/x.html").text == "new"
        assert ask(kiln, "/c/api").text.startswith("one|")
        os.utime(root / "c/api._c")
        write_tree(root, {"c/api._c": endpoint("two")})
        eventually(kiln, "/c/api", lambda a: a.text.startswith("two|"))
        assert len([line for line in kiln.log().splitlines() if "inotify limit" in line]) == 1
