"""Endpoints as their authors see them: drop a file, ask, edit, break, mend."""

import html
import os
import re
import shutil
import signal
import struct
import subprocess
import threading
from pathlib import Path

import pytest

from kiln_server import ROOT, exchange, replace, wait_for

SAYS = """#include <kiln.h>
int kiln_run(kiln_context *ctx, const char *path)
{
    kiln_content_type(ctx, "text/plain");
    kiln_puts(ctx, "%s");
    return 0;
}
"""
BROKEN = """#include <kiln.h>
int kiln_run(kiln_context *ctx, const char *path)
{
    kiln_puts(ctx, "<never>");
    return 0
}
"""
COUNTS = """#include <kiln.h>
static int count;
int kiln_run(kiln_context *ctx, const char *path)
{
    kiln_printf(ctx, "%d", ++count);
    return 0;
}
"""


def comes(kiln, path: str, text: str):
    wait_for(lambda: kiln.get(path).text == text, f"{path} saying {text!r}")


def compile_so(target: Path, source: str, compiler="gcc"):
    fresh = target.with_name(target.name + ".new")
    subprocess.run(
        [compiler, "-shared", "-fPIC", f"-I{ROOT}/plugin-sdk/include", "-x", "c++" if compiler == "g++" else "c", "-", "-o", fresh],
        input=source.encode(),
        check=True,
    )
    fresh.rename(target)


def test_a_dropped_file_answers(server):
    with server(files={"hello._c": SAYS % "one", "dir/index._c": SAYS % "index"}) as kiln:
        assert kiln.get("/hello").text == "one"
        assert kiln.get("/hello._c").text == "one"
        assert kiln.get("/hello/path/info").text == "one"
        assert kiln.get("/dir/").text == "index"
        (kiln.www / "late._c").write_text(SAYS % "late")
        comes(kiln, "/late", "late")
        (kiln.www / "late._c").unlink()
        wait_for(lambda: kiln.get("/late").status == 404, "404 for a file that is gone")


def test_a_build_leaves_the_stacks_as_they_are(server):
    """A module that does not say that it needs no executable stack gets one: for the whole process with the C
    library of Debian 12, and not at all with that of Debian 13."""
    with server(files={"hello._c": SAYS % "one"}) as kiln:
        maps = Path(f"/proc/{kiln.worker_pid()}/maps")
        assert "rwxp" not in maps.read_text()
        assert kiln.get("/hello").text == "one"
        assert "rwxp" not in maps.read_text()


@pytest.mark.parametrize("write", [replace, Path.write_text], ids=["renamed", "in place"])
def test_an_edit_is_seen(server, write):
    with server(files={"a._c": SAYS % "first"}) as kiln:
        assert kiln.get("/a").text == "first"
        for i in range(5):
            write(kiln.www / "a._c", SAYS % f"edit {i}")
            comes(kiln, "/a", f"edit {i}")


def test_an_edited_include_is_seen(server):
    files = {"a._c": '#include "lib/text.h"\n' + SAYS.replace('"%s"', "TEXT"), "lib/text.h": '#define TEXT "one"\n'}
    with server(files=files) as kiln:
        assert kiln.get("/a").text == "one"
        replace(kiln.www / "lib/text.h", '#define TEXT "two"\n')
        comes(kiln, "/a", "two")


def test_statics_survive_a_touch(server):
    with server(files={"n._c": COUNTS}) as kiln:
        assert [kiln.get("/n").text for _ in range(3)] == ["1", "2", "3"]
        os.utime(kiln.www / "n._c")
        (kiln.www / "other._c").write_text(SAYS % "x")
        comes(kiln, "/other", "x")
        assert kiln.get("/n").text == "4"


def test_the_last_good_build_serves(server):
    with server(files={"a._c": SAYS % "good"}) as kiln:
        assert kiln.get("/a").text == "good"
        replace(kiln.www / "a._c", BROKEN)
        kiln.wait_log(r"a\._c:5: error: .*the last good build still answers")
        for _ in range(5):
            assert kiln.get("/a").text == "good"
        assert kiln.log().count("a._c:5: error") == 1
        replace(kiln.www / "a._c", SAYS % "mended")
        comes(kiln, "/a", "mended")


def kept_in_cache(kiln):
    wait_for(lambda: list((kiln.base / "cache/record").glob("[0-9a-f]*")), "a record in the cache")


