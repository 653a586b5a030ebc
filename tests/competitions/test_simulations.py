"""What all simulators have in common: a seed gives the same bytes, and files of others are left alone."""

from functools import partial

import pytest

from competitions.census.simulate import simulate as census
from competitions.criteo.simulate import simulate as criteo
from competitions.otto.simulate import simulate as otto
from competitions.rossmann.simulate import simulate as rossmann
from competitions.trivago2019.simulate import simulate as trivago
from competitions.xmarket2022.simulate import simulate as xmarket
from fastrec.errors import DataError

SIMULATORS = {
    "census": partial(census, 300),
    "criteo": partial(criteo, 800),
    "otto": partial(otto, 50),
    "rossmann": partial(rossmann, 1, days=84),
    "trivago": partial(trivago, 500, block_sessions=200),
    "xmarket": partial(xmarket, 50),
}


@pytest.mark.parametrize("name", SIMULATORS)
def test_a_seed_gives_the_same_bytes_and_files_of_others_are_left_alone(name, tmp_path):
    simulate = SIMULATORS[name]
    if name == "criteo":
        pytest.importorskip("numba")

    def written(folder, seed):
        simulate(tmp_path / folder, seed=seed)
        return {p.name: p.read_bytes() for p in (tmp_path / folder).iterdir()}

    first, other = written("a", 4), written("b", 5)
    assert first.keys() == other.keys()
    assert first != other
    assert written("b", 4) == first  # an earlier simulation is replaced
    (tmp_path / "a" / "thesis.txt").write_text("mine")
    with pytest.raises(DataError, match=r"thesis\.txt|files of something else"):
        simulate(tmp_path / "a", seed=5)
    assert (tmp_path / "a" / "thesis.txt").read_text() == "mine"
    assert {n: (tmp_path / "a" / n).read_bytes() for n in first} == first
