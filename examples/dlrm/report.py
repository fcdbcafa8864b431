"""The one-page report: plots as PNG files, and an HTML page that shows them with the figures."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MplFigure
from matplotlib.ticker import MaxNLocator

from figures import Figure, mebibytes
from meter import HITS
from variant import Outcome

COLORS = ("#4c5b6b", "#2a78b5", "#d5763b", "#3a9a62")
HIT_COLORS = {"mutable": "#3a9a62", "read_only": "#a8d5b5", "disk": "#d5763b", "missing": "#c9c9c9"}
HIT_LABELS = {"mutable": "memory, mutable", "read_only": "memory, read-only",
              "disk": "disk", "missing": "new row"}
LOOKAHEAD_COLORS = {"on_time": "#3a9a62", "late": "#e3b23c", "wasted": "#c0392b",
                    "dropped": "#8e7cc3"}
MEBI = 1 << 20


@dataclass(frozen=True)
class Chapter:
    """One experiment: its title, a sentence about the experiment, a sentence about its result, and
    its variants."""

    title: str
    about: str
    result: str
    outcomes: list[Outcome]


def write_report(chapters: Sequence[Chapter], figures: Sequence[Figure], folder: Path) -> Path:
    """Writes `report.html` and the PNG files it shows into `folder`; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    sections = []
    for number, chapter in enumerate(chapters, start=1):
        images = [
            (caption, draw(chapter, plot, folder / f"{number}-{name}.png"))
            for name, caption, plot in PLOTS
        ]
        sections.append(section(chapter, images))
    page = folder / "report.html"
    results = "\n".join(f"<p>{html.escape(chapter.result)}</p>" for chapter in chapters)
    rows = figure_rows(figures)
    page.write_text(PAGE.format(results=results, figures=rows, sections="\n".join(sections)))
    return page


def draw(chapter: Chapter, plot: Callable[[Chapter], None], path: Path) -> Path:
    """Draws one plot into a PNG file."""
    with plt.rc_context(STYLE):
        plot(chapter)
        plt.savefig(path, dpi=130)
        plt.close()
    return path


