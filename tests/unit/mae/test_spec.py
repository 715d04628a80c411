from __future__ import annotations

import dataclasses
import json

import pytest

from mae.errors import DataError
from mae.spec import ImageSpec

SPEC = ImageSpec(
    channels=("B04", "B03"),
    dtype="uint16",
    mean=(1200.5, 900.25),
    std=(300.0, 200.0),
    value_range=(0.0, 10000.0),
    scale=1e-4,
    offset=-0.1,
    unit="reflectance",
    nodata=0.0,
)


def change(**fields) -> ImageSpec:
    return dataclasses.replace(SPEC, **fields)


def test_from_dict_of_to_dict_through_json_is_equal():
    assert ImageSpec.from_dict(json.loads(json.dumps(SPEC.to_dict()))) == SPEC


@pytest.mark.parametrize("fields", [{"colour": 1}, {}])
def test_from_dict_wrong_keys_say_what_was_found(fields):
    with pytest.raises(DataError, match="not an ImageSpec"):
        ImageSpec.from_dict(fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"channels": (), "mean": (), "std": ()}, "at least one channel"),
        ({"mean": (1.0,)}, "mean has 1 values for 2 channels"),
        ({"std": (1.0, 2.0, 3.0)}, "std has 3 values for 2 channels"),
        ({"std": (1.0, 0.0)}, "std must be > 0"),
        ({"dtype": "float64"}, "dtype is 'float64'; allowed: uint8"),
    ],
)
def test_image_spec_impossible_values_are_refused(fields, message):
    with pytest.raises(DataError, match=message):
        change(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"channels": ("B03", "B04")},
        {"dtype": "uint8"},
        {"scale": 1.0},
        {"offset": 0.0},
        {"unit": ""},
        {"nodata": None},
    ],
)
def test_require_match_another_meaning_names_both_sides(fields):
    field = next(iter(fields))
    with pytest.raises(DataError, match=rf"{field}: .* in run a, .* in shards b"):
        SPEC.require_match(change(**fields), here="run a", there="shards b")


def test_require_match_other_statistics_are_allowed():
    SPEC.require_match(change(mean=(1.0, 2.0), std=(3.0, 4.0)), here="a", there="b")
