"""Draws the figures of the evaluation as SVG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

SIZE = (6.0, 3.6)
COLOURS = {"torch in memory": "tab:gray", "Embank": "tab:blue"}


def figure(title: str, x: str, y: str) -> Any:
    matplotlib.rcParams.update({"svg.hashsalt": "embank", "font.size": 9})
    made, axes = pyplot.subplots(figsize=SIZE, layout="constrained")
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    return made, axes


def save(made: Any, path: Path) -> None:
    """Saves a figure without the date, so that two equal figures make two equal files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made.savefig(path, metadata={"Date": None})
    pyplot.close(made)
    print(f"plot: {path}")


def convergence(
    path: Path, model: str, metric: str, runs: Sequence[tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    """Draws the validation metric over the epochs. Each seed has a pair of lines: memory and
    bank."""
    made, axes = figure(f"{model}: in memory and out of core", "epoch", f"validation {metric}")
    for number, pair in enumerate(runs):
        for outcome, (name, colour), style in zip(pair, COLOURS.items(), ("-", "--")):
            epochs = [entry["epoch"] for entry in outcome["history"]]
            values = [entry["metric"] for entry in outcome["history"]]
            axes.plot(epochs, values, style, color=colour, label=name if number == 0 else None,
                      linewidth=2.5 if style == "-" else 1.2)
    axes.legend()
    save(made, path)


def sweep(
    path: Path, title: str, x: str, y: str, places: Sequence[str],
    lines: dict[str, Sequence[float]], quality: tuple[str, Sequence[float], float] | None = None,
) -> None:
    """Draws lines over named x positions. If `quality` is given, it is drawn on a second axis: a
    name, values, and a reference value. """
    made, axes = figure(title, x, y)
    at = range(len(places))
    axes.set_xticks(list(at), list(places))
    for name, values in lines.items():
        axes.plot(at, values, "o-", label=name, markersize=4)
    axes.set_ylim(bottom=0)
    if quality is not None:
        name, values, reference = quality
        second = axes.twinx()
        second.plot(at, values, "s--", color="tab:red", label=name, markersize=4)
        second.axhline(reference, color="tab:gray", linewidth=1, label=f"{name}, one trainer")
        second.set_ylabel(name)
    made.legend(loc="outside lower center", ncols=3)
    save(made, path)