def plot_quality(chapter: Chapter) -> None:
    """Plots loss and AUC over the number of samples."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for outcome, color, line in styled(chapter.outcomes):
        history = outcome.history
        left.plot(series(history, "samples"), smooth(series(history, "loss")), color=color,
                  label=outcome.variant, **line)
        samples = {sample["step"]: sample["samples"] for sample in history}
        known = [(samples[step], value) for step, value in outcome.aucs if step in samples]
        right.plot(*zip(*known, strict=True), color=color, marker="o", markersize=3, **line)
    titled(left, "Training loss", "samples", "binary cross-entropy")
    titled(right, "AUC on the rows that follow in time", "samples", "AUC")
    legend_below(figure, left)


def plot_speed(chapter: Chapter) -> None:
    """Plots the samples per second of each variant: on average, and over time."""
    _, (left, right) = plt.subplots(
        1, 2, figsize=(10, 3.4), layout="constrained", width_ratios=(1, 1.2)
    )
    names = [outcome.variant for outcome in chapter.outcomes]
    rates = [outcome.samples_per_second for outcome in chapter.outcomes]
    bars = left.barh(names, rates, color=COLORS[: len(names)], height=0.6)
    left.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=4)
    left.invert_yaxis()
    left.set_xlim(0, max(rates) * 1.25)
    left.xaxis.set_major_formatter(thousands)
    left.grid(axis="y", visible=False)
    titled(left, "Speed", "samples/s", "")
    for outcome, color, line in styled(chapter.outcomes):
        done = [0, *series(outcome.history, "samples")]
        rate = [
            (after - before) / sample["seconds"]
            for before, after, sample in zip(done, done[1:], outcome.history, strict=False)
        ]
        right.plot(done[1:], rate, color=color, **line)
    right.set_ylim(bottom=0)
    right.yaxis.set_major_formatter(thousands)
    titled(right, "Speed over time", "samples", "samples/s")


def plot_row_share(chapter: Chapter) -> None:
    """Plots the share of each interval that waited for rows."""
    figure, axis = plt.subplots(figsize=(10, 2.8), layout="constrained")
    for outcome, color, line in styled(chapter.outcomes):
        shares = [100 * sample["row_seconds"] / sample["seconds"] for sample in outcome.history]
        axis.plot(series(outcome.history, "samples"), shares, color=color, label=outcome.variant,
                  **line)
    axis.set_ylim(0, 100)
    titled(axis, "Waiting for rows", "samples", "% of the time")
    legend_below(figure, axis)


def plot_memory(chapter: Chapter) -> None:
    """Plots the memory that the store counts and that the process holds, against the budget."""
    banks = [outcome for outcome in chapter.outcomes if outcome.budget_bytes]
    figure, axes = plt.subplots(
        1, len(banks), figsize=(10, 3.4), layout="constrained", squeeze=False
    )
    for axis, outcome in zip(axes[0], banks, strict=True):
        samples = series(outcome.history, "samples")
        held = [
            max(0, size - outcome.baseline_bytes) / MEBI
            for size in series(outcome.history, "resident_bytes")
        ]
        used = [size / MEBI for size in series(outcome.history, "used_bytes")]
        budget, table = outcome.budget_bytes / MEBI, outcome.table_bytes / MEBI
        axis.axhline(budget, color="#c0392b", linestyle="--", label="budget")
        axis.axhline(table, color="#888888", linestyle=":", label="tables in memory")
        axis.plot(samples, held, color="#2a78b5", label="process, beyond torch")
        axis.plot(samples, used, color="#3a9a62", label="store, as it counts")
        axis.set_ylim(0, max(budget, table, *held) * 1.12)
        titled(axis, outcome.variant, "samples", "MiB" if axis is axes[0][0] else "")
    legend_below(figure, axes[0][0])


def plot_hits(chapter: Chapter) -> None:
    """Plots where the rows of each interval were found."""
    banks = [outcome for outcome in chapter.outcomes if outcome.budget_bytes]
    figure, axes = plt.subplots(
        1, len(banks), figsize=(10, 3.2), layout="constrained", squeeze=False, sharey=True
    )
    for axis, outcome in zip(axes[0], banks, strict=True):
        counts = [sample["hits"] for sample in outcome.history]
        totals = [max(1, sum(count.values())) for count in counts]
        shares = [
            [100 * count[name] / total for count, total in zip(counts, totals, strict=True)]
            for name in HITS
        ]
        axis.stackplot(series(outcome.history, "samples"), shares,
                       colors=[HIT_COLORS[name] for name in HITS],
                       labels=[HIT_LABELS[name] for name in HITS])
        axis.set_ylim(0, 100)
        axis.margins(x=0)
        titled(axis, outcome.variant, "samples", "% of rows" if axis is axes[0][0] else "")
    legend_below(figure, axes[0][0])


def plot_lookahead(chapter: Chapter) -> None:
    """Plots the rows of a batch that Lookahead brought on time, late, unused, or not at all."""
    axis = plt.subplots(figsize=(10, 2.8), layout="constrained")[1]
    ahead = [o for o in chapter.outcomes if o.budget_bytes and looked_ahead(o)]
    if not ahead:
        axis.text(0.5, 0.5, "no rows needed lookahead", ha="center", va="center")
        axis.set_axis_off()
        return
    history = ahead[-1].history
    steps = [0, *series(history, "step")]
    for name, color in LOOKAHEAD_COLORS.items():
        per_batch = [
            sample["lookahead"][name] / (after - before)
            for before, after, sample in zip(steps, steps[1:], history, strict=False)
        ]
        axis.plot(series(history, "samples"), per_batch, color=color,
                  label=f"{name.replace('_', ' ')}: {sum(totals(history, name)):,}")
    axis.set_ylim(bottom=0)
    axis.legend(ncols=2)
    titled(axis, f"Lookahead ({ahead[-1].variant})", "samples", "rows a batch")


PLOTS = (
    ("quality", "Loss and AUC", plot_quality),
    ("speed", "Samples per second, evaluations and checkpoints left out", plot_speed),
    ("rows", "Share of the training time that waited for rows", plot_row_share),
    ("memory", "Memory against the budget, sampled while training", plot_memory),
    ("hits", "Where rows were found", plot_hits),
    ("lookahead", "Rows that Lookahead announced: on time, late, wasted, dropped", plot_lookahead),
)


def styled(outcomes: Sequence[Outcome]) -> list[tuple[Outcome, str, dict[str, Any]]]:
    """Returns the color and line of each variant. Later lines are thinner, so that both of two
    equal curves can be seen."""
    return [
        (outcome, COLORS[place % len(COLORS)], {"linewidth": 3.4 - 0.8 * place})
        for place, outcome in enumerate(outcomes)
    ]


def series(history: Sequence[dict[str, Any]], name: str) -> list[Any]:
    return [sample[name] for sample in history]


def totals(history: Sequence[dict[str, Any]], name: str) -> list[int]:
    return [sample["lookahead"][name] for sample in history]


def looked_ahead(outcome: Outcome) -> bool:
    return any(any(sample["lookahead"].values()) for sample in outcome.history)


def smooth(values: Sequence[float], weight: float = 0.6) -> list[float]:
    """An exponential moving average, so that trends show through the noise of batches."""
    smoothed: list[float] = []
    for value in values:
        smoothed.append(value if not smoothed else weight * smoothed[-1] + (1 - weight) * value)
    return smoothed


def titled(axis: Axes, title: str, across: str, up: str) -> None:
    axis.set_title(title)
    axis.set_xlabel(across)
    axis.set_ylabel(up)
    if across == "samples":
        axis.xaxis.set_major_formatter(thousands)
        axis.xaxis.set_major_locator(MaxNLocator(5))


def thousands(value: float, _: float) -> str:
    """Returns the label of a tick, such as 25k for 25000."""
    return f"{value / 1000:,.0f}k" if value else "0"


def legend_below(figure: MplFigure, axis: Axes) -> None:
    """Draws one legend for all axes of a plot, below them, where it hides no curve."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))