def test_the_last_good_build_outlives_its_worker(server):
    with server(files={"a._c": SAYS % "good", "b._c": BROKEN}) as kiln:
        assert kiln.get("/a").text == "good"
        kept_in_cache(kiln)
        replace(kiln.www / "a._c", BROKEN)
        kiln.wait_log(r"a\._c:5: error: .*the last good build still answers")
        first = kiln.worker_pid()
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: first not in kiln.worker_pids() and kiln.worker_pids(), "a new worker")
        comes(kiln, "/a", "good")
        assert kiln.get("/b").status == 500
        replace(kiln.www / "a._c", SAYS % "mended")
        comes(kiln, "/a", "mended")


def test_the_last_good_build_outlives_the_server(server):
    kiln = server(files={"a._c": SAYS % "good"})
    with kiln:
        assert kiln.get("/a").text == "good"
        kept_in_cache(kiln)
        kiln.stop()
        replace(kiln.www / "a._c", BROKEN)
        kiln.start()
        comes(kiln, "/a", "good")
        kiln.wait_log(r"a\._c:5: error: .*the last good build still answers")
        kiln.stop()
        (kiln.www / "a._c").unlink()
        kiln.start()
        assert kiln.get("/a").status == 404


def test_c_sources_switched_off_stay_off_although_they_were_built(server):
    with server(files={"a._c": SAYS % "good"}) as kiln:
        assert kiln.get("/a").text == "good"
        kept_in_cache(kiln)
        kiln.stop()
        kiln.options["Enable_C"] = False
        kiln.start()
        assert "good" not in kiln.get("/a").text


def test_a_first_error_is_500_and_in_the_log(server):
    with server(files={"a._c": BROKEN}) as kiln:
        answer = kiln.get("/a")
        assert answer.status == 500
        assert "error: " not in answer.text and "a._c" not in answer.text
        kiln.wait_log(r"a\._c:5: error: ")
        replace(kiln.www / "a._c", SAYS % "mended")
        comes(kiln, "/a", "mended")


def test_debug_pages_show_the_line(server):
    with server(config={"DebugPages": True}, files={"sub/a._c": BROKEN}) as kiln:
        answer = kiln.get("/sub/a")
        assert answer.status == 500
        assert answer.headers["Content-Type"].startswith("text/html")
        assert "sub/a._c:5" in answer.text
        assert "<span class=here><i>5</i>" in answer.text
        assert "&lt;never&gt;" in answer.text and "<never>" not in answer.text
        assert "http" not in answer.text.replace("http-equiv", "")


def test_an_overwritten_shared_object(server):
    server_ = server(files={})
    compile_so(server_.www / "a.so", SAYS % "one")
    with server_ as kiln:
        assert kiln.get("/a").text == "one"
        compile_so(kiln.base / "b.so", SAYS % "two")
        with open(kiln.www / "a.so", "r+b") as target, open(kiln.base / "b.so", "rb") as source:
            target.truncate()
            shutil.copyfileobj(source, target)
        comes(kiln, "/a", "two")


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_a_cpp_endpoint(server):
    server_ = server(files={})
    compile_so(server_.www / "a.so", SAYS % "c++", "g++")
    with server_ as kiln:
        assert kiln.get("/a").text == "c++"


def test_bad_modules_say_why(server):
    server_ = server(config={"DebugPages": True}, files={"text.so": "not a module", "none._c": "#include <kiln.h>\n"})
    compile_so(server_.www / "old.so", "int kiln_run(void *c, const char *p) { return 0; }")
    with server_ as kiln:
        for path, words in {"/text": "not an ELF file", "/none": "no kiln_run", "/old": "no kiln_module_abi"}.items():
            answer = kiln.get(path)
            assert answer.status == 500 and words in answer.text, path


def damaged(module: bytes, tag: int) -> bytes:
    """With another address in the entry of its dynamic section, which the linker follows."""
    data = bytearray(module)
    headers, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    for i in range(count):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", data, headers + i * size)
        for at in range(offset, offset + length, 16) if kind == 2 else ():
            if struct.unpack_from("<Q", data, at)[0] == tag:
                struct.pack_into("<Q", data, at + 8, 0x123456789000)
    assert data != module
    return bytes(data)


