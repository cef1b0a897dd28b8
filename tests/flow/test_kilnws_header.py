"""kiln.h and kiln_ws.h are one family: what both declare is the same, and C++ takes both."""

import re
import subprocess

from kiln_server import ROOT

INCLUDE = ROOT / "plugin-sdk/include"


def shared_functions(text):
    names = re.findall(r"^KILN_API [^;]*?\b(kiln_ws_\w+)\(", text, re.M)
    return {name: re.sub(r"\s+", " ", re.search(rf"^KILN_API ([^;]*?\b{name}\([^;]*)", text, re.M).group(1)) for name in names}


def test_functions_of_both_headers_are_declared_alike():
    server, library = (shared_functions((INCLUDE / name).read_text()) for name in ("kiln.h", "kiln_ws.h"))
    both = set(server) & set(library)
    assert len(both) > 20
    for name in both:
        assert server[name] == library[name], name


def test_types_of_both_headers_are_laid_out_alike(tmp_path):
    text = (INCLUDE / "kiln_ws.h").read_text()
    lines = []
    for struct in ("kiln_ws_options", "kiln_ws_message", "kiln_ws_handler"):
        body = re.search(rf"typedef struct {struct} {{(.*?)}} {struct};", text, re.S).group(1)
        body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
        members = [m or n for m, n in re.findall(r"\(\*(\w+)\)|(\w+)(?:\[\d+\])?;", body)]
        assert len(members) > 3, body
        lines.append(f'printf("{struct} %zu\\n", sizeof(struct {struct}));')
        lines += [f'printf("{struct}.{m} %zu\\n", offsetof(struct {struct}, {m}));' for m in members]
    shared = text[text.index("#ifndef KILN_WS_SHARED") : text.index("#endif /* KILN_WS_SHARED */")]
    names = [name for body in re.findall(r"^enum \w+ {(.*?)};", shared, re.S | re.M) for name in re.findall(r"\b(KILN_\w+)\b(?= =|,)", body)]
    assert "KILN_FAILED" in names and "KILN_WS_BINARY" in names and "KILN_WS_DEFLATE_FORGET" in names
    lines += [f'printf("{name} %d\\n", (int){name});' for name in names]
    outputs = []
    for header in ("kiln.h", "kiln_ws.h"):
        source = tmp_path / "program.c"
        source.write_text(f"#include <{header}>\n#include <stdio.h>\nint main(void)\n{{\n" + "\n".join(lines) + "\nreturn 0;\n}\n")
        subprocess.run(["gcc", "-Wall", "-Werror", f"-I{INCLUDE}", source, "-o", tmp_path / "program"], check=True)
        outputs.append(subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True).stdout)
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) > 40


def test_cplusplus_takes_both(tmp_path):
    for text in ("#include <kiln_ws.h>\n", "#include <kiln.h>\n#include <kiln_ws.h>\n"):
        source = tmp_path / "program.cpp"
        source.write_text(text + "int main() { kiln_ws_options o = kiln_ws_options(); return o.deflate; }\n")
        subprocess.run(["g++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{INCLUDE}", source], check=True)


def test_every_function_is_explained():
    lines = (ROOT / "plugin-sdk/include/kiln_ws.h").read_text().splitlines()
    for at, line in enumerate(lines):
        if line.startswith("KILN_API "):
            last = next(l for l in lines[at:] if ";" in l)
            assert lines[at - 1].endswith("*/") or "/*" in last, line
