"""What README.md shows works as it stands there."""

import re
import subprocess
import textwrap

from kiln_server import ROOT, build_dir, replace, wait_for
from websocket import RawSocket

README = (ROOT / "README.md").read_text()


def first_endpoint():
    block = re.search(r"cat > site/hello/index\._c <<'EOF'\n(.*?)\n    EOF\n", README, re.S)
    return textwrap.dedent(block.group(1)) + "\n"


def test_the_first_endpoint_answers_changes_and_survives_a_mistake(server, files):
    source = first_endpoint()
    www = files({"hello/index._c": source})
    with server(config={"DebugPages": True}) as kiln:
        assert kiln.get("/hello/").text == "Hello there! Path: /hello/\n"
        changed = source.replace("Hello there!", "Changed:")
        assert changed != source
        (www / "hello/index._c").write_text(changed)
        wait_for(lambda: kiln.get("/hello/").text == "Changed: Path: /hello/\n", "the edit is seen")
        mistake = changed.replace("return 0;", "return 0")
        replace(www / "hello/index._c", mistake)
        kiln.wait_log(r"hello/index\._c:\d+: error")
        assert kiln.get("/hello/").text == "Changed: Path: /hello/\n"
        (www / "oops._c").write_text(mistake)
        wait_for(lambda: "oops._c:" in (answer := kiln.get("/oops")).text and answer.status == 500, "the mistake is found")


def test_the_same_source_builds_as_a_shared_object(server, files, tmp_path):
    line = re.search(r"gcc -O2 -fPIC -shared -Iplugin-sdk/include -o site/hello/index\.so hello\.c", README).group(0)
    (tmp_path / "hello.c").write_text(first_endpoint())
    www = files({"hello/x.txt": "x"})
    command = line.replace("plugin-sdk/include", str(ROOT / "plugin-sdk/include"))
    command = command.replace("site/hello/index.so", str(www / "hello/index.so"))
    subprocess.run(command.split(), cwd=tmp_path, check=True)
    with server() as kiln:
        assert kiln.get("/hello/").text == "Hello there! Path: /hello/\n"


def test_the_echo_of_sockets(server):
    block = re.search(r"```c\n(void kiln_socket.*?)```", README, re.S).group(1)
    with server(files={"echo._c": "#include <kiln.h>\n" + block}) as kiln, RawSocket(kiln, "/echo") as ws:
        ws.text("Hello there!")
        assert ws.read_text() == "Hello there!"
        ws.close()


def test_the_calls_of_the_tour_exist():
    tour = re.search(r"A tour:\n\n```c\n(.*?)```", README, re.S).group(1)
    header = (ROOT / "plugin-sdk/include/kiln.h").read_text()
    names = set(re.findall(r"\b(kiln_\w+)\(", tour))
    assert len(names) > 10
    for name in names:
        assert re.search(rf"\b{name}\(", header), name


def test_the_sample_config_has_no_mistake(tmp_path):
    sample = textwrap.dedent(re.search(r"\n(    \{\n        // one site per host.*?\n    \})\n", README, re.S).group(1))
    sample = sample.replace("/srv/www", str(tmp_path))
    (tmp_path / "kiln.json").write_text(sample)
    done = subprocess.run(
        [build_dir() / "kiln", "config", "--check", tmp_path / "kiln.json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_admin_listener_is_as_told(server, files, tmp_path):
    """The paths of the table, the commands and the members that the text names."""
    section = re.search(r"## What it is doing\n(.*?)\n## ", README, re.S).group(1)
    paths = re.findall(r"^\| `(/\w+)` \|", section, re.M)
    assert len(paths) == 4
    files({"index.html": "page", "hello._c": first_endpoint()})
    socket_file = tmp_path / "admin.sock"
    with server(config={"AdminListen": f"unix:{socket_file}"}) as kiln:
        kiln.get("/hello")
        command = re.search(r"curl --unix-socket \S+ (http://localhost)/metrics", section).group(0)
        for path in paths:
            words = command.replace("/run/kiln/admin.sock", str(socket_file)).replace("/metrics", path).split()
            done = subprocess.run([*words, "-sf"], capture_output=True, text=True)
            assert done.returncode == 0, path
        ask = [*words[:-1], "http://localhost/status", "-sf"]
        for name in re.findall(r"`(\w+_seconds)`", section):
            wait_for(lambda: f'"{name}"' in subprocess.run(ask, capture_output=True, text=True).stdout, name)


def test_the_line_for_http2_works(server, files):
    line = re.search(r"curl --http2-prior-knowledge http://localhost:8080(/\S+)", README)
    files({"hello/index._c": first_endpoint()})
    with server() as kiln:
        command = ["curl", "-s", "--http2-prior-knowledge", "-w", "%{http_version}", kiln.url(line[1])]
        assert subprocess.run(command, capture_output=True, timeout=60).stdout == b"Hello there! Path: /hello/\n2"
