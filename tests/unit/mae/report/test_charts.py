from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from mae.report.charts import Interval, Line, interval_chart, line_chart, thin


def drawings(markup):
    found = re.findall(r"<svg.*?</svg>", markup, re.S)
    return [ElementTree.fromstring(svg) for svg in found]  # noqa: S314 - our own drawing


def by_class(svg, name):
    return [e for e in svg.iter() if name in e.get("class", "").split()]


def test_thin_few_points_are_kept():
    assert thin([(1.0, 0.5), (2.0, 0.25)], at_most=2) == ([(1.0, 0.5), (2.0, 0.25)], 1)


def test_thin_many_points_become_means_of_bins():
    points, size = thin([(float(x), float(x * x)) for x in range(6)], at_most=2)
    assert size == 3
    assert points == [(1, 5 / 3), (4, 50 / 3)]


def test_thin_uneven_rest_is_a_smaller_bin():
    points, size = thin([(float(x), 1.0) for x in range(5)], at_most=3)
    assert size == 2
    assert points == [(0.5, 1), (2.5, 1), (4, 1)]


def test_thin_non_finite_values_are_left_out():
    assert thin([(0.0, math.nan), (1.0, 2.0), (2.0, math.inf)]) == ([(1.0, 2.0)], 1)


def test_thin_nothing_gives_nothing():
    assert thin([]) == ([], 1)


def loss_chart(**changes):
    options = {
        "references": {"predict zero": 1.0},
        "x_label": "steps",
        "y_label": "loss",
        "description": "The loss falls.",
    }
    line = Line(name="validation", points=[(0.0, 1.5), (50.0, 1.0), (100.0, 0.5)], style="val")
    return line_chart([line], **{**options, **changes})


def test_line_chart_is_drawn_wide_and_narrow_with_a_description():
    wide, narrow = drawings(loss_chart())
    assert wide.get("class") == "chart wide"
    assert narrow.get("class") == "chart narrow"
    assert {svg.get("aria-label") for svg in (wide, narrow)} == {"The loss falls."}
    assert {svg.get("role") for svg in (wide, narrow)} == {"img"}


def test_line_chart_places_points_in_proportion():
    svg = drawings(loss_chart())[0]
    points = by_class(svg, "curve")[0].get("points").split()
    (x0, y0), (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in points)
    assert x0 < x1 < x2
    assert y0 < y1 < y2  # SVG counts downwards
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert y1 - y0 == pytest.approx(y2 - y1, abs=0.11)


def test_line_chart_reference_stands_at_its_value():
    svg = drawings(loss_chart())[0]
    y = float(by_class(svg, "reference")[0].get("y1"))
    middle = float(by_class(svg, "curve")[0].get("points").split()[1].split(",")[1])
    assert y == pytest.approx(middle, abs=0.11)
    assert [t.text for t in by_class(svg, "note")] == ["predict zero: 1"]


def test_line_chart_labels_of_close_references_do_not_overlap():
    svg = drawings(loss_chart(references={"a": 1.0, "b": 0.999, "c": 0.998}))[0]
    heights = sorted(float(text.get("y")) for text in by_class(svg, "note"))
    assert all(low - high >= 14.9 for high, low in pairwise(heights))


def test_line_chart_names_are_escaped():
    markup = loss_chart(references={"<script>": 1.0}, y_label='"quoted" & more')
    assert "<script>" not in markup
    assert len(drawings(markup)) == 2


def test_line_chart_one_point_is_a_dot():
    line = Line(name="validation", points=[(10.0, 0.7)], style="val")
    svg = drawings(line_chart([line], references={}, x_label="x", y_label="y", description="d"))[0]
    assert len(by_class(svg, "dot")) == 1


def test_interval_chart_spans_the_interval_around_the_dot():
    rows = [
        Interval(name="first", value=50.0, low=40.0, high=70.0, style="mae"),
        Interval(name="second", value=60.0, low=60.0, high=60.0, style="plain"),
    ]
    for svg in drawings(interval_chart(rows, x_label="%", description="d")):
        span, dot = by_class(svg, "span")[0], by_class(svg, "dot")[0]
        low, high, value = float(span.get("x1")), float(span.get("x2")), float(dot.get("cx"))
        assert (value - low) / (high - low) == pytest.approx(1 / 3, abs=0.01)
        tops = [float(dot.get("cy")) for dot in by_class(svg, "dot")]
        assert tops[0] < tops[1] < float(svg.get("viewBox").split()[3])
        assert [text.text for text in by_class(svg, "note")] == ["first", "second"]