def test_a_damaged_module_costs_no_worker(server):
    kiln = server(config={"DebugPages": True, "Threads": 1}, files={"hello._c": SAYS % "hello"})
    compile_so(kiln.base / "good.so", SAYS % "good")
    good = (kiln.base / "good.so").read_bytes()
    for name, tag in {"relocations": 7, "symbols": 6}.items():
        (kiln.www / f"{name}.so").write_bytes(damaged(good, tag))
    with kiln:
        worker = kiln.worker_pid()
        for name in ("relocations", "symbols"):
            answer = kiln.get("/" + name)
            assert answer.status == 500
        assert "it is damaged: the dynamic linker crashed" in kiln.get("/relocations").text
        assert kiln.get("/hello").text == "hello"
        assert kiln.worker_pids() == [worker]


def test_a_constructor_that_ends_its_process_ends_no_worker(server):
    kiln = server(config={"DebugPages": True}, files={"hello._c": SAYS % "hello"})
    ends = "#include <unistd.h>\n#include <sys/syscall.h>\n__attribute__((constructor)) static void end(void) { syscall(SYS_exit_group, 0); }\n"
    compile_so(kiln.www / "a.so", SAYS % "never" + ends)
    with kiln:
        worker = kiln.worker_pid()
        for _ in range(2):
            answer = kiln.get("/a")
            assert answer.status == 500 and "a constructor of it ended the process, with exit code 0" in answer.text
        assert kiln.get("/hello").text == "hello"
        assert kiln.worker_pids() == [worker]


def test_a_module_of_a_terabyte_keeps_nobody_busy(server):
    kiln = server(config={"DebugPages": True}, files={"hello._c": SAYS % "hello"})
    compile_so(kiln.www / "a.so", SAYS % "sparse")
    os.truncate(kiln.www / "a.so", 1 << 40)
    with kiln:
        answer = kiln.get("/a")
        assert answer.status == 500 and "File too large" in answer.text
        comes(kiln, "/hello", "hello")


def test_builds_survive_a_restart(server):
    kiln = server(config={"LogLevel": "info"}, files={"a._c": SAYS % "kept"})
    kiln.start()
    assert kiln.get("/a").text == "kept"
    wait_for(lambda: list((kiln.base / "cache/object").glob("*.so")), "an object in the cache")
    wait_for(lambda: list((kiln.base / "cache/record").glob("[0-9a-f]*")), "a record in the cache")
    kiln.stop()
    assert not list((kiln.base / "cache/run").iterdir())
    kiln.start()
    assert kiln.get("/a").text == "kept"
    kiln.wait_log(r"a\._c: loaded in .*from the cache")
    kiln.stop()


def test_a_worker_that_was_killed_leaves_nothing_behind(server):
    with server(files={"a._c": SAYS % "a"}) as kiln:
        assert kiln.get("/a").text == "a"
        before = {p.name for p in (kiln.base / "cache/run").iterdir()}
        os.kill(kiln.worker_pid(), 9)

        def back():
            try:
                return kiln.get("/a").text == "a" and {p.name for p in (kiln.base / "cache/run").iterdir()}
            except OSError:
                return None

        wait_for(lambda: (after := back()) and len(after) == 1 and after != before, "one directory, of the new worker")


def test_include_paths_of_a_new_config(server):
    kiln = server(files={"a._c": '#include "word.h"\n' + SAYS.replace('"%s"', "WORD")})
    (kiln.base / "inc").mkdir()
    (kiln.base / "inc/word.h").write_text('#define WORD "found"\n')
    with kiln:
        assert kiln.get("/a").status == 500
        kiln.write_config(IncludePaths=[str(kiln.base / "inc")])
        kiln.reload()
        comes(kiln, "/a", "found")
        # Outside the site nobody watches: requests look, once a second.
        (kiln.base / "inc/word.h").write_text('#define WORD "changed"\n')
        comes(kiln, "/a", "changed")


