"""The order of weight versions: incarnation first."""

from schemas.weights import WeightVersion


def test_a_resumed_trainers_versions_supersede_higher_ones_of_its_predecessor() -> None:
    assert WeightVersion(incarnation=2, version=4).supersedes(WeightVersion(incarnation=1, version=7))
    assert not WeightVersion(incarnation=1, version=7).supersedes(WeightVersion(incarnation=1, version=7))


def test_a_floor_is_met_by_its_version_or_by_a_later_incarnation() -> None:
    floor = WeightVersion(incarnation=1, version=7)
    assert WeightVersion(incarnation=1, version=7).satisfies(floor)
    assert not WeightVersion(incarnation=1, version=6).satisfies(floor)
    assert WeightVersion(incarnation=2, version=4).satisfies(floor)
