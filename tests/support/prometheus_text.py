"""A strict reader of Prometheus' text format 0.0.4: every line is well-formed, every family has its
HELP and TYPE once and before its samples, which stand together, no sample occurs twice, and names
are as the conventions ask. Returns {name: {labels as a sorted tuple: value}}."""

import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[0-9]+(?:\.[0-9]+)?)\Z")
HELP = re.compile(rf"# HELP ({NAME}) ((?:[^\\\n]|\\\\|\\n)+)\Z")
TYPE = re.compile(rf"# TYPE ({NAME}) (counter|gauge)\Z")
ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def parse_labels(text):
    labels = []
    for name, value in re.findall(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"', text or ""):
        labels.append((name, re.sub(r"\\.", lambda m: ESCAPES[m.group(0)], value)))
    assert len({name for name, _ in labels}) == len(labels), f"a label twice: {text}"
    return tuple(sorted(labels))


def parse(text: str):
    assert text.endswith("\n"), "the last line has no end"
    families, kinds, current, typed = {}, {}, None, False
    for line in text[:-1].split("\n"):
        if help_line := HELP.match(line):
            assert help_line[1] not in families, f"a family twice: {line}"
            current, typed = help_line[1], False
            families[current] = {}
        elif type_line := TYPE.match(line):
            assert type_line[1] == current and not typed, f"TYPE out of place: {line}"
            typed = True
            kinds[current] = type_line[2]
            assert (type_line[2] == "counter") == current.endswith("_total"), f"name of a counter: {line}"
        else:
            sample = SAMPLE.match(line)
            assert sample, f"malformed line: {line!r}"
            assert sample[1] == current and typed, f"sample out of place: {line}"
            labels = parse_labels(sample[2])
            assert labels not in families[current], f"a sample twice: {line}"
            families[current][labels] = float(sample[3])
    counters = {name for name, kind in kinds.items() if kind == "counter"}
    return families, counters