def test_a_full_disk_is_told_and_gets_over(server, tmp_path):
    """libtcc ignores failed writes: what it left behind must not be taken for a broken module, nor for good."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", small], capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a small disk")
    try:
        kiln = server({"CacheDir": str(small / "cache"), "DebugPages": True, "OptimizeEndpoints": False}, {"a._c": SAYS % "here"})
        with kiln:
            fill = small / "fill"
            with pytest.raises(OSError), open(fill, "wb", buffering=0) as out:
                while True:
                    out.write(b"x" * 4096)
            assert kiln.get("/a").status == 500
            kiln.wait_log("cannot write .*: No space left on device")
            fill.unlink()
            wait_for(lambda: kiln.get("/a").status == 200, "the endpoint builds when there is room again")
            with pytest.raises(OSError), open(fill, "wb", buffering=0) as out:
                while True:
                    out.write(b"x" * 4096)
            replace(kiln.www / "a._c", SAYS % "there")
            kiln.wait_log("cannot write .*: No space left on device.*the last good build still answers")
            assert kiln.get("/a").text == "here"
            fill.unlink()
            comes(kiln, "/a", "there")
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_hostile_sources_slow_nobody_and_leave_nothing(server, tmp_path):
    """tests/plugins/hostile through a running server: each gets its error, while others are answered from the loop."""
    hostile = sorted((ROOT / "tests/plugins/hostile").iterdir())
    files = {path.name: path for path in hostile} | {"hello._c": SAYS % "hello", "index.html": "file", "fine._c": SAYS % "fine"}
    files["huge.h"] = b" " * (17 << 20)
    files["deep._c"] = "/* expect: error */ int x = " + "(" * 300000 + "1" + ")" * 300000 + ";\n"
    names = [name for name in files if name.endswith("._c") and name not in ("hello._c", "fine._c")]
    (tmp_path / "tmp").mkdir()
    kiln = server(files=files, config={"Threads": 1, "DebugPages": True}, env={"TMPDIR": str(tmp_path / "tmp")})
    os.mkfifo(kiln.www / "fifo.h")
    with kiln:
        comes(kiln, "/hello", "hello")
        client = kiln.client()
        answers = {}

        def ask(name):
            answers[name] = kiln.get("/" + name, timeout=120)

        threads = [threading.Thread(target=ask, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        asked = 0
        while any(thread.is_alive() for thread in threads) or asked < 20:
            assert exchange(client, "GET", "/hello").text == "hello"
            assert exchange(client, "GET", "/").text == "file"
            asked += 1
        for thread in threads:
            thread.join()
        client.close()
        comes(kiln, "/fine", "fine")  # a build behind all of them
        for name in names:
            expected = re.search(r"/\* expect: (.*?) *\*/", (kiln.www / name).read_text()[:200])[1]
            shown = html.unescape(re.sub(r"<[^>]*>", "", answers[name].text))
            assert answers[name].status == 500 and expected in shown, (name, expected, shown[-2000:])
        wait_for(lambda: list((tmp_path / "tmp").iterdir()) == [], "the end of temporary files")
        runs = list((kiln.base / "cache" / "run").iterdir())
        wait_for(lambda: not [p for run in runs for p in run.iterdir() if "hello" not in p.name and "fine" not in p.name],
                 "the end of half-made builds")
        assert len(runs) == 1 and "was killed by signal" not in kiln.log()


def test_an_edit_while_the_optimiser_reads_is_not_lost(server, tmp_path):
    """The preprocessor of gcc has read the old text when the new one is written: what comes of that is nobody's build."""
    wrapper = tmp_path / "cc"
    wrapper.write_text(f"""#!/bin/sh
gcc "$@" || exit
case " $* " in
*" -E "*) [ ! -e {tmp_path}/edit ] || {{ mv {tmp_path}/edit {tmp_path}/edited; cat {tmp_path}/new > {tmp_path}/www/x._c; }};;
*) touch {tmp_path}/compiled; while [ -e {tmp_path}/edited ] && [ ! -e {tmp_path}/go ]; do sleep 0.01; done;;
esac
""")
    wrapper.chmod(0o755)
    (tmp_path / "new").write_text(SAYS % "new")
    with server(files={"x._c": SAYS % "old"}, env={"KILN_OPTIMIZER": str(wrapper)}, config={"LogLevel": "debug"}) as kiln:
        (tmp_path / "edit").touch()
        comes(kiln, "/x", "old")
        wait_for((tmp_path / "edited").exists, "the edit under the preprocessor")
        comes(kiln, "/x", "new")
        (tmp_path / "compiled").unlink(missing_ok=True)
        (tmp_path / "go").touch()
        # Another endpoint goes through the same, single optimiser behind it.
        (kiln.www / "y._c").write_text(SAYS % "y")
        comes(kiln, "/y", "y")
        wait_for((tmp_path / "compiled").exists, "the optimised build of another")
        assert kiln.get("/x").text == "new"
    with server(env={"KILN_OPTIMIZER": str(wrapper)}) as kiln:
        assert kiln.get("/x").text == "new"