def section(chapter: Chapter, images: Sequence[tuple[str, Path]]) -> str:
    """Makes the HTML of one experiment. The page contains its images, so it is one file to send."""
    parts = [f"<h2>{html.escape(chapter.title)}</h2><p>{html.escape(chapter.about)}</p>"]
    for caption, path in images:
        coded = base64.b64encode(path.read_bytes()).decode()
        parts.append(
            f'<figure><img alt="{html.escape(caption)}" src="data:image/png;base64,{coded}">'
            f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        )
    return "\n".join(parts)


def figure_rows(figures: Sequence[Figure]) -> str:
    """The table of all figures."""
    rows = []
    for figure in figures:
        against = "" if figure.against_value is None else (
            f"{html.escape(figure.against or '')}: {shown(figure.against_value, figure.unit)}"
        )
        ratio = "" if figure.ratio is None else f"{figure.ratio:.3f}"
        value = shown(figure.value, figure.unit)
        rows.append(
            f"<tr><td>{html.escape(figure.name)}</td><td>{html.escape(value)}</td>"
            f"<td>{against}</td><td>{ratio}</td></tr>"
        )
    return "\n".join(rows)


def shown(value: float, unit: str) -> str:
    """Returns a value with its unit, as the report shows it."""
    if unit == "bytes":
        return mebibytes(value)
    if abs(value) < 10:
        return f"{value:.6f} {unit}".rstrip()
    return f"{value:,.0f} {unit}".rstrip()


STYLE: dict[Any, Any] = {
    "font.size": 10, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": "#e6e6e6", "grid.linewidth": 0.8,
    "axes.axisbelow": True, "legend.frameon": False, "figure.facecolor": "white",
}

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Embank: training out of core</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem }}
h1, h2 {{ line-height: 1.2 }} h2 {{ margin-top: 2.5rem }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #ddd }}
td:not(:first-child) {{ font-variant-numeric: tabular-nums }}
figure {{ margin: 1.2rem 0 }} img {{ max-width: 100% }}
figcaption {{ color: #666; font-size: .9em }}
</style></head><body>
<h1>Training a click model out of core</h1>
{results}
<table><tr><th>figure</th><th>value</th><th>against</th><th>ratio</th></tr>
{figures}
</table>
{sections}
</body></html>
"""
