"""From the numbers of a run to a table and a plot."""

import json
import platform
import re
import statistics
import subprocess
import time
from pathlib import Path

from cases import load_cases

PEERS = ("h2o", "lighttpd")
FIRST_MS = 15
IDLE_BYTES = 1024
MANY_FACTOR = 1.05
INDEX_SECONDS = 1.0


def processor():
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return found.group(1).strip() if found else "unknown processor"


def about(build, **peers):
    """What every result begins with: when, where, and versions: of kiln, and of `peers` by their commands."""
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    return {
        "when": time.strftime("%Y-%m-%d %H:%M"),
        "machine": f"{processor()}, Linux {platform.release().split('-')[0]}, TCP with {congestion}",
        "versions": versions({"kiln": [str(build / "kiln"), "--version"], **peers}),
    }


def heading(title, about, how):
    names = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return [f"# {title}", "", f"{about['when']}, {about['machine']}. {names}; {how}", ""]


def versions(commands):
    found = {}
    for name, command in commands.items():
        try:
            out = subprocess.run(command, capture_output=True, text=True, timeout=20)
            text = re.search(r"\d+\.\d+[\w.]*", out.stdout + out.stderr)
            found[name] = text.group(0) if text else "?"
        except OSError:
            found[name] = "?"
    return found


def ratios(load, key, name, base):
    """Best and median of the ratios of the same rounds."""
    mine, other = load[key].get(name), load[key].get(base)
    if mine is None or other is None:
        return None
    each = [a / b for a, b in zip(mine["cpu_us"], other["cpu_us"])]
    return {"best": min(each), "median": statistics.median(each), "floor": min(mine["least_us"]) / min(other["least_us"])}


def row(title, kiln, median, budget, base="", others="", form="{:.3f}", floor=None):
    return {
        "title": title,
        "kiln": form.format(kiln),
        "median": form.format(median) if median is not None else "",
        "floor": form.format(floor) if floor is not None else "",
        "base": base,
        "others": others,
        "budget": form.format(budget) if budget is not None else "",
        "met": "" if budget is None else "yes" if kiln <= budget else "NO",
        "value": kiln,
        "limit": budget,
    }


def load_rows(results):
    rows = []
    load = results["load"]
    for case in load_cases():
        if case.key not in load:
            continue
        name = case.kilns[0]
        mine = ratios(load, case.key, name, "nginx")
        if mine is None:
            continue
        base = f"{min(load[case.key]['nginx']['least_us']):.1f} us"
        others = ", ".join(
            f"{peer} {ratios(load, case.key, peer, 'nginx')['best']:.2f}" for peer in PEERS if peer in load[case.key]
        )
        rows.append(row(f"{case.title} (x nginx)", mine["best"], mine["median"], case.budget, base, others, floor=mine["floor"]))
        for peer, limit in case.limits.items():
            other = ratios(load, case.key, name, peer)
            if other is not None:
                base = f"{min(load[case.key][peer]['least_us']):.1f} us"
                rows.append(row(f"{case.title} (x {peer})", other["best"], other["median"], limit, base, floor=other["floor"]))
        many = ratios(load, case.key, "kiln-many", "kiln")
        if many is not None:
            files = results["about"]["many"]
            rows.append(
                row(
                    f"{case.title}, {files:,} files indexed (x without)",
                    many["best"],
                    many["median"],
                    MANY_FACTOR,
                    floor=many["floor"],
                )
            )
    return rows


def other_rows(results):
    rows = []
    idle = results["idle"]
    if "kiln" in idle:
        others = ", ".join(f"{peer} {idle[peer]:.0f}" for peer in PEERS if peer in idle)
        rows.append(
            row("idle connection (bytes)", idle["kiln"], None, IDLE_BYTES, f"{idle.get('nginx', 0):.0f}", others, "{:.0f}")
        )
    for name, first in results["first"].items():
        more = f", {results['about']['many']:,} files indexed" if name.endswith("many") else ""
        for what, title in (("new", "first request of a new ._c"), ("edited", "from an edit to the new answer")):
            value = first[what]
            rows.append(row(f"{title}{more} (ms)", value["min"], value["median"], FIRST_MS, form="{:.1f}"))
    if "index_seconds" in results:
        title = f"start with {results['about']['many']:,} files (s of CPU)"
        rows.append(row(title, results["index_seconds"], None, INDEX_SECONDS))
    return rows


def rows(results):
    return load_rows(results) + other_rows(results)


COLUMNS = (("title", "case"), ("kiln", "kiln, best"), ("median", "median"), ("floor", "best seconds"), ("budget", "budget"), ("met", "met"),
           ("base", "nginx"), ("others", "others"))


def terminal(table):
    widths = [max([len(head)] + [len(r[key]) for r in table]) for key, head in COLUMNS]
    lines = ["  ".join(head.ljust(w) for (_, head), w in zip(COLUMNS, widths)).rstrip()]
    lines.append("  ".join("-" * w for w in widths))
    for r in table:
        lines.append("  ".join(r[key].ljust(w) for (key, _), w in zip(COLUMNS, widths)).rstrip())
    return "\n" + "\n".join(lines) + "\n"


def markdown(results, table):
    about = results["about"]
    how = (
        "one worker each, pinned to one core, wrk on another, "
        f"{about['connections']} connections, {about['rounds']} interleaved rounds of {about['seconds']} s. Ratios are "
        "processor time per request (user and system, whole process tree) over that of nginx in the same round: the best "
        "of the rounds, the median, and the ratio of the best seconds of each. Milliseconds: best and median of the samples"
        + (", at a real-time priority." if about.get("undisturbed") else ", beside whatever else the machine did.")
    )
    lines = heading("Figures", about, how)
    lines += ["| " + " | ".join(head for _, head in COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(r[key] for key, _ in COLUMNS) + " |" for r in table]
    return "\n".join(lines) + "\n"


def plot(results, path):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "kiln"
    import matplotlib.pyplot as plt

    load = results["load"]
    shown = [case for case in load_cases() if case.key in load and ratios(load, case.key, case.kilns[0], "nginx")]
    names = ("kiln", "h2o", "lighttpd")
    colours = {"kiln": "#c2410c", "h2o": "#94a3b8", "lighttpd": "#cbd5e1"}
    figure, axes = plt.subplots(figsize=(9, 0.75 * len(shown) + 1.6))
    height = 0.26
    for y, case in enumerate(reversed(shown)):
        for i, name in enumerate(names):
            actual = case.kilns[0] if name == "kiln" else name
            ratio = ratios(load, case.key, actual, "nginx")
            if ratio is None:
                continue
            at = y + (1 - i) * height
            axes.barh(at, ratio["best"], height * 0.92, color=colours[name], label=name if y == 0 else None)
            axes.text(ratio["best"] + 0.01, at, f"{ratio['best']:.2f}", va="center", fontsize=8)
        axes.plot([case.budget] * 2, [y - 0.42, y + 0.42], color="#15803d", linewidth=1.5, label="budget" if y == 0 else None)
    axes.axvline(1, color="#475569", linewidth=1, linestyle=":", label="nginx")
    axes.set_yticks(range(len(shown)), [case.title for case in reversed(shown)])
    axes.set_xlabel("processor time per request, nginx = 1 (less is better)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncol=5, frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def write(results, table, directory):
    directory.mkdir(exist_ok=True)
    (directory / "latest.json").write_text(json.dumps(results, indent=1) + "\n")
    (directory / "latest.md").write_text(markdown(results, table))
    plot(results, directory / "latest.svg")
    print(f"written: {directory}/latest.json, latest.md, latest.svg")
