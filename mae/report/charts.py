"""Charts as inline SVG, coloured by the page's style sheet.

Written out rather than exported from a plotting library: the colours follow the reader's light or
dark theme, text stays text, and a chart costs a few kilobytes.  Each chart is drawn twice, wide
and narrow, because shrinking a picture to a phone shrinks its letters too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from markupsafe import Markup, escape
from matplotlib.ticker import MaxNLocator

MAX_POINTS = 240
NARROW_PX = 350
WIDTHS_PX = {"wide": 760, "narrow": NARROW_PX}
LINE_HEIGHT_PX = 300  # of the whole line chart
ROW_HEIGHT_PX = 30  # of one interval, its name beside it
TALL_ROW_HEIGHT_PX = 42  # of one interval, its name above it
LETTER_PX = 6.3  # generous mean width of a 12-px letter
GAP_PX = 15  # smallest distance between two labels of reference lines

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve: `style` is the CSS class that colours it."""

    name: str
    points: Points
    style: str


@dataclass(frozen=True, kw_only=True)
class Interval:
    """One row of an interval chart: an estimate and its confidence interval."""

    name: str
    value: float
    low: float
    high: float
    style: str


def thin(points: Points, *, at_most: int = MAX_POINTS) -> tuple[list[tuple[float, float]], int]:
    """Average neighbouring points until few enough are left.

    Non-finite values are left out: a chart cannot show them.

    Returns:
        The points, each the mean of a bin, and how many points a full bin holds.
    """
    finite = [(x, y) for x, y in points if isfinite(y)]
    size = -(-len(finite) // at_most) or 1
    bins = [finite[start : start + size] for start in range(0, len(finite), size)]
    return [
        (sum(x for x, _ in cell) / len(cell), sum(y for _, y in cell) / len(cell)) for cell in bins
    ], size


def line_chart(
    lines: Sequence[Line],
    *,
    references: Mapping[str, float],
    x_label: str,
    y_label: str,
    description: str,
) -> Markup:
    """Draw curves and horizontal reference lines.

    Args:
        lines: Curves of finite points, at least one with a point.
        references: Heights of dashed lines, by name.
        x_label: What the horizontal axis counts.
        y_label: What the vertical axis measures.
        description: The chart in words, for readers who do not see it.
    """

    def draw(width: int) -> tuple[int, Markup]:
        heights = [y for line in lines for _, y in line.points] + list(references.values())
        widths = [0.0] + [x for line in lines for x, _ in line.points]
        frame = _Frame(width, LINE_HEIGHT_PX, widths, heights, left=48, right=14, top=30, bottom=44)
        parts = [
            frame.grid_y(y_label),
            frame.axis_x(x_label),
            *(_curve(line, frame) for line in lines),
            *_references(references, frame),
        ]
        return LINE_HEIGHT_PX, Markup("").join(parts)

    return _both(draw, description)


def interval_chart(intervals: Sequence[Interval], *, x_label: str, description: str) -> Markup:
    """Draw one row per estimate: a dot and its confidence interval.

    Args:
        intervals: From top to bottom.
        x_label: What the horizontal axis measures.
        description: The chart in words, for readers who do not see it.
    """
    ends = [x for row in intervals for x in (row.low, row.value, row.high)]
    longest = int(max(len(row.name) for row in intervals) * LETTER_PX)

    def draw(width: int) -> tuple[int, Markup]:
        # On a phone the names stand above their rows, because beside them no room is left.
        beside = width > NARROW_PX
        row_height = ROW_HEIGHT_PX if beside else TALL_ROW_HEIGHT_PX
        height = row_height * len(intervals) + 48
        left = longest + 14 if beside else 12
        frame = _Frame(width, height, ends, [], left=left, right=20, top=4, bottom=44)
        rows = [
            _row(row, frame.top + row_height * number, frame, beside)
            for number, row in enumerate(intervals)
        ]
        return height, frame.axis_x(x_label, grid=True) + Markup("").join(rows)

    return _both(draw, description)


class _Frame:
    """The plot area: turns values into positions and draws the axes."""

    def __init__(
        self,
        width: int,
        height: int,
        xs: Sequence[float],
        ys: Sequence[float],
        *,
        left: int,
        right: int,
        top: int,
        bottom: int,
    ) -> None:
        self.left, self.top = float(left), float(top)
        self.right, self.bottom = float(width - right), float(height - bottom)
        self.x_ticks = _ticks(xs, max(int(self.right - left) // 85, 3))
        self.y_ticks = _ticks(ys, 5) if ys else []
        self.x_range = min(*xs, self.x_ticks[0]), max(*xs, self.x_ticks[-1])
        self.y_range = (self.y_ticks[0], self.y_ticks[-1]) if ys else (0.0, 1.0)

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / ((high - low) or 1) * (self.right - self.left)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.bottom - (value - low) / ((high - low) or 1) * (self.bottom - self.top)

    def grid_y(self, label: str) -> Markup:
        lines = [
            _line((self.left, self.y(tick)), (self.right, self.y(tick)), "grid")
            + _text((self.left - 8, self.y(tick) + 4), _number(tick), "tick", anchor="end")
            for tick in self.y_ticks
        ]
        return Markup("").join(lines) + _text((4.0, 14.0), label, "label")

    def axis_x(self, label: str, *, grid: bool = False) -> Markup:
        top = self.top if grid else self.bottom
        ticks = [
            _line((self.x(tick), top), (self.x(tick), self.bottom + 4), "grid")
            + _text((self.x(tick), self.bottom + 18), _number(tick), "tick", anchor="middle")
            for tick in self.x_ticks
        ]
        end = _text((self.right, self.bottom + 37), label, "label", anchor="end")
        base = _line((self.left, self.bottom), (self.right, self.bottom), "axis")
        return Markup("").join(ticks) + base + end


def _ticks(values: Sequence[float], count: int) -> list[float]:
    low, high = min(values), max(values)
    pad = 0.5 * abs(low) + 0.5 if low == high else 0.0
    return [float(t) for t in MaxNLocator(nbins=count).tick_values(low - pad, high + pad)]


def _both(draw: Callable[[int], tuple[int, Markup]], description: str) -> Markup:
    """Join the wide and the narrow drawing; the style sheet shows one of them."""
    drawings = []
    for kind, width in WIDTHS_PX.items():
        height, content = draw(width)
        drawings.append(
            Markup(
                '<svg class="chart {}" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
            ).format(kind, width, height, description, content)
        )
    return Markup("\n").join(drawings)


def _curve(line: Line, frame: _Frame) -> Markup:
    if len(line.points) == 1:
        return _dot((frame.x(line.points[0][0]), frame.y(line.points[0][1])), line.style, line.name)
    path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in line.points)
    return Markup('<polyline class="curve {}" points="{}"><title>{}</title></polyline>').format(
        line.style, path, line.name
    )


def _references(references: Mapping[str, float], frame: _Frame) -> list[Markup]:
    """Draw dashed lines; a label that would cover the one above moves below its line."""
    drawn: list[Markup] = []
    occupied = float("-inf")
    for name, value in sorted(references.items(), key=lambda item: -item[1]):
        y = frame.y(value)
        label_y = y - 6 if y - 6 - occupied >= GAP_PX else max(y + 14, occupied + GAP_PX)
        occupied = label_y
        drawn.append(
            _line((frame.left, y), (frame.right, y), "reference")
            + _text((frame.right, label_y), f"{name}: {_number(value)}", "note", anchor="end")
        )
    return drawn


def _row(row: Interval, top: float, frame: _Frame, beside: bool) -> Markup:
    middle = top + (15 if beside else 30)
    label_at = (frame.left - 10, middle + 4) if beside else (frame.left + 4, middle - 12)
    anchor = "end" if beside else "start"
    words = f"{row.name}: {row.value:.3f}, interval {row.low:.3f} to {row.high:.3f}"
    return (
        _text(label_at, row.name, "note", anchor=anchor)
        + _line((frame.x(row.low), middle), (frame.x(row.high), middle), f"span {row.style}")
        + _dot((frame.x(row.value), middle), row.style, words)
    )


def _line(start: tuple[float, float], end: tuple[float, float], style: str) -> Markup:
    return Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(
        style, *start, *end
    )


def _dot(at: tuple[float, float], style: str, words: str) -> Markup:
    return Markup(
        '<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="5"><title>{}</title></circle>'
    ).format(style, *at, words)


def _text(at: tuple[float, float], words: str, style: str, *, anchor: str = "start") -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(
        style, *at, anchor, escape(words)
    )


def _number(value: float) -> str:
    """Write a number of an axis: grouped when large, without trailing noise when small."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
