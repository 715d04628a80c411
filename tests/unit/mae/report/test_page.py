from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from mae.commands.report import report
from mae.errors import DataError
from mae.report.page import MAX_BYTES, write_report

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Collects what the tests ask about, and checks that every tag is closed."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text, self._open = [], "", []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" not in self._open:
            self.text = f"{self.text} {data.strip()}".strip()

    def all(self, name):
        return [attrs for tag, attrs in self.tags if tag == name]


def page_of(run):
    html = write_report(run).read_text(encoding="utf-8")
    return Page(html), html


@pytest.fixture(params=["minimal_run", "complete_run"])
def any_run(request):
    return request.getfixturevalue(request.param)


def test_page_loads_nothing_from_elsewhere(any_run):
    page, html = page_of(any_run)
    for tag, attrs in page.tags:
        for name in ("src", "href", "srcset", "data", "action", "poster", "xlink:href"):
            value = attrs.get(name) or "#"
            assert value.startswith(("#", "data:")), f"{tag} {name}={value[:80]}"
    assert not page.all("script")
    assert not page.all("link")
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_page_every_picture_has_words(any_run):
    page, _ = page_of(any_run)
    assert all(len(attrs["alt"]) > 20 for attrs in page.all("img"))
    assert all(len(attrs["aria-label"]) > 20 for attrs in page.all("svg"))


def test_page_has_one_title_a_language_and_a_link_to_every_section(any_run):
    page, _ = page_of(any_run)
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == 1
    ids = {attrs["id"] for attrs in page.all("section")}
    links = {attrs["href"].removeprefix("#") for attrs in page.all("a")}
    assert ids == links
    assert len(ids) == 7


def test_page_table_headers_have_a_scope(any_run):
    page, _ = page_of(any_run)
    assert all(attrs.get("scope") in ("row", "col") for attrs in page.all("th"))


def test_page_of_a_minimal_run_says_what_is_missing(minimal_run):
    page, _ = page_of(minimal_run)
    for said in (
        "Not measured yet: there is no probe of this run. Run mae probe",
        "No loss was logged",
        "No pictures yet. Run mae reconstruct",
        "No export with a proof yet. Run mae export",
        "The configuration names no data.data_dir",
        "The run has no readable environment.json",
    ):
        assert said in page.text
    assert not page.all("img")
    assert not page.all("svg")


def test_page_of_a_complete_run_misses_nothing(complete_run):
    page, _ = page_of(complete_run)
    assert "missing" not in {attrs.get("class") for attrs in page.all("p")}
    for said in (
        "Against random weights, pretraining is ahead in 1 of 2 readings",
        "MAE, kNN mean",
        "▼ -5.0 behind",
        "○ -2.0 undecided",
        "▲ +9.0 ahead",
        "k 15 is at the edge of its grid",
        "Each training point is the mean of 4 logged values",
        "Error on the removed pixels of 2 images: model 0.446.",
        "encoder/timm",
        "2.4e-06",
        "6,234",
        "model.optim.blr",
        "Some CPU",
        "900 test images in 31 groups",
    ):
        assert said in page.text
    assert len(page.all("img")) == 1
    assert len(page.all("svg")) == 2 * 3  # two budgets and the loss, each wide and narrow


def test_page_text_of_the_run_cannot_become_markup(complete_run):
    (complete_run / "config.yaml").write_text("model: {name: '<img src=http://x onerror=1>'}")
    path = complete_run / "probe.json"
    fields = json.loads(path.read_text())
    fields["sentences"] = ["<script>alert(1)</script>"]
    path.write_text(json.dumps(fields))
    page, _ = page_of(complete_run)
    assert not page.all("script")
    assert len(page.all("img")) == 1
    assert "<script>alert(1)</script>" in page.text


@pytest.mark.parametrize(
    "content", ['{"format": "domain-mae-probe", "version": 99}', '{"format": 1}', "nothing"]
)
def test_page_probe_of_another_kind_is_said_and_not_shown(complete_run, content):
    (complete_run / "probe.json").write_text(content)
    page, _ = page_of(complete_run)
    assert "probe.json cannot be" in page.text
    assert "Not measured yet" in page.text


def test_page_probe_that_lacks_a_field_is_said_and_not_shown(complete_run):
    path = complete_run / "probe.json"
    fields = json.loads(path.read_text())
    del fields["budgets"][0]["rows"][0]["interval"]
    path.write_text(json.dumps(fields))
    page, _ = page_of(complete_run)
    assert "probe.json cannot be shown" in page.text


def test_page_stays_below_its_size_and_names_pictures_left_out(complete_run):
    picture = complete_run / "reconstruct" / "z-large.png"
    picture.write_bytes(b"\x89PNG" + bytes(MAX_BYTES))
    path = write_report(complete_run)
    assert path.stat().st_size < MAX_BYTES
    assert "z-large.png" in Page(path.read_text(encoding="utf-8")).text


def test_write_report_again_replaces_the_page_and_leaves_nothing_beside(complete_run):
    first, second = write_report(complete_run), write_report(complete_run)
    assert first == second == complete_run / "report" / "index.html"
    assert [path.name for path in first.parent.iterdir()] == ["index.html"]


def test_write_report_where_nothing_can_be_written_is_an_error(complete_run):
    blocked = complete_run / "config.yaml" / "page.html"
    with pytest.raises(DataError, match=r"the report cannot be written to .*choose another place"):
        write_report(complete_run, out=blocked)


def test_report_prints_where_the_page_is(minimal_run, tmp_path, capsys):
    out = tmp_path / "elsewhere" / "page.html"
    assert report(str(minimal_run), out=str(out)) == out
    assert capsys.readouterr().out == f"report: {out}\n"
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_report_without_a_probe_needs_no_torch(minimal_run):
    code = (
        "import sys; from mae.commands.report import report; report(sys.argv[1]); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(minimal_run)], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("False\n")
